//! Instructions of a kernel, decoded: registers are numbers, labels are places, and calls are replaced by the function.

use std::collections::{BTreeMap, HashMap};

use crate::arithmetic::{Compute, Freedom, Lanes, Type, compute};
use crate::text::{Function, PtxError, Statement, Text, error, read};

/// A register, or a constant: see [`CONSTANT`].
pub(crate) type Register = u32;

/// The bit that says that a register's other bits are the number of a constant.
pub(crate) const CONSTANT: Register = 1 << 31;

/// Generic addresses of shared memory begin here.
pub(crate) const SHARED_WINDOW: u64 = 1 << 60;

/// Registers that have a value from the beginning, in the order of their numbers.
const SPECIAL: [&str; 6] = ["%tid.x", "%ctaid.x", "%ntid.x", "%nctaid.x", "%laneid", "%warpid"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Param,
    Shared,
    Global,
    /// Shared or global, as the address says.
    Generic,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    pub(crate) space: Space,
    pub(crate) base: Register,
    pub(crate) offset: u64,
    /// Of each element.
    pub(crate) bytes: u32,
    pub(crate) is_signed: bool,
    /// Through the read-only cache.
    pub(crate) nc: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Xor,
    Index,
}

/// What joins values of lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Join {
    And,
    Or,
    Xor,
    Add,
    Min,
    Max,
    /// Votes: any and all are `Or` and `And` of predicates.
    Uniform,
    Ballot,
    MatchAny,
    MatchAll,
}

/// What all lanes of a mask do together, or all threads of the block.
#[derive(Debug)]
pub(crate) enum Together {
    SyncWarp,
    Shuffle {
        mode: Shuffle,
        value: Register,
        argument: Register,
        clamp: Register,
    },
    Join {
        join: Join,
        value: Register,
        of: Type,
    },
    /// `bar`, with the reduction of a predicate where there is one.
    SyncBlock {
        join: Option<(Join, Register, bool)>,
    },
}

pub(crate) enum Kind {
    Compute {
        compute: Compute,
        to: Register,
        from: [Register; 4],
    },
    Load {
        access: Access,
        to: Vec<(Register, u32)>,
    },
    Store {
        access: Access,
        from: Vec<Register>,
    },
    Atomic {
        access: Access,
        join: &'static str,
        of: Type,
        to: Option<Register>,
        from: [Register; 2],
    },
    Together {
        together: Together,
        mask: Register,
        to: [Option<Register>; 2],
    },
    ActiveMask {
        to: Register,
    },
    Branch {
        to: u32,
    },
    BranchTo {
        index: Register,
        to: Vec<u32>,
    },
    Exit,
    /// Fences order nothing here that is not in order.
    Nothing,
}

pub(crate) struct Instruction {
    pub(crate) line: u32,
    /// The name with all its parts, by its number in [`Code::names`].
    pub(crate) name: u32,
    /// The predicate, and whether it is negated.
    pub(crate) guard: Option<(Register, bool)>,
    pub(crate) kind: Kind,
}

/// A kernel that can be run.
#[derive(Default)]
pub struct Code {
    pub(crate) kernel: String,
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) names: Vec<String>,
    /// The names of registers.
    pub(crate) registers: Vec<String>,
    pub(crate) constants: Vec<Lanes>,
    pub(crate) parameter_bytes: usize,
    pub(crate) shared_bytes: usize,
}

impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.kernel)
    }
}

impl Code {
    /// How many bytes the parameters have.
    pub fn parameter_bytes(&self) -> usize {
        self.parameter_bytes
    }
}

/// Reads a module: its kernels by name.
///
/// # Errors
/// [`PtxError`], as for an opcode that is not known.
pub fn kernels(ptx: &str, freedom: Freedom) -> Result<BTreeMap<String, Code>, PtxError> {
    let text = read(ptx)?;
    let entries = text.functions.iter().filter(|(_, function)| function.is_entry);
    entries.map(|(name, function)| Ok((name.clone(), Decoder::new(&text, freedom).kernel(name, function)?))).collect()
}

struct Decoder<'a> {
    text: &'a Text,
    freedom: Freedom,
    code: Code,
    /// Registers and their bits, parameters and labels, innermost scope last.
    scopes: Vec<HashMap<String, (Register, u32)>>,
    bits: Vec<u32>,
    constants: HashMap<u64, Register>,
    name_numbers: HashMap<String, u32>,
    symbols: HashMap<String, u64>,
    /// The functions being expanded, each with the number of its expansion and what its parameters are in its caller.
    arguments: Vec<(u32, HashMap<String, String>)>,
    labels: HashMap<String, u32>,
    tables: HashMap<String, Vec<String>>,
    /// Branches to labels, whose places are not known yet.
    jumps: Vec<(usize, Vec<String>)>,
    expansions: u32,
}

impl<'a> Decoder<'a> {
    fn new(text: &'a Text, freedom: Freedom) -> Self {
        Self {
            text,
            freedom,
            code: Code::default(),
            scopes: vec![HashMap::new()],
            bits: Vec::new(),
            constants: HashMap::new(),
            name_numbers: HashMap::new(),
            symbols: HashMap::new(),
            arguments: Vec::new(),
            labels: HashMap::new(),
            tables: HashMap::new(),
            jumps: Vec::new(),
            expansions: 0,
        }
    }

    fn kernel(mut self, name: &str, function: &Function) -> Result<Code, PtxError> {
        self.code.kernel = name.to_owned();
        for special in SPECIAL {
            self.declare(special, 32);
        }
        for variable in &self.text.shared {
            let at = self.code.shared_bytes.next_multiple_of(variable.align);
            self.symbols.insert(variable.name.clone(), at as u64);
            self.code.shared_bytes = at + variable.bytes;
        }
        for parameter in &function.parameters {
            let at = self.code.parameter_bytes.next_multiple_of(parameter.align);
            self.symbols.insert(parameter.name.clone(), at as u64);
            self.code.parameter_bytes = at + parameter.bytes;
        }
        self.statements(&function.body)?;
        self.push(0, "exit", None, Kind::Exit);
        for (at, labels) in std::mem::take(&mut self.jumps) {
            let instruction = &mut self.code.instructions[at];
            let places: Result<Vec<_>, _> = labels
                .iter()
                .map(|label| self.labels.get(label).copied().map_or_else(|| error(instruction.line, label), Ok))
                .collect();
            match &mut instruction.kind {
                Kind::Branch { to } => *to = places?[0],
                Kind::BranchTo { to, .. } => *to = places?,
                _ => unreachable!("only branches have labels"),
            }
        }
        Ok(self.code)
    }

    fn statements(&mut self, body: &[(u32, Statement)]) -> Result<(), PtxError> {
        for (line, statement) in body {
            match statement {
                Statement::Open => self.scopes.push(HashMap::new()),
                Statement::Close => drop(self.scopes.pop()),
                Statement::Label(label) => {
                    let place = self.code.instructions.len() as u32;
                    self.labels.insert(self.label(label), place);
                }
                Statement::Text(text) => self.statement(*line, text)?,
            }
        }
        Ok(())
    }

    /// A label's name, which is another in each expansion of a function.
    fn label(&self, label: &str) -> String {
        self.arguments.last().map_or_else(|| label.to_owned(), |(expansion, _)| format!("{label} {expansion}"))
    }

    fn declare(&mut self, name: &str, bits: u32) -> Register {
        let register = self.code.registers.len() as Register;
        self.code.registers.push(name.to_owned());
        self.bits.push(bits);
        self.scopes.last_mut().map(|scope| scope.insert(name.to_owned(), (register, bits)));
        register
    }

    fn push(&mut self, line: u32, name: &str, guard: Option<(Register, bool)>, kind: Kind) {
        let names = &mut self.code.names;
        let name = *self.name_numbers.entry(name.to_owned()).or_insert_with(|| {
            names.push(name.to_owned());
            names.len() as u32 - 1
        });
        self.code.instructions.push(Instruction { line, name, guard, kind });
    }

    fn statement(&mut self, line: u32, text: &str) -> Result<(), PtxError> {
        let (guard, text) = match text.strip_prefix('@') {
            None => (None, text),
            Some(rest) => {
                let (guard, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                let name = guard.trim_start_matches('!');
                (Some((self.register(line, name)?, name != guard)), rest.trim_start())
            }
        };
        let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let name = name.replace("::cta", "");
        match name.as_str() {
            ".reg" => return self.registers(line, rest),
            ".pragma" => return Ok(()),
            ".param" => return Ok(()),
            ".branchtargets" => {
                // The label before it, at this place, is the table's name.
                let here = self.code.instructions.len() as u32;
                let labels: Vec<_> = rest.split(',').map(|label| self.label(label.trim())).collect();
                let names: Vec<_> =
                    self.labels.iter().filter(|(_, at)| **at == here).map(|(name, _)| name.clone()).collect();
                self.tables.extend(names.into_iter().map(|name| (name, labels.clone())));
                return Ok(());
            }
            _ => (),
        }
        let operands = operands(rest);
        let operands: Vec<&str> = operands.iter().map(String::as_str).collect();
        let known = self.instruction(line, &name, guard, &operands)?;
        if known { Ok(()) } else { error(line, format!("unknown instruction: {text}")) }
    }

    /// `.reg .b32 %r<8>`, `.reg .b16 low, high`.
    fn registers(&mut self, line: u32, text: &str) -> Result<(), PtxError> {
        let (of, names) = text.split_once(char::is_whitespace).unwrap_or_default();
        let Some(of) = of.strip_prefix('.').and_then(Type::parse) else {
            return error(line, format!("registers of an unknown type: {text}"));
        };
        for name in names.split(',').map(str::trim) {
            match name.split_once('<') {
                None => drop(self.declare(name, of.bits)),
                Some((name, count)) => {
                    let count: u32 = count.trim_end_matches('>').parse().unwrap_or(0);
                    for i in 0..count {
                        self.declare(&format!("{name}{i}"), of.bits);
                    }
                }
            }
        }
        Ok(())
    }

    fn register(&self, line: u32, name: &str) -> Result<Register, PtxError> {
        match self.scopes.iter().rev().find_map(|scope| scope.get(name)) {
            Some(&(register, _)) => Ok(register),
            None => error(line, format!("no register: {name}")),
        }
    }

    fn constant(&mut self, value: u64) -> Register {
        let constants = &mut self.code.constants;
        *self.constants.entry(value).or_insert_with(|| {
            constants.push([value; 32]);
            CONSTANT | (constants.len() as Register - 1)
        })
    }

    /// A source: a register, a number, or the address of a variable.
    fn source(&mut self, line: u32, text: &str) -> Result<Register, PtxError> {
        let number = match text.as_bytes() {
            [b'0', b'f' | b'F' | b'd' | b'D', ..] => u64::from_str_radix(&text[2..], 16).ok(),
            _ => integer(text),
        };
        match number.or_else(|| self.symbols.get(text).copied()) {
            Some(number) => Ok(self.constant(number)),
            None if text == "WARP_SZ" => Ok(self.constant(32)),
            None => self.register(line, text),
        }
    }

    fn sources<const N: usize>(&mut self, line: u32, texts: &[&str]) -> Result<[Register; N], PtxError> {
        let mut sources = [self.constant(0); N];
        if texts.len() > N {
            return error(line, "more operands than expected");
        }
        for (source, text) in sources.iter_mut().zip(texts) {
            *source = self.source(line, text)?;
        }
        Ok(sources)
    }

    /// Up to two results, as in `%r1|%p1`; `_` is none.
    fn results(&self, line: u32, text: &str) -> Result<[Option<Register>; 2], PtxError> {
        let mut results = [None; 2];
        for (result, name) in results.iter_mut().zip(text.split('|')) {
            *result = if name == "_" { None } else { Some(self.register(line, name)?) };
        }
        Ok(results)
    }

    fn instruction(
        &mut self,
        line: u32,
        name: &str,
        guard: Option<(Register, bool)>,
        operands: &[&str],
    ) -> Result<bool, PtxError> {
        let (first, parts) = name.split_once('.').unwrap_or((name, ""));
        let parts: Vec<_> = parts.split('.').collect();
        let has = |part: &str| parts.contains(&part);
        let of = parts.last().and_then(|of| Type::parse(of));
        let all = self.constant(u32::MAX.into());
        let kind = match (first, operands) {
            ("bra", [label]) => {
                self.jumps.push((self.code.instructions.len(), vec![self.label(label)]));
                Kind::Branch { to: 0 }
            }
            ("brx", [index, table]) => {
                let labels = self.tables.get(&self.label(table)).cloned();
                let Some(labels) = labels else { return error(line, format!("no table of targets: {table}")) };
                self.jumps.push((self.code.instructions.len(), labels));
                Kind::BranchTo { index: self.source(line, index)?, to: Vec::new() }
            }
            // The end of an expanded function is where its caller goes on.
            ("ret", []) if !self.arguments.is_empty() => {
                self.jumps.push((self.code.instructions.len(), vec![self.label("return")]));
                Kind::Branch { to: 0 }
            }
            ("ret" | "exit", []) => Kind::Exit,
            ("membar" | "fence" | "prefetch" | "prefetchu" | "nanosleep", _) => Kind::Nothing,
            ("call", _) => {
                self.call(line, guard, operands)?;
                return Ok(true);
            }
            ("ld" | "st", [a, b]) if has("param") && (!self.arguments.is_empty() || !self.is_parameter(a, b)) => {
                return self.argument(line, first == "ld", guard, of, [a, b]);
            }
            ("ld" | "ldu", [to, address]) => {
                let Some(access) = self.access(line, &parts, address)? else { return Ok(false) };
                let names = vector(to);
                let to: Result<Vec<_>, _> = names.iter().map(|name| self.register(line, name)).collect();
                Kind::Load { access, to: to?.into_iter().map(|to| (to, self.bits[to as usize])).collect() }
            }
            ("st", [address, from]) => {
                let Some(access) = self.access(line, &parts, address)? else { return Ok(false) };
                let from: Result<Vec<_>, _> = vector(from).iter().map(|name| self.source(line, name)).collect();
                Kind::Store { access, from: from? }
            }
            ("atom", [to, address, from @ ..]) => {
                return self.atomic(line, name, guard, &parts, Some(to), address, from);
            }
            ("red", [address, from @ ..]) => return self.atomic(line, name, guard, &parts, None, address, from),
            ("shfl", [to, value, argument, clamp, mask]) if has("sync") => {
                let mode = match parts[1] {
                    "up" => Shuffle::Up,
                    "down" => Shuffle::Down,
                    "bfly" => Shuffle::Xor,
                    "idx" => Shuffle::Index,
                    _ => return Ok(false),
                };
                let [value, argument, clamp, mask] = self.sources(line, &[value, argument, clamp, mask])?;
                let to = self.results(line, to)?;
                Kind::Together { together: Together::Shuffle { mode, value, argument, clamp }, mask, to }
            }
            ("vote" | "match" | "redux", [to, value, mask]) if has("sync") => {
                let join = match parts[..] {
                    ["sync", "all", "pred"] | ["sync", "and", _] => Join::And,
                    ["sync", "any", "pred"] | ["sync", "or", _] => Join::Or,
                    ["sync", "uni", "pred"] => Join::Uniform,
                    ["sync", "ballot", "b32"] => Join::Ballot,
                    ["any", "sync", _] => Join::MatchAny,
                    ["all", "sync", _] => Join::MatchAll,
                    ["sync", "xor", _] => Join::Xor,
                    ["sync", "add", _] => Join::Add,
                    ["sync", "min", _] => Join::Min,
                    ["sync", "max", _] => Join::Max,
                    _ => return Ok(false),
                };
                let Some(of) = of else { return Ok(false) };
                let [value, mask] = self.sources(line, &[value, mask])?;
                Kind::Together { together: Together::Join { join, value, of }, mask, to: self.results(line, to)? }
            }
            ("activemask", [to]) => Kind::ActiveMask { to: self.register(line, to)? },
            ("bar" | "barrier", [mask]) if has("warp") => {
                let mask = self.source(line, mask)?;
                Kind::Together { together: Together::SyncWarp, mask, to: [None; 2] }
            }
            // Of all threads of the block only.
            ("bar" | "barrier", [_]) if has("sync") => {
                Kind::Together { together: Together::SyncBlock { join: None }, mask: all, to: [None; 2] }
            }
            ("bar" | "barrier", [to, _, value]) if has("red") => {
                let join = if has("or") {
                    Join::Or
                } else if has("and") {
                    Join::And
                } else {
                    Join::Add
                };
                let name = value.trim_start_matches('!');
                let join = Some((join, self.register(line, name)?, name != *value));
                Kind::Together { together: Together::SyncBlock { join }, mask: all, to: self.results(line, to)? }
            }
            ("cvta" | "isspacep", [to, from]) => {
                let window = self.constant(if has("shared") { SHARED_WINDOW } else { 0 });
                let (name, sign) = match (first, has("to")) {
                    ("isspacep", _) if has("shared") => ("setp", "ge"),
                    ("isspacep", _) => ("setp", "lt"),
                    (_, true) => ("sub", ""),
                    (_, false) => ("add", ""),
                };
                let limit = if first == "isspacep" { self.constant(SHARED_WINDOW) } else { window };
                let Some(compute) = compute(name, &[sign, "u64"][usize::from(sign.is_empty())..], self.freedom) else {
                    return Ok(false);
                };
                let [from, zero] = self.sources(line, &[from])?;
                Kind::Compute { compute, to: self.register(line, to)?, from: [from, limit, zero, zero] }
            }
            ("mov", [to, from]) if to.starts_with('{') || from.starts_with('{') => {
                let Some(of) = of else { return Ok(false) };
                return self.pack(line, name, guard, of.bits, [to, from]);
            }
            (_, [to, from @ ..]) if !from.is_empty() => {
                let Some(compute) = compute(first, &parts, self.freedom) else { return Ok(false) };
                let mut texts = Vec::new();
                for from in from {
                    texts.push(from.trim_start_matches('!'));
                }
                let mut from: [Register; 4] = self.sources(line, &texts)?;
                for (source, text) in from.iter_mut().zip(operands[1..].iter()) {
                    if text.starts_with('!') {
                        *source = self.negated(line, guard, *source);
                    }
                }
                let [to, other] = self.results(line, to)?;
                if let Some(to) = to {
                    self.push(line, name, guard, Kind::Compute { compute, to, from });
                }
                if let Some(other) = other {
                    // The comparison's opposite; a boolean operation would have to be made after it.
                    if first != "setp" || from[2] != self.constant(0) {
                        return Ok(false);
                    }
                    let Some(to) = to else { return Ok(false) };
                    let negated = self.negated(line, guard, to);
                    let Some(mov) = compute_of("mov.pred", self.freedom) else { return Ok(false) };
                    let zero = self.constant(0);
                    self.push(
                        line,
                        name,
                        guard,
                        Kind::Compute { compute: mov, to: other, from: [negated, zero, zero, zero] },
                    );
                }
                return Ok(true);
            }
            _ => return Ok(false),
        };
        self.push(line, name, guard, kind);
        Ok(true)
    }

    /// A new register with the opposite of a predicate.
    fn negated(&mut self, line: u32, guard: Option<(Register, bool)>, predicate: Register) -> Register {
        let to = self.code.registers.len() as Register;
        self.code.registers.push("a negated predicate".to_owned());
        self.bits.push(1);
        let zero = self.constant(0);
        if let Some(compute) = compute_of("not.pred", self.freedom) {
            self.push(line, "not.pred", guard, Kind::Compute { compute, to, from: [predicate, zero, zero, zero] });
        }
        to
    }

    fn is_parameter(&self, a: &str, b: &str) -> bool {
        [a, b].iter().any(|text| {
            let name = text.trim_start_matches('[').split(['+', ']']).next().unwrap_or_default().trim();
            text.starts_with('[') && (self.symbols.contains_key(name) || name.starts_with('%'))
        })
    }

    /// Writes or reads a parameter of a call, which is a register: of the caller, whose names a function has others for.
    fn argument(
        &mut self,
        line: u32,
        reads: bool,
        guard: Option<(Register, bool)>,
        of: Option<Type>,
        operands: [&str; 2],
    ) -> Result<bool, PtxError> {
        let [registers, place] = if reads { operands } else { [operands[1], operands[0]] };
        let Some(of) = of else { return Ok(false) };
        let place = place.trim_matches(['[', ']']);
        let (name, offset) = place.split_once('+').unwrap_or((place, "0"));
        let name = self.argument_name(name);
        let offset: u32 = offset.trim().parse().unwrap_or(0);
        for (i, register) in (0..).zip(vector(registers)) {
            let place = format!("{name}+{}", offset + i * of.bits / 8);
            let known = self.scopes.iter().rev().find_map(|scope| scope.get(&place)).copied();
            let place = match known {
                Some((place, _)) => place,
                None if reads => return error(line, format!("a parameter that is not written: {place}")),
                // In the scope of the function, since results are read after the scope of the call.
                None => {
                    let place_register = self.declare(&place, of.bits);
                    self.scopes[1].insert(place, (place_register, of.bits));
                    place_register
                }
            };
            let (to, from) = match reads {
                true => (self.register(line, &register)?, place),
                false => (place, self.source(line, &register)?),
            };
            let zero = self.constant(0);
            let Some(compute) = compute("mov", &[&format!("b{}", of.bits)], self.freedom) else { return Ok(false) };
            self.push(line, "mov", guard, Kind::Compute { compute, to, from: [from, zero, zero, zero] });
        }
        Ok(true)
    }

    /// A parameter's name, which is another at each depth of calls.
    fn argument_name(&self, name: &str) -> String {
        let of_caller = self.arguments.last().and_then(|(_, names)| names.get(name));
        of_caller.cloned().unwrap_or_else(|| format!("{name} {}", self.arguments.len()))
    }

    /// Puts a function's statements in the place of its call.
    fn call(&mut self, line: u32, guard: Option<(Register, bool)>, operands: &[&str]) -> Result<(), PtxError> {
        let (names, lists): (Vec<&str>, Vec<&str>) = operands.iter().partition(|operand| !operand.starts_with('('));
        let text = self.text;
        let Some(function) = names.first().and_then(|name| text.functions.get(*name)) else {
            return error(line, format!("a call of no function: {operands:?}"));
        };
        if guard.is_some() || self.arguments.len() > 8 {
            return error(line, "a call that depends on a predicate, or calls too deep");
        }
        let given: Vec<_> =
            lists.iter().flat_map(|list| list.trim_matches(['(', ')']).split(',')).map(str::trim).collect();
        let given = given.into_iter().filter(|name| !name.is_empty()).map(|name| self.argument_name(name));
        let names = function.parameters.iter().map(|parameter| parameter.name.clone());
        let named: HashMap<_, _> = names.zip(given).collect();
        if named.len() != function.parameters.len() {
            return error(line, "a call with other parameters");
        }
        self.expansions += 1;
        self.arguments.push((self.expansions, named));
        self.statements(&function.body)?;
        let end = self.label("return");
        self.labels.insert(end, self.code.instructions.len() as u32);
        self.arguments.pop();
        Ok(())
    }

    /// `mov` between a register and the parts of a vector.
    fn pack(
        &mut self,
        line: u32,
        name: &str,
        guard: Option<(Register, bool)>,
        bits: u32,
        [to, from]: [&str; 2],
    ) -> Result<bool, PtxError> {
        let zero = self.constant(0);
        let parts = vector(if to.starts_with('{') { to } else { from });
        let part_bits = self.constant((bits / parts.len() as u32).into());
        let shifts: Vec<_> =
            (0..parts.len() as u32).map(|i| self.constant((i * bits / parts.len() as u32).into())).collect();
        if to.starts_with('{') {
            let from = self.source(line, from)?;
            for (part, shift) in parts.iter().zip(shifts).filter(|(part, _)| *part != "_") {
                let Some(compute) = compute("bfe", &["u64"], self.freedom) else { return Ok(false) };
                let to = self.register(line, part)?;
                self.push(line, name, guard, Kind::Compute { compute, to, from: [from, shift, part_bits, zero] });
            }
            return Ok(true);
        }
        let to = self.register(line, to)?;
        let parts: Result<Vec<_>, _> = parts.iter().map(|part| self.source(line, part)).collect();
        let mut before = zero;
        for (part, shift) in parts?.into_iter().zip(shifts) {
            let Some(compute) = compute("bfi", &["b64"], self.freedom) else { return Ok(false) };
            self.push(line, name, guard, Kind::Compute { compute, to, from: [part, before, shift, part_bits] });
            before = to;
        }
        Ok(true)
    }

    /// The access of an address as `[%rd1+8]`; `None` if its space is not known.
    fn access(&mut self, line: u32, parts: &[&str], address: &str) -> Result<Option<Access>, PtxError> {
        const QUALIFIERS: [&str; 23] = [
            "param", "shared", "global", "const", "nc", "v2", "v4", "ca", "cg", "cs", "cv", "wb", "wt", "lu",
            "volatile", "relaxed", "acquire", "release", "weak", "cta", "gpu", "sys", "acq_rel",
        ];
        let Some((of, qualifiers)) = parts.split_last() else { return Ok(None) };
        let Some(of) = Type::parse(of) else { return Ok(None) };
        let is_known = |part: &&str| QUALIFIERS.contains(part) || part.starts_with("L");
        let operations = ["cas", "exch", "add", "inc", "dec", "min", "max", "and", "or", "xor", "noftz"];
        if !qualifiers.iter().all(|part| is_known(part) || operations.contains(part)) || qualifiers.contains(&"const") {
            return Ok(None);
        }
        let space = match () {
            () if qualifiers.contains(&"param") => Space::Param,
            () if qualifiers.contains(&"shared") => Space::Shared,
            () if qualifiers.contains(&"global") => Space::Global,
            () => Space::Generic,
        };
        let address = address.trim_matches(['[', ']']);
        let (base, offset) = address.split_once('+').unwrap_or((address, "0"));
        let Some(offset) = integer(offset.trim()) else { return error(line, format!("no address: {address}")) };
        let base = self.source(line, base.trim())?;
        let nc = qualifiers.contains(&"nc");
        Ok(Some(Access { space, base, offset, bytes: of.bits.div_ceil(8), is_signed: of.kind == 's', nc }))
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of an instruction")]
    fn atomic(
        &mut self,
        line: u32,
        name: &str,
        guard: Option<(Register, bool)>,
        parts: &[&str],
        to: Option<&str>,
        address: &str,
        from: &[&str],
    ) -> Result<bool, PtxError> {
        let known = ["cas", "exch", "add", "inc", "dec", "min", "max", "and", "or", "xor"];
        let join = known.into_iter().find(|join| parts.contains(join));
        let of = parts.last().and_then(|of| Type::parse(of));
        let (Some(join), Some(of), Some(access)) = (join, of, self.access(line, parts, address)?) else {
            return Ok(false);
        };
        let to = to.filter(|to| *to != "_").map(|to| self.register(line, to)).transpose()?;
        let from = self.sources(line, from)?;
        self.push(line, name, guard, Kind::Atomic { access, join, of, to, from });
        Ok(true)
    }
}

/// What an instruction of this name computes.
pub(crate) fn compute_of(name: &str, freedom: Freedom) -> Option<Compute> {
    let mut parts = name.split('.');
    let first = parts.next()?;
    compute(first, &parts.collect::<Vec<_>>(), freedom)
}

fn integer(text: &str) -> Option<u64> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let digits = digits.trim_end_matches('U');
    let number = match digits.strip_prefix("0x") {
        Some(hex) => i128::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    Some((sign * number) as u64)
}

/// Operands between commas that are in no brackets.
fn operands(text: &str) -> Vec<String> {
    let mut operands = vec![String::new()];
    let mut depth = 0;
    for character in text.chars() {
        depth += i32::from(matches!(character, '{' | '[' | '(')) - i32::from(matches!(character, '}' | ']' | ')'));
        match character {
            ',' if depth == 0 => operands.push(String::new()),
            _ => operands.last_mut().into_iter().for_each(|operand| operand.push(character)),
        }
    }
    operands.iter().map(|operand| operand.trim().to_owned()).filter(|operand| !operand.is_empty()).collect()
}

/// The registers of `{%r1, %r2}`, or of one.
fn vector(text: &str) -> Vec<String> {
    text.trim_matches(['{', '}']).split(',').map(|name| name.trim().to_owned()).collect()
}

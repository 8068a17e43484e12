//! Instructions of a kernel, decoded: registers are numbers, labels are places, and calls are replaced by the function.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

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
    /// The type of each element.
    pub(crate) of: Type,
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
    Uniform,
    Ballot,
    MatchAny,
    MatchAll,
}

/// What all lanes of a mask do together, or all threads of the block.
#[derive(Debug)]
pub(crate) enum Together {
    SyncWarp,
    /// The value, the argument and the clamp.
    Shuffle(Shuffle, [Register; 3]),
    Join(Join, Register, Type),
    /// `bar`, with the reduction of a predicate, perhaps negated, where there is one.
    SyncBlock(Option<(Join, Register, bool)>),
}

pub(crate) enum Kind {
    Compute(Compute, Register, [Register; 4]),
    /// Registers have a number of bits.
    Load(Access, Vec<(Register, u32)>),
    Store(Access, Vec<Register>),
    Atomic(Access, &'static str, Option<Register>, [Register; 2]),
    /// With the mask of the lanes, and up to two results.
    Together(Together, Register, [Option<Register>; 2]),
    ActiveMask(Register),
    Branch(u32),
    BranchTo(Register, Vec<u32>),
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
    pub parameter_bytes: usize,
    pub(crate) shared_bytes: usize,
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kernel)
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

/// With a message, to which the statement's line is added.
type Decoded<T = ()> = Result<T, String>;

/// The value, if what it is made of is known.
fn known<T>(value: Option<T>) -> Decoded<T> {
    value.ok_or_else(|| "unknown instruction".to_owned())
}

struct Decoder<'a> {
    text: &'a Text,
    freedom: Freedom,
    code: Code,
    /// Registers and their bits, and parameters, innermost scope last.
    scopes: Vec<HashMap<String, Register>>,
    bits: Vec<u32>,
    constants: HashMap<u64, Register>,
    name_numbers: HashMap<String, u32>,
    symbols: HashMap<String, u64>,
    /// The functions being expanded, each with the number of its expansion and what its parameters are in its caller.
    arguments: Vec<(u32, HashMap<String, String>)>,
    expansions: u32,
    labels: HashMap<String, u32>,
    tables: HashMap<String, Vec<String>>,
    /// Branches to labels, whose places are not known yet.
    jumps: Vec<(usize, Vec<String>)>,
    // Of the statement that is being read.
    line: u32,
    name: String,
    guard: Option<(Register, bool)>,
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
            expansions: 0,
            labels: HashMap::new(),
            tables: HashMap::new(),
            jumps: Vec::new(),
            line: 0,
            name: String::new(),
            guard: None,
        }
    }

    fn kernel(mut self, name: &str, function: &Function) -> Result<Code, PtxError> {
        self.code.kernel = name.to_owned();
        for special in SPECIAL {
            self.declare(special, 32);
        }
        for (variables, bytes) in
            [(&self.text.shared, &mut self.code.shared_bytes), (&function.parameters, &mut self.code.parameter_bytes)]
        {
            for variable in variables {
                let at = bytes.next_multiple_of(variable.align);
                self.symbols.insert(variable.name.clone(), at as u64);
                *bytes = at + variable.bytes;
            }
        }
        self.statements(&function.body)?;
        (self.name, self.guard) = ("exit".to_owned(), None);
        self.push(Kind::Exit);
        for (at, labels) in &self.jumps {
            let instruction = &mut self.code.instructions[*at];
            let places: Option<Vec<_>> = labels.iter().map(|label| self.labels.get(label).copied()).collect();
            match (&mut instruction.kind, places) {
                (Kind::Branch(to), Some(places)) => *to = places[0],
                (Kind::BranchTo(_, to), Some(places)) => *to = places,
                _ => return error(instruction.line, format!("no labels: {labels:?}")),
            }
        }
        Ok(self.code)
    }

    fn statements(&mut self, body: &[(u32, Statement)]) -> Result<(), PtxError> {
        for (line, statement) in body {
            match statement {
                Statement::Open => self.scopes.push(HashMap::new()),
                Statement::Close => drop(self.scopes.pop()),
                Statement::Label(label) => drop(self.labels.insert(self.label(label), self.here())),
                Statement::Text(text) => match text.strip_prefix("call") {
                    Some(call) => self.call(*line, call)?,
                    None => {
                        self.line = *line;
                        self.statement(text).or_else(|message| error(*line, format!("{message}: {text}")))?;
                    }
                },
            }
        }
        Ok(())
    }

    /// The place of the next instruction.
    fn here(&self) -> u32 {
        self.code.instructions.len() as u32
    }

    /// A label's name, which is another in each expansion of a function.
    fn label(&self, label: &str) -> String {
        self.arguments.last().map_or_else(|| label.to_owned(), |(expansion, _)| format!("{label} {expansion}"))
    }

    fn declare(&mut self, name: &str, bits: u32) -> Register {
        let register = self.bits.len() as Register;
        self.code.registers.push(name.to_owned());
        self.bits.push(bits);
        let scope = self.scopes.len() - 1;
        self.scopes[scope].insert(name.to_owned(), register);
        register
    }

    /// Adds an instruction with the statement's name and predicate.
    fn push(&mut self, kind: Kind) {
        let names = &mut self.code.names;
        let name = *self.name_numbers.entry(self.name.clone()).or_insert_with(|| {
            names.push(self.name.clone());
            names.len() as u32 - 1
        });
        self.code.instructions.push(Instruction { line: self.line, name, guard: self.guard, kind });
    }

    /// Adds what an instruction of this name computes.
    fn compute(&mut self, name: &str, to: Register, from: &[Register]) -> Decoded {
        let (first, parts) = name.split_once('.').unwrap_or((name, ""));
        let computed = known(compute(first, &parts.split('.').collect::<Vec<_>>(), self.freedom))?;
        let mut sources = [self.constant(0); 4];
        sources.get_mut(..from.len()).ok_or("too many operands")?.copy_from_slice(from);
        self.push(Kind::Compute(computed, to, sources));
        Ok(())
    }

    fn statement(&mut self, text: &str) -> Decoded {
        let mut text = text;
        self.guard = None;
        if let Some(rest) = text.strip_prefix('@') {
            let (guard, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            let name = guard.trim_start_matches('!');
            (self.guard, text) = (Some((self.register(name)?, name != guard)), rest.trim_start());
        }
        let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        self.name = name.replace("::cta", "");
        match name {
            ".reg" => self.registers(rest),
            ".pragma" | ".param" => Ok(()),
            ".branchtargets" => {
                // The label before it, at this place, is the table's name.
                let targets: Vec<_> = rest.split(',').map(|label| self.label(label.trim())).collect();
                let here = self.here();
                let tables = self.labels.iter().filter(|(_, at)| **at == here);
                self.tables.extend(tables.map(|(name, _)| (name.clone(), targets.clone())));
                Ok(())
            }
            _ => {
                let operands = operands(rest);
                self.instruction(&operands.iter().map(String::as_str).collect::<Vec<_>>())
            }
        }
    }

    /// `.reg .b32 %r<8>`, `.reg .b16 low, high`.
    fn registers(&mut self, text: &str) -> Decoded {
        let (of, names) = text.split_once(char::is_whitespace).unwrap_or_default();
        let of = known(of.strip_prefix('.').and_then(Type::parse))?;
        for name in names.split(',').map(str::trim) {
            let (prefix, count) = name.split_once('<').unwrap_or((name, ""));
            match count.trim_end_matches('>').parse::<u32>() {
                Ok(count) => (0..count).for_each(|i| _ = self.declare(&format!("{prefix}{i}"), of.bits)),
                Err(_) => _ = self.declare(name, of.bits),
            }
        }
        Ok(())
    }

    fn register(&self, name: &str) -> Decoded<Register> {
        let found = self.scopes.iter().rev().find_map(|scope| scope.get(name));
        found.copied().ok_or_else(|| format!("no register {name}"))
    }

    fn constant(&mut self, value: u64) -> Register {
        let constants = &mut self.code.constants;
        *self.constants.entry(value).or_insert_with(|| {
            constants.push([value; 32]);
            CONSTANT | (constants.len() as Register - 1)
        })
    }

    /// A source: a register, a number, or the address of a variable.
    fn source(&mut self, text: &str) -> Decoded<Register> {
        let number = match text.as_bytes() {
            [b'0', b'f' | b'F' | b'd' | b'D', ..] => u64::from_str_radix(&text[2..], 16).ok(),
            _ => integer(text),
        };
        match number.or_else(|| self.symbols.get(text).copied()) {
            Some(number) => Ok(self.constant(number)),
            None => self.register(text),
        }
    }

    fn sources<const N: usize>(&mut self, texts: [&str; N]) -> Decoded<[Register; N]> {
        let mut sources = [0; N];
        for (source, text) in sources.iter_mut().zip(texts) {
            *source = self.source(text)?;
        }
        Ok(sources)
    }

    /// Up to two results, as in `%r1|%p1`; `_` is none.
    fn results(&self, text: &str) -> Decoded<[Option<Register>; 2]> {
        let mut results = [None; 2];
        for (result, name) in results.iter_mut().zip(text.split('|').filter(|name| *name != "_")) {
            *result = Some(self.register(name)?);
        }
        Ok(results)
    }

    fn instruction(&mut self, operands: &[&str]) -> Decoded {
        let name = self.name.clone();
        let (first, parts) = name.split_once('.').unwrap_or((&name, ""));
        let parts: Vec<_> = parts.split('.').collect();
        let has = |part: &str| parts.contains(&part);
        let of = parts.last().and_then(|of| Type::parse(of));
        let kind = match (first, operands) {
            ("bra", [label]) => self.jump(vec![self.label(label)], Kind::Branch(0)),
            ("brx", [index, table]) => {
                let labels = self.tables.get(&self.label(table)).cloned().ok_or("no table of targets")?;
                let index = self.source(index)?;
                self.jump(labels, Kind::BranchTo(index, Vec::new()))
            }
            // The end of an expanded function is where its caller goes on.
            ("ret", []) if !self.arguments.is_empty() => self.jump(vec![self.label("return")], Kind::Branch(0)),
            ("ret" | "exit", []) => Kind::Exit,
            ("membar" | "fence" | "prefetch" | "prefetchu" | "nanosleep", _) => Kind::Nothing,
            ("ld", [to, place]) if has("param") && !self.is_parameter(place) => return self.argument(place, to, true),
            ("st", [place, from]) if has("param") => return self.argument(place, from, false),
            ("ld" | "ldu", [to, address]) => {
                let to: Decoded<Vec<_>> = vector(to).map(|name| self.register(name)).collect();
                let to = to?.into_iter().map(|to| (to, self.bits[to as usize])).collect();
                Kind::Load(self.access(&parts, address)?, to)
            }
            ("st", [address, from]) => {
                let from: Decoded<Vec<_>> = vector(from).map(|name| self.source(name)).collect();
                Kind::Store(self.access(&parts, address)?, from?)
            }
            ("atom", [to, address, from @ ..]) => self.atomic(&parts, to, address, from)?,
            ("red", [address, from @ ..]) => self.atomic(&parts, "_", address, from)?,
            ("shfl", [to, value, argument, clamp, mask]) if has("sync") => {
                let mode = match parts[1] {
                    "up" => Shuffle::Up,
                    "down" => Shuffle::Down,
                    "bfly" => Shuffle::Xor,
                    _ => Shuffle::Index,
                };
                let shuffle = Together::Shuffle(mode, self.sources([value, argument, clamp])?);
                Kind::Together(shuffle, self.source(mask)?, self.results(to)?)
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
                    _ => return known(None),
                };
                let join = Together::Join(join, self.source(value)?, known(of)?);
                Kind::Together(join, self.source(mask)?, self.results(to)?)
            }
            ("activemask", [to]) => Kind::ActiveMask(self.register(to)?),
            ("bar" | "barrier", [mask]) if has("warp") => {
                Kind::Together(Together::SyncWarp, self.source(mask)?, [None; 2])
            }
            // Of all threads of the block only.
            ("bar" | "barrier", [_]) if has("sync") => {
                Kind::Together(Together::SyncBlock(None), self.constant(u32::MAX.into()), [None; 2])
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
                let reduction = Together::SyncBlock(Some((join, self.register(name)?, name != *value)));
                Kind::Together(reduction, self.constant(u32::MAX.into()), self.results(to)?)
            }
            ("cvta", [to, from]) => {
                let window = self.constant(if has("shared") { SHARED_WINDOW } else { 0 });
                let [to, from] = [self.register(to)?, self.source(from)?];
                return self.compute(if has("to") { "sub.u64" } else { "add.u64" }, to, &[from, window]);
            }
            ("isspacep", [to, from]) => {
                let window = self.constant(SHARED_WINDOW);
                let [to, from] = [self.register(to)?, self.source(from)?];
                return self.compute(if has("shared") { "setp.ge.u64" } else { "setp.lt.u64" }, to, &[from, window]);
            }
            ("mov", [to, from]) if to.starts_with('{') => return self.unpack(known(of)?.bits, to, from),
            ("mov", [to, from]) if from.starts_with('{') => return self.pack(known(of)?.bits, to, from),
            (_, [to, texts @ ..]) if !texts.is_empty() => {
                let mut from = Vec::new();
                for text in texts {
                    let name = text.trim_start_matches('!');
                    let source = self.source(name)?;
                    from.push(if name == *text { source } else { self.opposite(source)? });
                }
                let [to, other] = self.results(to)?;
                let to = to.ok_or("no result")?;
                self.compute(&name, to, &from)?;
                return match other {
                    None => Ok(()),
                    // The comparison's opposite; a boolean operation would have to be made after it.
                    Some(other) if first == "setp" && from.len() == 2 => self.compute("not.pred", other, &[to]),
                    Some(_) => known(None),
                };
            }
            _ => return known(None),
        };
        self.push(kind);
        Ok(())
    }

    fn jump(&mut self, labels: Vec<String>, kind: Kind) -> Kind {
        self.jumps.push((self.code.instructions.len(), labels));
        kind
    }

    /// A new register with the opposite of a predicate.
    fn opposite(&mut self, predicate: Register) -> Decoded<Register> {
        let to = self.declare("", 1);
        self.compute("not.pred", to, &[predicate]).map(|()| to)
    }

    /// Whether an address is in the kernel's own parameters.
    fn is_parameter(&self, address: &str) -> bool {
        let name = address.trim_start_matches('[').split(['+', ']']).next().unwrap_or_default();
        self.arguments.is_empty() && (self.symbols.contains_key(name) || name.starts_with('%'))
    }

    /// A parameter's name, which is another at each depth of calls.
    fn argument_name(&self, name: &str) -> String {
        let of_caller = self.arguments.last().and_then(|(_, names)| names.get(name));
        of_caller.cloned().unwrap_or_else(|| format!("{name} {}", self.arguments.len()))
    }

    /// Reads or writes a parameter of a call, which is a register.
    fn argument(&mut self, place: &str, registers: &str, reads: bool) -> Decoded {
        let of = known(self.name.rsplit('.').next().and_then(Type::parse))?;
        let place = place.trim_matches(['[', ']']);
        let (name, offset) = place.split_once('+').unwrap_or((place, "0"));
        let (name, offset) = (self.argument_name(name), known(integer(offset))?);
        for (i, register) in (0..).zip(vector(registers)) {
            let place = format!("{name}+{}", offset + i * u64::from(of.bits / 8));
            // In the scope of the function, since results are read after the scope of the call.
            let place = match self.register(&place) {
                Err(_) if !reads => {
                    let new = self.declare(&place, of.bits);
                    self.scopes[1].insert(place, new);
                    new
                }
                place => place?,
            };
            let register = self.source(register)?;
            let (to, from) = if reads { (register, place) } else { (place, register) };
            self.compute(&format!("mov.b{}", of.bits), to, &[from])?;
        }
        Ok(())
    }

    /// Puts a function's statements in the place of its call: `(results), name, (arguments)`.
    fn call(&mut self, line: u32, text: &str) -> Result<(), PtxError> {
        let operands = operands(text.trim_start_matches(".uni"));
        let (lists, names): (Vec<_>, Vec<_>) = operands.iter().partition(|operand| operand.starts_with('('));
        let given = lists.iter().flat_map(|list| list.trim_matches(['(', ')']).split(',')).map(str::trim);
        let given: Vec<_> = given.filter(|name| !name.is_empty()).map(|name| self.argument_name(name)).collect();
        let text = self.text;
        let function = names.first().and_then(|name| text.functions.get(*name));
        let Some(function) = function.filter(|function| function.parameters.len() == given.len()) else {
            return error(line, format!("a call of no function, or with other parameters: {operands:?}"));
        };
        if self.arguments.len() > 8 {
            return error(line, "calls too deep");
        }
        let names = function.parameters.iter().map(|parameter| parameter.name.clone());
        self.expansions += 1;
        self.arguments.push((self.expansions, names.zip(given).collect()));
        self.statements(&function.body)?;
        self.labels.insert(self.label("return"), self.here());
        self.arguments.pop();
        Ok(())
    }

    fn unpack(&mut self, bits: u32, to: &str, from: &str) -> Decoded {
        let from = self.source(from)?;
        let part_bits = bits / vector(to).count() as u32;
        let width = self.constant(part_bits.into());
        for (i, part) in (0..).zip(vector(to)).filter(|(_, part)| *part != "_") {
            let (to, shift) = (self.register(part)?, self.constant((i * part_bits).into()));
            self.compute("bfe.u64", to, &[from, shift, width])?;
        }
        Ok(())
    }

    fn pack(&mut self, bits: u32, to: &str, from: &str) -> Decoded {
        let to = self.register(to)?;
        let part_bits = bits / vector(from).count() as u32;
        let (mut before, width) = (self.constant(0), self.constant(part_bits.into()));
        for (i, part) in (0..).zip(vector(from)) {
            let (part, shift) = (self.source(part)?, self.constant((i * part_bits).into()));
            self.compute("bfi.b64", to, &[part, before, shift, width])?;
            before = to;
        }
        Ok(())
    }

    /// The access of an address as `[%rd1+8]`.
    fn access(&mut self, parts: &[&str], address: &str) -> Decoded<Access> {
        const QUALIFIERS: [&str; 33] = [
            "param", "shared", "global", "nc", "v2", "v4", "ca", "cg", "cs", "cv", "wb", "wt", "lu", "volatile",
            "relaxed", "acquire", "release", "acq_rel", "weak", "cta", "gpu", "sys", "cas", "exch", "add", "inc",
            "dec", "min", "max", "and", "or", "xor", "noftz",
        ];
        let (of, qualifiers) = known(parts.split_last())?;
        let is_known = qualifiers.iter().all(|part| QUALIFIERS.contains(part) || part.starts_with('L'));
        let of = known(Type::parse(of).filter(|_| is_known))?;
        let has = |part: &str| qualifiers.contains(&part);
        let space = match () {
            () if has("param") => Space::Param,
            () if has("shared") => Space::Shared,
            () if has("global") => Space::Global,
            () => Space::Generic,
        };
        let address = address.trim_matches(['[', ']']);
        let (base, offset) = address.split_once('+').unwrap_or((address, "0"));
        let (base, offset) = (self.source(base.trim())?, known(integer(offset.trim()))?);
        Ok(Access { space, base, offset, of, nc: has("nc") })
    }

    fn atomic(&mut self, parts: &[&str], to: &str, address: &str, from: &[&str]) -> Decoded<Kind> {
        let joins = ["cas", "exch", "add", "inc", "dec", "min", "max", "and", "or", "xor"];
        let join = known(joins.into_iter().find(|join| parts.contains(join)))?;
        let from = match *from {
            [a] => self.sources([a, "0"])?,
            [a, b] => self.sources([a, b])?,
            _ => return known(None),
        };
        let [to, _] = self.results(to)?;
        Ok(Kind::Atomic(self.access(parts, address)?, join, to, from))
    }
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
        depth += i32::from("{[(".contains(character)) - i32::from("}])".contains(character));
        match character {
            ',' if depth == 0 => operands.push(String::new()),
            _ => operands.last_mut().into_iter().for_each(|operand| operand.push(character)),
        }
    }
    operands.iter().map(|operand| operand.trim().to_owned()).filter(|operand| !operand.is_empty()).collect()
}

/// The registers of `{%r1, %r2}`, or one.
fn vector(text: &str) -> impl Iterator<Item = &str> {
    text.trim_matches(['{', '}']).split(',').map(str::trim)
}

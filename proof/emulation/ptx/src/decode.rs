//! Decodes the instructions of a kernel. A call becomes the statements of its function.

use std::collections::{BTreeMap, HashMap};

use crate::arithmetic::{Type, compute};
use crate::code::{Access, CONSTANT, Code, Instruction, Kind, Register, Shuffle, Space};
use crate::text::{Function, PtxError, Statement, Text, error, read};

/// Registers that have a value from the beginning, in the order of their numbers.
const SPECIAL: [&str; 3] = ["%tid.x", "%ctaid.x", "%nctaid.x"];

/// Reads a module: its kernels by name. `canonical_neg`: see [`Emulation`](crate::Emulation).
///
/// # Errors
/// [`PtxError`], as for an opcode that is not known.
pub fn kernels(ptx: &str, canonical_neg: bool) -> Result<BTreeMap<String, Code>, PtxError> {
    let text = read(ptx)?;
    let entries = text.functions.iter().filter(|(_, function)| function.is_entry);
    entries
        .map(|(name, function)| Ok((name.clone(), Decoder::new(&text, canonical_neg).kernel(name, function)?)))
        .collect()
}

/// With a message, to which the statement and its line are added.
type Decoded<T = ()> = Result<T, String>;

/// The value, if what it is made of is known.
fn known<T>(value: Option<T>) -> Decoded<T> {
    value.ok_or_else(|| "unknown instruction".to_owned())
}

struct Decoder<'a> {
    text: &'a Text,
    canonical_neg: bool,
    code: Code,
    /// Registers by name, a map for each scope, the innermost last.
    scopes: Vec<HashMap<String, Register>>,
    constants: HashMap<u64, Register>,
    name_numbers: HashMap<String, u32>,
    /// The addresses of variables in shared memory and of the kernel's parameters.
    symbols: HashMap<String, u64>,
    /// The parameters that are set for calls.
    given: HashMap<String, Register>,
    /// The function that is put in the place of a call: the number of the call, and the function's parameters.
    called: Option<(u32, HashMap<String, Register>)>,
    calls: u32,
    labels: HashMap<String, u32>,
    /// Branches to labels, whose places are not known yet.
    jumps: Vec<(usize, String)>,
    // Of the statement that is being read.
    line: u32,
    name: String,
    guard: Option<(Register, bool)>,
}

impl<'a> Decoder<'a> {
    fn new(text: &'a Text, canonical_neg: bool) -> Self {
        Self {
            text,
            canonical_neg,
            code: Code::default(),
            scopes: vec![HashMap::new()],
            constants: HashMap::new(),
            name_numbers: HashMap::new(),
            symbols: HashMap::new(),
            given: HashMap::new(),
            called: None,
            calls: 0,
            labels: HashMap::new(),
            jumps: Vec::new(),
            line: 0,
            name: String::new(),
            guard: None,
        }
    }

    fn kernel(mut self, name: &str, function: &Function) -> Result<Code, PtxError> {
        self.code.kernel = name.to_owned();
        SPECIAL.into_iter().for_each(|special| self.declare(special.to_owned()));
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
        for (at, label) in &self.jumps {
            let instruction = &mut self.code.instructions[*at];
            match self.labels.get(label) {
                Some(&place) => instruction.kind = Kind::Branch(place),
                None => return error(instruction.line, format!("no label {label}")),
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
                Statement::Text(text) => {
                    self.line = *line;
                    self.statement(text).or_else(|message| error(*line, format!("{message}: {text}")))?;
                }
            }
        }
        Ok(())
    }

    /// The place of the next instruction.
    fn here(&self) -> u32 {
        self.code.instructions.len() as u32
    }

    /// A label's name, which is another in each call of a function.
    fn label(&self, label: &str) -> String {
        self.called.as_ref().map_or_else(|| label.to_owned(), |(call, _)| format!("{label} {call}"))
    }

    fn declare(&mut self, name: String) {
        let (scope, register) = (self.scopes.len() - 1, self.code.registers.len() as Register);
        self.scopes[scope].insert(name.clone(), register);
        self.code.registers.push(name);
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
    fn compute(&mut self, name: &str, to: &str, from: &[Register]) -> Decoded {
        let computed = known(compute(name, self.canonical_neg))?;
        let mut sources = [self.constant(0); 4];
        sources.get_mut(..from.len()).ok_or("too many operands")?.copy_from_slice(from);
        let to = self.register(to)?;
        self.push(Kind::Compute(computed, to, sources));
        Ok(())
    }

    fn statement(&mut self, text: &str) -> Decoded {
        let mut text = text;
        self.guard = None;
        if let Some(rest) = text.strip_prefix('@') {
            let (guard, rest) = known(rest.split_once(char::is_whitespace))?;
            let name = guard.trim_start_matches('!');
            (self.guard, text) = (Some((self.register(name)?, name != guard)), rest.trim_start());
        }
        let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        match name {
            ".reg" => self.registers(rest),
            ".pragma" | ".param" => Ok(()),
            _ => {
                name.clone_into(&mut self.name);
                let operands = operands(rest);
                self.instruction(&operands.iter().map(String::as_str).collect::<Vec<_>>())
            }
        }
    }

    /// `.reg .b32 %r<8>`, `.reg .b16 low, high`.
    fn registers(&mut self, text: &str) -> Decoded {
        let (_, names) = known(text.split_once(char::is_whitespace))?;
        for name in names.split(',').map(str::trim) {
            match name.trim_end_matches('>').split_once('<') {
                Some((prefix, count)) => {
                    (0..known(count.parse::<u32>().ok())?).for_each(|i| self.declare(format!("{prefix}{i}")));
                }
                None => self.declare(name.to_owned()),
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
        let number = match text.strip_prefix("0f") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => integer(text),
        };
        match number.or_else(|| self.symbols.get(text).copied()) {
            Some(number) => Ok(self.constant(number)),
            None => self.register(text),
        }
    }

    fn sources<'t>(&mut self, texts: impl IntoIterator<Item = &'t str>) -> Decoded<Vec<Register>> {
        texts.into_iter().map(|text| self.source(text)).collect()
    }

    fn instruction(&mut self, operands: &[&str]) -> Decoded {
        let name = self.name.clone();
        let (first, parts) = name.split_once('.').unwrap_or((&name, ""));
        let parts: Vec<_> = parts.split('.').collect();
        let kind = match (first, &parts[..], operands) {
            ("bra", _, [label]) => self.jump(label),
            // The end of a function is where its caller goes on.
            ("ret", _, []) if self.called.is_some() => self.jump("return"),
            ("ret", _, []) => Kind::Exit,
            ("call", ["uni"], [function, arguments]) => return self.call(function, arguments),
            ("st", ["param", _], [place, from]) => {
                let from = self.source(from)?;
                self.given.insert(parameter(place).to_owned(), from);
                return Ok(());
            }
            ("ld", ["param", of], [to, place]) if self.called.is_some() => {
                let (_, parameters) = self.called.as_ref().ok_or("no function")?;
                let from = *parameters.get(parameter(place)).ok_or("no such parameter")?;
                return self.compute(&format!("mov.{of}"), to, &[from]);
            }
            ("ld", _, [to, address]) => {
                let to: Decoded<Vec<_>> = vector(to).map(|name| self.register(name)).collect();
                Kind::Load(self.access(&parts, address)?, to?)
            }
            ("st", _, [address, from]) => {
                let from = self.sources(vector(from))?;
                Kind::Store(self.access(&parts, address)?, from)
            }
            ("atom", ["global", "cas", of], [to, address, old, new]) => {
                let numbers = [self.source(old)?, self.source(new)?];
                Kind::CompareAndSwap(self.access(&["global", of], address)?, self.register(to)?, numbers)
            }
            ("shfl", ["sync", mode, "b32"], [to, value, argument, clamp, mask]) => {
                let mode = match *mode {
                    "up" => Shuffle::Up,
                    "down" => Shuffle::Down,
                    "bfly" => Shuffle::Xor,
                    "idx" => Shuffle::Index,
                    _ => return known(None),
                };
                let (to, is_valid) = to.split_once('|').unwrap_or((to, ""));
                if is_valid.is_empty() {
                    self.declare(String::new());
                }
                let [value, argument, clamp, mask] = [value, argument, clamp, mask].map(|text| self.source(text));
                let results = [self.register(to)?, self.register(is_valid)?];
                Kind::Shuffle(mode, [value?, argument?, clamp?, mask?], results)
            }
            ("bar", ["warp", "sync"], [mask]) => Kind::SyncWarp(self.source(mask)?),
            ("bar", ["sync"], ["0"]) => Kind::SyncBlock(None),
            ("bar", ["red", "or", "pred"], [to, "0", value]) => {
                Kind::SyncBlock(Some([self.register(to)?, self.register(value)?]))
            }
            ("mov", [of], [to, from]) if to.starts_with('{') => return self.unpack(of, to, from),
            ("mov", [of], [to, from]) if from.starts_with('{') => return self.pack(of, to, from),
            (_, _, [to, from @ ..]) => {
                let from = self.sources(from.iter().copied())?;
                return self.compute(&name, to, &from);
            }
            _ => return known(None),
        };
        self.push(kind);
        Ok(())
    }

    fn jump(&mut self, label: &str) -> Kind {
        self.jumps.push((self.code.instructions.len(), self.label(label)));
        Kind::Branch(0)
    }

    /// Puts a function's statements in the place of its call with `(arguments)`.
    fn call(&mut self, name: &str, arguments: &str) -> Decoded {
        let text = self.text;
        let function = text.functions.get(name).filter(|_| self.called.is_none()).ok_or("a call that is not known")?;
        let given = arguments.trim_matches(['(', ')']).split(',').map(|name| self.given.get(name.trim()).copied());
        let names = function.parameters.iter().map(|parameter| parameter.name.clone());
        let parameters = names.zip(given).map(|(name, given)| Some((name, given?))).collect::<Option<HashMap<_, _>>>();
        self.calls += 1;
        self.called = Some((self.calls, parameters.ok_or("a parameter is not set")?));
        self.statements(&function.body).map_err(|error| error.to_string())?;
        self.labels.insert(self.label("return"), self.here());
        self.called = None;
        Ok(())
    }

    fn unpack(&mut self, of: &str, to: &str, from: &str) -> Decoded {
        let from = self.source(from)?;
        let bits = known(Type::parse(of))?.bits / vector(to).count() as u32;
        let width = self.constant(bits.into());
        for (i, part) in (0..).zip(vector(to)) {
            let shift = self.constant((i * bits).into());
            self.compute("bfe.u64", part, &[from, shift, width])?;
        }
        Ok(())
    }

    fn pack(&mut self, of: &str, to: &str, from: &str) -> Decoded {
        let bits = known(Type::parse(of))?.bits / vector(from).count() as u32;
        let (mut before, width) = (self.constant(0), self.constant(bits.into()));
        for (i, part) in (0..).zip(vector(from)) {
            let (part, shift) = (self.source(part)?, self.constant((i * bits).into()));
            self.compute("bfi.b64", to, &[part, before, shift, width])?;
            before = self.register(to)?;
        }
        Ok(())
    }

    /// The access of an address as `[%rd1+8]`, for an instruction of these parts.
    fn access(&mut self, parts: &[&str], address: &str) -> Decoded<Access> {
        let [space, how @ .., of] = parts else { return known(None) };
        let space = match *space {
            "param" => Space::Param,
            "shared" => Space::Shared,
            "global" => Space::Global,
            _ => return known(None),
        };
        let is_known = how.iter().all(|part| ["nc", "cs", "v2", "v4"].contains(part));
        // Shorter signed numbers would have to be extended.
        let of = Type::parse(of).filter(|of| is_known && (of.kind != 's' || of.bits == 64));
        let address = address.trim_matches(['[', ']']);
        let (base, offset) = address.split_once('+').unwrap_or((address, "0"));
        let (base, offset) = (self.source(base.trim())?, known(integer(offset.trim()))?);
        Ok(Access { space, base, offset, of: known(of)?, nc: how.contains(&"nc") })
    }
}

/// The name of a parameter in `[name]` or `[name+0]`.
fn parameter(place: &str) -> &str {
    place.trim_matches(['[', ']']).trim_end_matches("+0")
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

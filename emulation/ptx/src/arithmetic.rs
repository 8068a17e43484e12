//! What instructions compute, for 32 lanes at once. A register of any width is the low bits of a `u64`, the others zero;
//! a predicate is 0 or 1.

use half::{bf16, f16};

/// A register of a warp.
pub(crate) type Lanes = [u64; 32];

/// Computes a register of up to four others.
pub(crate) type Compute = Box<dyn Fn(&mut Lanes, [&Lanes; 4]) + Send + Sync>;

/// What may differ from one GPU to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Freedom {
    /// Units in the last place that `rcp.approx` is off, -1 to 1.
    pub reciprocal: i32,
    /// Whether `neg` of a NaN gives the canonical NaN, not that with the other sign.
    pub canonical_neg: bool,
}

const NAN32: u32 = 0x7fff_ffff;

fn lanes(f: impl Fn(u64, u64, u64, u64) -> u64 + Send + Sync + 'static) -> Option<Compute> {
    Some(Box::new(move |to: &mut Lanes, [a, b, c, d]: [&Lanes; 4]| {
        for i in 0..32 {
            to[i] = f(a[i], b[i], c[i], d[i]);
        }
    }))
}

fn one(f: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Option<Compute> {
    lanes(move |a, _, _, _| f(a))
}

fn two(f: impl Fn(u64, u64) -> u64 + Send + Sync + 'static) -> Option<Compute> {
    lanes(move |a, b, _, _| f(a, b))
}

/// A type of PTX: its kind (`u`, `s`, `b`, `f`; `h` for bf16, `p` for a predicate) and its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Type {
    pub(crate) kind: char,
    pub(crate) bits: u32,
}

impl Type {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (kind, bits) = match name {
            "pred" => ('p', 1),
            "bf16" => ('h', 16),
            _ => (name.chars().next()?, name.get(1..)?.parse().ok()?),
        };
        ("usbfhp".contains(kind) && bits <= 64).then_some(Self { kind, bits })
    }

    pub(crate) fn bytes(self) -> u32 {
        self.bits.div_ceil(8)
    }

    pub(crate) fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits)
    }

    fn is_float(self) -> bool {
        matches!(self.kind, 'f' | 'h')
    }

    pub(crate) fn signed(self, x: u64) -> i64 {
        (x << (64 - self.bits)).cast_signed() >> (64 - self.bits)
    }

    /// The integer's value.
    fn wide(self, x: u64) -> i128 {
        if self.kind == 's' { self.signed(x).into() } else { (x & self.mask()).into() }
    }

    fn least(self) -> i128 {
        if self.kind == 's' { -(1 << (self.bits - 1)) } else { 0 }
    }

    fn most(self) -> i128 {
        (1 << (self.bits - u32::from(self.kind == 's'))) - 1
    }

    /// The value of a float.
    fn value(self, x: u64) -> f64 {
        match (self.kind, self.bits) {
            ('h', _) => bf16::from_bits(x as u16).to_f64(),
            (_, 16) => f16::from_bits(x as u16).to_f64(),
            (_, 32) => f32::from_bits(x as u32).into(),
            _ => f64::from_bits(x),
        }
    }

    /// The float nearest to a number, ties to even.
    fn nearest(self, x: f64) -> u64 {
        match (self.kind, self.bits) {
            (_, 16) if x.is_nan() => 0x7fff,
            ('h', _) => bf16::from_f32(odd32(x)).to_bits().into(),
            (_, 16) => f16::from_f32(odd32(x)).to_bits().into(),
            (_, 32) => nan32(x as f32),
            _ if x.is_nan() => 0x7fff_ffff_ffff_ffff,
            _ => x.to_bits(),
        }
    }

    /// The float that a rounding mode gives: one next to the nearest where that is on the wrong side.
    fn rounded(self, x: f64, mode: &str) -> u64 {
        let bits = self.nearest(x);
        let nearest = self.value(bits);
        let wrong = match mode {
            "rz" => nearest.abs() > x.abs(),
            "rm" => nearest > x,
            "rp" => nearest < x,
            _ => false,
        };
        if !wrong || x.is_nan() {
            return bits;
        }
        let sign = 1 << (self.bits - 1);
        let smaller = if mode == "rm" { x > 0.0 } else { mode == "rz" || x < 0.0 };
        match smaller {
            true => bits - 1,
            // Below zero from a positive zero, or above from a negative one.
            false if bits & !sign == 0 => 1 | if x < 0.0 { sign } else { 0 },
            false => bits + 1,
        }
    }
}

/// A float32 next to a number, with a last bit of 1 unless it is exact, so that it can be rounded again.
fn odd32(x: f64) -> f32 {
    let near = x as f32;
    match () {
        () if f64::from(near) == x || near.is_infinite() || near.to_bits() & 1 == 1 => near,
        () if f64::from(near).abs() > x.abs() => f32::from_bits(near.to_bits() - 1),
        () => f32::from_bits(near.to_bits() + 1),
    }
}

fn nan32(x: f32) -> u64 {
    u64::from(if x.is_nan() { NAN32 } else { x.to_bits() })
}

fn f(x: u64) -> f32 {
    f32::from_bits(x as u32)
}

fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// An operation on float32, with what `.ftz` and `.sat` say.
fn float32(has: impl Fn(&str) -> bool, of: impl Fn(f32, f32, f32) -> f32 + Send + Sync + 'static) -> Option<Compute> {
    match (has("ftz"), has("sat")) {
        (false, false) => lanes(move |a, b, c, _| nan32(of(f(a), f(b), f(c)))),
        (ftz, sat) => lanes(move |a, b, c, _| {
            let [a, b, c] = [a, b, c].map(|x| if ftz { flushed(f(x)) } else { f(x) });
            let x = of(a, b, c);
            let x = if sat { if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) } } else { x };
            nan32(if ftz { flushed(x) } else { x })
        }),
    }
}

/// `a * b + c` for a product that is exact, rounded so that the result can be rounded again.
fn odd_sum(product: f64, c: f64) -> f64 {
    let sum = product + c;
    let part = sum - product;
    let error = (product - (sum - part)) + (c - part);
    let is_exact = error == 0.0 || !sum.is_finite() || sum.to_bits() & 1 == 1;
    let next = if (error > 0.0) == (sum > 0.0) { sum.to_bits().wrapping_add(1) } else { sum.to_bits().wrapping_sub(1) };
    if is_exact { sum } else { f64::from_bits(next) }
}

fn least(a: f64, b: f64) -> f64 {
    match () {
        () if a.is_nan() => b,
        () if b.is_nan() => a,
        () if a == b => {
            if a.is_sign_negative() {
                a
            } else {
                b
            }
        }
        () => a.min(b),
    }
}

/// What an opcode computes, given the parts of its name behind the first; `None` if it is not known.
pub(crate) fn compute(name: &str, parts: &[&str], freedom: Freedom) -> Option<Compute> {
    let has = |part: &str| parts.contains(&part);
    if name == "cvt" {
        return convert(parts);
    }
    let last = *parts.last()?;
    if let Some(of) = last.strip_suffix("x2").filter(|of| *of == "f16" || *of == "bf16") {
        // Both halves, each as the scalar instruction.
        let halves = [parts[..parts.len() - 1].to_vec(), vec![of]].concat();
        let half = compute(name, &halves, freedom)?;
        return Some(Box::new(move |to, from| {
            let low = from.map(|lanes| lanes.map(|x| x & 0xffff));
            let high = from.map(|lanes| lanes.map(|x| x >> 16));
            let mut upper = [0; 32];
            half(to, low.each_ref());
            half(&mut upper, high.each_ref());
            to.iter_mut().zip(upper).for_each(|(to, upper)| *to |= upper << 16);
        }));
    }
    let of = Type::parse(last)?;
    let mask = of.mask();
    match name {
        "mov" | "cvta" => one(move |a| a & mask),
        "selp" => lanes(move |a, b, p, _| (if p != 0 { a } else { b }) & mask),
        "slct" => {
            // The last part is the type of the third operand.
            let mask = Type::parse(parts[parts.len() - 2])?.mask();
            match of.is_float() {
                true => lanes(move |a, b, c, _| (if of.value(c) >= 0.0 { a } else { b }) & mask),
                false => lanes(move |a, b, c, _| (if of.signed(c) >= 0 { a } else { b }) & mask),
            }
        }
        "and" => two(|a, b| a & b),
        "or" => two(move |a, b| (a | b) & mask),
        "xor" => two(move |a, b| (a ^ b) & mask),
        "not" => one(move |a| !a & mask),
        "cnot" => one(move |a| u64::from(a & mask == 0)),
        "lop3" => lanes(|a, b, c, table| {
            let bit = |i: u32| table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1;
            (0..32).map(|i| bit(i) << i).sum()
        }),
        "shl" => two(move |a, n| if n as u32 >= of.bits { 0 } else { a << n as u32 & mask }),
        "shr" if of.kind == 's' => {
            two(move |a, n| (of.signed(a) >> (n as u32).min(of.bits - 1)).cast_unsigned() & mask)
        }
        "shr" => two(move |a, n| if n as u32 >= of.bits { 0 } else { (a & mask) >> n as u32 }),
        "shf" => {
            let (left, wrap) = (has("l"), has("wrap"));
            lanes(move |a, b, n, _| {
                let n = if wrap { n & 31 } else { u64::from(n as u32).min(32) };
                let both = b << 32 | a & 0xffff_ffff;
                if left { both << n >> 32 } else { both >> n & 0xffff_ffff }
            })
        }
        "bfe" if of.kind != 's' => lanes(move |a, from, len, _| {
            let (from, len) = (from as u32 & 0xff, len as u32 & 0xff);
            let field = if len >= 64 { u64::MAX } else { (1 << len) - 1 };
            if from >= of.bits { 0 } else { (a & mask) >> from & field }
        }),
        "bfe" => lanes(move |a, from, len, _| {
            let (from, len) = (from as u32 & 0xff, len as u32 & 0xff);
            let bit = |i: u32| a >> i.min(of.bits - 1) & 1;
            let sign = if len > 0 { bit(from + len - 1) } else { 0 };
            (0..of.bits).map(|i| if i < len && from + i < of.bits { bit(from + i) } else { sign } << i).sum()
        }),
        "bfi" => lanes(move |a, b, from, len| {
            let (from, len) = (from as u32 & 0xff, len as u32 & 0xff);
            let field = if len >= 64 { u64::MAX } else { (1 << len) - 1 };
            let field = if from >= 64 { 0 } else { field << from } & mask;
            (b & !field | if from >= 64 { 0 } else { a << from } & field) & mask
        }),
        "prmt" if parts.len() == 1 => lanes(|a, b, selector, _| {
            let bytes = b << 32 | a & 0xffff_ffff;
            let byte = |i: u32| {
                let choice = selector >> (4 * i) & 15;
                let byte = bytes >> (8 * (choice & 7)) & 0xff;
                let byte = if choice < 8 { byte } else { 0xff * (byte >> 7) };
                byte << (8 * i)
            };
            byte(0) | byte(1) | byte(2) | byte(3)
        }),
        "popc" => one(move |a| (a & mask).count_ones().into()),
        "clz" => one(move |a| ((a & mask).leading_zeros() - (64 - of.bits)).into()),
        "brev" => one(move |a| a.reverse_bits() >> (64 - of.bits)),
        "setp" => comparison(parts, of),
        "set" => {
            let to = Type::parse(parts[parts.len() - 2])?;
            let one = if to.is_float() { to.nearest(1.0) } else { to.mask() };
            let compare = comparison(&[&parts[..parts.len() - 2], &parts[parts.len() - 1..]].concat(), of)?;
            Some(Box::new(move |to, from| {
                compare(to, from);
                to.iter_mut().for_each(|to| *to *= one);
            }))
        }
        _ if of.is_float() => float(name, parts, of, freedom),
        _ => integer(name, parts, of),
    }
}

fn integer(name: &str, parts: &[&str], of: Type) -> Option<Compute> {
    let has = |part: &str| parts.contains(&part);
    let mask = of.mask();
    let is_signed = of.kind == 's';
    if has("cc") || name == "addc" || name == "subc" {
        return None;
    }
    match name {
        "add" | "sub" if has("sat") => {
            let sign = if name == "add" { 1 } else { -1 };
            two(move |a, b| (of.wide(a) + sign * of.wide(b)).clamp(of.least(), of.most()) as u64 & mask)
        }
        "add" => two(move |a, b| a.wrapping_add(b) & mask),
        "sub" => two(move |a, b| a.wrapping_sub(b) & mask),
        "neg" => one(move |a| a.wrapping_neg() & mask),
        "abs" => one(move |a| of.signed(a).unsigned_abs() & mask),
        "mul" | "mad" if has("lo") => {
            let add = if name == "mad" { mask } else { 0 };
            lanes(move |a, b, c, _| a.wrapping_mul(b).wrapping_add(c & add) & mask)
        }
        "mul" | "mad" if has("wide") => {
            let add = if name == "mad" { u64::MAX } else { 0 };
            let wide = Type { kind: of.kind, bits: 2 * of.bits }.mask();
            match is_signed {
                true => lanes(move |a, b, c, _| {
                    of.signed(a).wrapping_mul(of.signed(b)).cast_unsigned().wrapping_add(c & add) & wide
                }),
                false => lanes(move |a, b, c, _| (a & mask).wrapping_mul(b & mask).wrapping_add(c & add) & wide),
            }
        }
        "mul" | "mad" if has("hi") => {
            let add = if name == "mad" { mask } else { 0 };
            lanes(move |a, b, c, _| (((of.wide(a) * of.wide(b)) >> of.bits) as u64).wrapping_add(c & add) & mask)
        }
        // What division by zero gives is not said: all ones on today's GPUs.
        "div" if !is_signed => two(move |a, b| (a & mask).checked_div(b & mask).unwrap_or(mask)),
        "rem" if !is_signed => two(move |a, b| (a & mask).checked_rem(b & mask).unwrap_or(a) & mask),
        "div" | "rem" => {
            let is_div = name == "div";
            two(move |a, b| match (of.signed(a), of.signed(b)) {
                (a, 0) => (if is_div { -1 } else { a }).cast_unsigned() & mask,
                (a, b) => (if is_div { a.wrapping_div(b) } else { a.wrapping_rem(b) }).cast_unsigned() & mask,
            })
        }
        "min" if is_signed => two(move |a, b| of.signed(a).min(of.signed(b)).cast_unsigned() & mask),
        "max" if is_signed => two(move |a, b| of.signed(a).max(of.signed(b)).cast_unsigned() & mask),
        "min" => two(move |a, b| (a & mask).min(b & mask)),
        "max" => two(move |a, b| (a & mask).max(b & mask)),
        _ => None,
    }
}

fn float(name: &str, parts: &[&str], of: Type, freedom: Freedom) -> Option<Compute> {
    let has = |part: &str| parts.contains(&part);
    let sign = 1 << (of.bits - 1);
    let is_nan = move |x: u64| of.value(x).is_nan();
    let is_32 = of.bits == 32;
    if ["rz", "rm", "rp"].into_iter().any(has) {
        return None;
    }
    match name {
        "neg" => one(move |a| if freedom.canonical_neg && is_nan(a) { sign - 1 } else { a ^ sign }),
        "abs" => one(move |a| a & !sign & of.mask()),
        "copysign" => two(move |a, b| b & !sign | a & sign),
        "add" if is_32 => float32(has, |a, b, _| a + b),
        "sub" if is_32 => float32(has, |a, b, _| a - b),
        "mul" if is_32 => float32(has, |a, b, _| a * b),
        "fma" | "mad" if is_32 => float32(has, |a, b, c| odd_sum(f64::from(a) * f64::from(b), c.into()) as f32),
        "div" if is_32 => float32(has, |a, b, _| a / b),
        "sqrt" if is_32 => float32(has, |a, _, _| a.sqrt()),
        "rcp" if is_32 && has("approx") => float32(has, move |a, _, _| {
            let exact = 1.0 / a;
            match exact.is_normal() && a.is_normal() {
                true => f32::from_bits(exact.to_bits().wrapping_add_signed(freedom.reciprocal)),
                false => exact,
            }
        }),
        "rcp" if is_32 => float32(has, |a, _, _| 1.0 / a),
        // Correctly rounded: what a GPU gives is near to it.
        "rsqrt" if is_32 => float32(has, |a, _, _| (1.0 / f64::from(a).sqrt()) as f32),
        "ex2" if is_32 => float32(has, |a, _, _| f64::from(a).exp2() as f32),
        "lg2" if is_32 => float32(has, |a, _, _| f64::from(a).log2() as f32),
        "tanh" if is_32 => float32(has, |a, _, _| f64::from(a).tanh() as f32),
        "sin" if is_32 => float32(has, |a, _, _| f64::from(a).sin() as f32),
        "cos" if is_32 => float32(has, |a, _, _| f64::from(a).cos() as f32),
        "min" | "max" => {
            let (nan, is_max, ftz) = (has("NaN"), name == "max", has("ftz"));
            two(move |a, b| {
                let [a, b] = [a, b].map(|x| if ftz { flushed(of.value(x) as f32).into() } else { of.value(x) });
                match (nan && (a.is_nan() || b.is_nan()), is_max) {
                    (true, _) => of.nearest(f64::NAN),
                    (false, true) => of.nearest(-least(-a, -b)),
                    (false, false) => of.nearest(least(a, b)),
                }
            })
        }
        "fma" if of.bits == 64 => lanes(move |a, b, c, _| of.nearest(of.value(a).mul_add(of.value(b), of.value(c)))),
        _ if is_32 || has("ftz") || has("sat") || has("relu") => None,
        "add" => two(move |a, b| of.nearest(of.value(a) + of.value(b))),
        "sub" => two(move |a, b| of.nearest(of.value(a) - of.value(b))),
        "mul" => two(move |a, b| of.nearest(of.value(a) * of.value(b))),
        "fma" => lanes(move |a, b, c, _| of.nearest(odd_sum(of.value(a) * of.value(b), of.value(c)))),
        "div" if of.bits == 64 => two(move |a, b| of.nearest(of.value(a) / of.value(b))),
        "sqrt" if of.bits == 64 => one(move |a| of.nearest(of.value(a).sqrt())),
        "rcp" if of.bits == 64 && has("rn") => one(move |a| of.nearest(1.0 / of.value(a))),
        "ex2" => one(move |a| of.nearest(of.value(a).exp2())),
        "tanh" => one(move |a| of.nearest(of.value(a).tanh())),
        _ => None,
    }
}

/// `setp`: a comparison, then perhaps a boolean operation with a third operand.
fn comparison(parts: &[&str], of: Type) -> Option<Compute> {
    fn then(bool_op: Option<&str>, compare: impl Fn(u64, u64) -> bool + Send + Sync + 'static) -> Option<Compute> {
        match bool_op {
            None => two(move |a, b| compare(a, b).into()),
            Some("and") => lanes(move |a, b, c, _| u64::from(compare(a, b)) & c),
            Some("or") => lanes(move |a, b, c, _| u64::from(compare(a, b)) | c),
            Some("xor") => lanes(move |a, b, c, _| u64::from(compare(a, b)) ^ c),
            Some(_) => None,
        }
    }
    let bool_op = parts.iter().copied().find(|part| ["and", "or", "xor"].contains(part));
    let ftz = parts.contains(&"ftz");
    let how = *parts.first()?;
    let mask = of.mask();
    if of.is_float() {
        let value = move |x: u64| match ftz {
            true => f64::from(flushed(f(x))),
            false if of.bits == 32 => f(x).into(),
            false => of.value(x),
        };
        // With `u`, and for `ne` not, also where one is NaN.
        let (ordered, nan): (fn(f64, f64) -> bool, bool) = match how {
            "eq" => (|a, b| a == b, false),
            "equ" => (|a, b| a == b, true),
            "ne" => (|a, b| a != b, false),
            "neu" => (|a, b| a != b, true),
            "lt" => return then(bool_op, move |a, b| value(a) < value(b)),
            "ltu" => (|a, b| a < b, true),
            "le" => (|a, b| a <= b, false),
            "leu" => (|a, b| a <= b, true),
            "gt" => return then(bool_op, move |a, b| value(a) > value(b)),
            "gtu" => (|a, b| a > b, true),
            "ge" => (|a, b| a >= b, false),
            "geu" => (|a, b| a >= b, true),
            "num" => (|_, _| true, false),
            "nan" => (|_, _| false, true),
            _ => return None,
        };
        return then(bool_op, move |a, b| {
            let (a, b) = (value(a), value(b));
            if a.is_nan() || b.is_nan() { nan } else { ordered(a, b) }
        });
    }
    // As unsigned numbers they are ordered as the signed ones are, with the sign bit flipped.
    let flip = if of.kind == 's' { 1 << (of.bits - 1) } else { 0 };
    let key = move |x: u64| (x ^ flip) & mask;
    match how {
        "eq" => then(bool_op, move |a, b| key(a) == key(b)),
        "ne" => then(bool_op, move |a, b| key(a) != key(b)),
        "lt" | "lo" => then(bool_op, move |a, b| key(a) < key(b)),
        "le" | "ls" => then(bool_op, move |a, b| key(a) <= key(b)),
        "gt" | "hi" => then(bool_op, move |a, b| key(a) > key(b)),
        "ge" | "hs" => then(bool_op, move |a, b| key(a) >= key(b)),
        _ => None,
    }
}

fn convert(parts: &[&str]) -> Option<Compute> {
    let has = |part: &str| parts.contains(&part);
    let (sat, ftz) = (has("sat"), has("ftz"));
    let (to, from) = (parts[parts.len() - 2], Type::parse(parts[parts.len() - 1])?);
    let mode = ["rn", "rz", "rm", "rp"].into_iter().find(|mode| has(mode)).unwrap_or("rn");
    let integral = ["rni", "rzi", "rmi", "rpi"].into_iter().find(|mode| has(mode));
    if has("relu") || has("satfinite") {
        return None;
    }
    let whole: fn(f64) -> f64 = match integral {
        Some("rni") => f64::round_ties_even,
        Some("rzi") => f64::trunc,
        Some("rmi") => f64::floor,
        Some("rpi") => f64::ceil,
        _ => |x| x,
    };
    let input = move |x: u64| {
        let x = from.value(x);
        if ftz { flushed(x as f32).into() } else { x }
    };
    if let Some(half) = to.strip_suffix("x2") {
        let to = Type::parse(half)?;
        // The first operand is the high half.
        return two(move |a, b| to.rounded(input(a), mode) << 16 | to.rounded(input(b), mode));
    }
    let to = Type::parse(to)?;
    match (to.is_float(), from.is_float()) {
        (false, false) => {
            let mask = to.mask();
            match sat {
                true => one(move |a| from.wide(a).clamp(to.least(), to.most()) as u64 & mask),
                false if from.kind == 's' => one(move |a| from.signed(a).cast_unsigned() & mask),
                false => one(move |a| a & from.mask() & mask),
            }
        }
        (false, true) => one(move |a| match whole(input(a)) {
            x if x.is_nan() => {
                if to.bits == 64 {
                    1 << 63
                } else {
                    0
                }
            }
            x => (x as i128).clamp(to.least(), to.most()) as u64 & to.mask(),
        }),
        // Through float64 a 64-bit integer would be rounded twice.
        (true, false) if to.bits == 32 && mode == "rn" => one(move |a| match from.kind {
            's' => u64::from((from.signed(a) as f32).to_bits()),
            _ => u64::from(((a & from.mask()) as f32).to_bits()),
        }),
        (true, false) if from.bits < 64 || to.bits == 64 => one(move |a| to.rounded(from.wide(a) as f64, mode)),
        (true, false) => None,
        (true, true) => one(move |a| {
            let x = whole(input(a));
            let x = if sat { if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) } } else { x };
            let bits = to.rounded(x, mode);
            if ftz && to.bits == 32 { flushed(f(bits)).to_bits().into() } else { bits }
        }),
    }
}

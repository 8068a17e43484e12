//! What instructions compute, for 32 lanes at once. A register of any width is the low bits of a `u64`, the others
//! zero; a predicate is 0 or 1.
//!
//! The forms are the ones that the modules and the mutants have. A new one is a line of [`compute`].

use half::f16;

/// A register of a warp.
pub(crate) type Lanes = [u64; 32];

/// Computes a register of up to four others.
pub(crate) type Compute = Box<dyn Fn(&mut Lanes, [&Lanes; 4]) + Send + Sync>;

/// A type of PTX: its kind (`u`, `s`, `b`, `f`, or `p` for a predicate) and its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Type {
    pub(crate) kind: char,
    pub(crate) bits: u32,
}

impl Type {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (kind, bits) = match name {
            "pred" => ('p', 1),
            _ => (name.chars().next()?, name.get(1..)?.parse().ok()?),
        };
        ("usbfp".contains(kind) && bits <= 64).then_some(Self { kind, bits })
    }

    pub(crate) fn bytes(self) -> u32 {
        self.bits.div_ceil(8)
    }

    pub(crate) fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits)
    }

    fn signed(self, x: u64) -> i64 {
        (x << (64 - self.bits)).cast_signed() >> (64 - self.bits)
    }
}

fn lanes(f: impl Fn(u64, u64, u64, u64) -> u64 + Send + Sync + 'static) -> Compute {
    Box::new(move |to: &mut Lanes, [a, b, c, d]: [&Lanes; 4]| {
        for i in 0..32 {
            to[i] = f(a[i], b[i], c[i], d[i]);
        }
    })
}

fn one(f: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Compute {
    lanes(move |a, _, _, _| f(a))
}

fn two(f: impl Fn(u64, u64) -> u64 + Send + Sync + 'static) -> Compute {
    lanes(move |a, b, _, _| f(a, b))
}

/// An operation on float32, whose NaN are all the canonical one.
fn float(of: impl Fn(f32, f32, f32) -> f32 + Send + Sync + 'static) -> Compute {
    lanes(move |a, b, c, _| match of(f(a), f(b), f(c)) {
        x if x.is_nan() => 0x7fff_ffff,
        x => x.to_bits().into(),
    })
}

/// An operation on both halves of a register of two float16, whose result a float64 holds.
fn halves(of: impl Fn(f64, f64) -> f64 + Send + Sync + 'static) -> Compute {
    let value = |x: u64| f16::from_bits(x as u16).to_f64();
    let half = move |a: u64, b: u64| nearest(odd32(of(value(a), value(b))));
    two(move |a, b| half(a >> 16, b >> 16) << 16 | half(a, b))
}

/// A float32 next to a number, with a last bit of 1 unless it is exact, so that it can be rounded again.
fn odd32(x: f64) -> f32 {
    let near = x as f32;
    match near.to_bits() {
        bits if f64::from(near) == x || near.is_infinite() || bits & 1 == 1 => near,
        bits if f64::from(near).abs() > x.abs() => f32::from_bits(bits - 1),
        bits => f32::from_bits(bits + 1),
    }
}

/// A comparison of float32.
fn floats_are(holds: impl Fn(f32, f32) -> bool + Send + Sync + 'static) -> Compute {
    two(move |a, b| holds(f(a), f(b)).into())
}

fn f(x: u64) -> f32 {
    f32::from_bits(x as u32)
}

/// The float16 nearest to a number, ties to even.
fn nearest(x: f32) -> u64 {
    if x.is_nan() { 0x7fff } else { f16::from_f32(x).to_bits().into() }
}

/// The float16 nearest to a number among those that are not beyond it.
fn toward_zero(x: f32) -> u64 {
    let bits = nearest(x);
    bits - u64::from(f16::from_bits(bits as u16).to_f32().abs() > x.abs())
}

/// What an instruction of this name computes; `None` if it is not known. `canonical_neg`: see
/// [`Emulation`](crate::Emulation).
pub(crate) fn compute(name: &str, canonical_neg: bool) -> Option<Compute> {
    let parts: Vec<_> = name.split('.').collect();
    match parts[..] {
        ["add", "rn", "f16x2"] => return Some(halves(|a, b| a + b)),
        ["sub", "rn", "f16x2"] => return Some(halves(|a, b| a - b)),
        ["mul", "rn", "f16x2"] => return Some(halves(|a, b| a * b)),
        _ => (),
    }
    let (of, parts) = parts.split_last()?;
    let of = Type::parse(of)?;
    let (bits, mask) = (u64::from(of.bits), of.mask());
    let signed = move |x| of.signed(x);
    // As unsigned numbers these are ordered as the type's are: signed ones have the sign bit flipped.
    let flip = if of.kind == 's' { 1 << (of.bits - 1) } else { 0 };
    let key = move |x: u64| (x ^ flip) & mask;
    Some(match (parts, of.kind, of.bits) {
        (["mov"] | ["cvta", "to", "global"], _, _) => one(move |a| a & mask),
        (["selp"], _, _) => lanes(move |a, b, p, _| (if p != 0 { a } else { b }) & mask),
        (["setp", how], 'f', 32) => match *how {
            "eq" => floats_are(|a, b| a == b),
            "lt" => floats_are(|a, b| a < b),
            "gt" => floats_are(|a, b| a > b),
            // True where one is NaN, too.
            "ltu" => floats_are(|a, b| a < b || a.is_nan() || b.is_nan()),
            "num" => floats_are(|a, b| !a.is_nan() && !b.is_nan()),
            "nan" => floats_are(|a, b| a.is_nan() || b.is_nan()),
            _ => return None,
        },
        (["setp", how], 'u' | 's', _) => match *how {
            "eq" => two(move |a, b| (key(a) == key(b)).into()),
            "ne" => two(move |a, b| (key(a) != key(b)).into()),
            "lt" => two(move |a, b| (key(a) < key(b)).into()),
            "le" => two(move |a, b| (key(a) <= key(b)).into()),
            "gt" => two(move |a, b| (key(a) > key(b)).into()),
            "ge" => two(move |a, b| (key(a) >= key(b)).into()),
            _ => return None,
        },

        (["and"], _, _) => two(|a, b| a & b),
        (["or"], _, _) => two(move |a, b| (a | b) & mask),
        (["xor"], _, _) => two(move |a, b| (a ^ b) & mask),
        (["not"], _, _) => one(move |a| !a & mask),
        (["shl"], _, _) => two(move |a, n| if n >= bits { 0 } else { a << n & mask }),
        (["shf", "l", "wrap"], _, 32) => lanes(|a, b, n, _| ((b << 32 | a & 0xffff_ffff) << (n & 31)) >> 32),
        (["shr"], 's', _) => two(move |a, n| (signed(a) >> n.min(bits - 1)).cast_unsigned() & mask),
        (["shr"], _, _) => two(move |a, n| if n >= bits { 0 } else { (a & mask) >> n }),
        (["bfe"], 'u', _) => lanes(move |a, from, len, _| (a & mask) >> from & ((1 << len) - 1)),
        (["bfi"], _, _) => lanes(move |a, b, from, len| {
            let field = ((1 << len) - 1) << from;
            (b & !field | a << from & field) & mask
        }),
        (["prmt"], _, _) => lanes(|a, b, selector, _| {
            let bytes = b << 32 | a & 0xffff_ffff;
            let byte = |i: u32| {
                let choice = selector >> (4 * i) & 15;
                let byte = bytes >> (8 * (choice & 7)) & 0xff;
                let byte = if choice < 8 { byte } else { 0xff * (byte >> 7) };
                byte << (8 * i)
            };
            byte(0) | byte(1) | byte(2) | byte(3)
        }),

        (["add"], 'u' | 's', _) => two(move |a, b| a.wrapping_add(b) & mask),
        (["sub"], 'u' | 's', _) => two(move |a, b| a.wrapping_sub(b) & mask),
        (["neg"], 's', _) => one(move |a| a.wrapping_neg() & mask),
        (["mul", "lo"], 'u' | 's', _) => two(move |a, b| a.wrapping_mul(b) & mask),
        (["mad", "lo"], 'u' | 's', _) => lanes(move |a, b, c, _| a.wrapping_mul(b).wrapping_add(c) & mask),
        (["mul", "wide"], 'u', ..=32) => two(move |a, b| (a & mask) * (b & mask)),
        (["mul", "hi"], 'u', ..=32) => two(move |a, b| ((a & mask) * (b & mask)) >> bits),
        // What division by zero gives is not said: all ones on today's GPUs.
        (["div"], 'u', _) => two(move |a, b| (a & mask).checked_div(b & mask).unwrap_or(mask)),
        (["rem"], 'u', _) => two(move |a, b| (a & mask).checked_rem(b & mask).unwrap_or(a) & mask),
        (["div"], 's', _) => two(move |a, b| match (signed(a), signed(b)) {
            (_, 0) => mask,
            (a, b) => a.wrapping_div(b).cast_unsigned() & mask,
        }),
        (["rem"], 's', _) => two(move |a, b| match (signed(a), signed(b)) {
            (a, 0) => a.cast_unsigned() & mask,
            (a, b) => a.wrapping_rem(b).cast_unsigned() & mask,
        }),
        (["min"], 'u' | 's', _) => two(move |a, b| (if key(a) < key(b) { a } else { b }) & mask),
        (["max"], 'u' | 's', _) => two(move |a, b| (if key(a) > key(b) { a } else { b }) & mask),

        (["add", "rn"], 'f', 32) => float(|a, b, _| a + b),
        (["sub", "rn"], 'f', 32) => float(|a, b, _| a - b),
        (["mul", "rn"], 'f', 32) => float(|a, b, _| a * b),
        // Of two zeros the positive one is the larger; a NaN is none.
        (["max"], 'f', 32) => {
            float(|a, b, _| if a == b { f32::from_bits(a.to_bits() & b.to_bits()) } else { a.max(b) })
        }
        // Of a NaN and a number the number.
        (["min"], 'f', 32) => {
            float(|a, b, _| if a == b { f32::from_bits(a.to_bits() | b.to_bits()) } else { a.min(b) })
        }
        (["fma", "rn"], 'f', 32) => float(|a, b, c| odd_sum(f64::from(a) * f64::from(b), c.into()) as f32),
        (["div", "rn"], 'f', 32) => float(|a, b, _| a / b),
        (["rcp", "rn"], 'f', 32) => float(|a, _, _| 1.0 / a),
        (["neg"], 'f', 32) => one(move |a| if canonical_neg && f(a).is_nan() { 0x7fff_ffff } else { a ^ 0x8000_0000 }),

        (["cvt", "f32"], 'f', 16) => float16_to_float32(),
        (["cvt", "rn", "f16"], 'f', 32) => one(|a| nearest(f(a))),
        (["cvt", "rz", "f16"], 'f', 32) => one(|a| toward_zero(f(a))),
        (["cvt", "rn", "f32"], 's', _) => one(move |a| (signed(a) as f32).to_bits().into()),
        (["cvt", "rn", "f32"], 'u', _) => one(move |a| ((a & mask) as f32).to_bits().into()),
        (["cvt", to], 'u' | 's', _) => {
            let to = Type::parse(to).filter(|to| "us".contains(to.kind))?.mask();
            match of.kind {
                's' => one(move |a| signed(a).cast_unsigned() & to),
                _ => one(move |a| a & mask & to),
            }
        }
        _ => return None,
    })
}

fn float16_to_float32() -> Compute {
    one(|a| match f16::from_bits(a as u16).to_f32() {
        x if x.is_nan() => 0x7fff_ffff,
        x => x.to_bits().into(),
    })
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

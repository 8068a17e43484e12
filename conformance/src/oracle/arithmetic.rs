//! The arithmetic of one group, and how its numbers lie in memory.
//!
//! A number is an `f64` here, which holds every value of every type. An operation is computed in `f64`, and its result
//! rounded to the type that the specification names: a quotient or product of two float32 or float16 values is then
//! what that type's own arithmetic gives, because `f64` has more than twice the precision and two bits.

use half::f16;
use kvcache_schema::{ElementType, SCALE_FLOOR};

/// The decisions of the arithmetic. [`Arithmetic::default`] decides as the specification does.
#[derive(Debug, Clone, Copy)]
pub struct Arithmetic {
    /// float32 to float16: to nearest, ties to even.
    pub narrow: fn(f32) -> f16,
    /// float16 to float32: exact.
    pub widen: fn(f16) -> f32,
    /// What becomes of a float32 that arithmetic reads or makes: nothing.
    pub float32: fn(f32) -> f32,
    /// Whether a value of the same type keeps its bits, as a copy of them; else it is read and written as a number.
    pub copies_bits: bool,

    /// What becomes of a value of `current_key` or `current_value` before it is stored: nothing.
    pub current: fn(ElementType, f64) -> f64,
    /// What becomes of a value of `key` or `value` when it is loaded: nothing.
    pub output: fn(ElementType, f64) -> f64,

    /// The group of element `d` of a head of `groups` groups of `quant_group` elements: neighbors share one.
    pub group: fn(d: usize, quant_group: usize, groups: usize) -> usize,
    /// The group whose scale element `d` is loaded with: its own.
    pub loaded_group: fn(d: usize, quant_group: usize, groups: usize) -> usize,
    /// Which values count toward the same scale: those of one group.
    pub shares_scale: Shares,
    /// The largest magnitude of some values; NaN if one of them is.
    pub amax: fn(&Group, &[f64]) -> f64,
    /// The largest code of a width in bits.
    pub qmax: fn(i64) -> f64,
    /// The step between the codes of a group.
    pub step: fn(&Group, amax: f64) -> f64,
    /// What values are divided by: the step.
    pub divisor: fn(&Group, &Steps) -> f64,
    /// A value divided by the divisor.
    pub quotient: fn(&Group, x: f64, divisor: f64) -> f64,
    /// A quotient rounded to an integer: to nearest, ties to even.
    pub round: fn(&Group, quotient: f64) -> f64,
    /// The code of a rounded quotient, which may be NaN.
    pub code: fn(&Group, x: f64, rounded: f64) -> i8,
    /// The scale that is stored: the step, rounded to T3.
    pub stored_scale: fn(&Group, &Steps) -> f64,
    /// The value of a code.
    pub value: fn(&Group, code: i8, scale: f64) -> f64,

    /// Where code `i` of a head of `len` codes of int4 is stored: its byte, and whether it is the high nibble.
    pub nibble: fn(i: usize, len: usize) -> (usize, bool),
    /// Where it is loaded from: the same.
    pub loaded_nibble: fn(i: usize, len: usize) -> (usize, bool),
    /// A byte after a nibble, the high one or the low one, was stored in it: the other keeps its bits.
    pub with_nibble: fn(byte: u8, nibble: u8, high: bool) -> u8,
    /// The four bits of a code.
    pub to_nibble: fn(i8) -> u8,
    /// The code of four bits.
    pub from_nibble: fn(nibble: u8, high: bool) -> i8,
}

/// Which values of the current tokens count toward the same scale: for each coordinate, whether it has to be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "described above")]
pub struct Shares {
    pub key_or_value: bool,
    pub row: bool,
    pub head: bool,
    pub group: bool,
    /// Whether those of earlier rows count as well: of all rows before, whatever their sequence.
    pub rows_before: bool,
    /// The same of earlier groups of the head.
    pub groups_before: bool,
}

impl Shares {
    /// Those of one group of one head.
    pub const GROUP: Self =
        Self { key_or_value: true, row: true, head: true, group: true, rows_before: false, groups_before: false };
}

/// What is known of a group: its types and width, and how numbers are rounded to types.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the fields have the specification's names")]
pub struct Group<'a> {
    pub arithmetic: &'a Arithmetic,
    pub t1: ElementType,
    pub t3: ElementType,
    pub quant_bit: i64,
}

/// The largest magnitude of a group; its step, and what that becomes when it is rounded to T3; and the scale that was
/// stored before this call.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "described above")]
pub struct Steps {
    pub amax: f64,
    pub step: f64,
    pub scale: f64,
    pub old_scale: f64,
}

impl Default for Arithmetic {
    fn default() -> Self {
        Self {
            narrow: f16::from_f32,
            widen: f16::to_f32,
            float32: |x| x,
            copies_bits: true,
            current: |_, x| x,
            output: |_, x| x,
            group: |d, quant_group, _| d / quant_group,
            loaded_group: |d, quant_group, _| d / quant_group,
            shares_scale: Shares::GROUP,
            amax: |_, values| {
                values
                    .iter()
                    .fold(0.0, |amax, x| if amax.is_nan() || x.is_nan() { f64::NAN } else { amax.max(x.abs()) })
            },
            qmax: |quant_bit| 2f64.powi(quant_bit as i32 - 1) - 1.0,
            step: |group, amax| {
                let (step, floor) = (group.to_t1(amax / group.qmax()), group.to_t1(SCALE_FLOOR.into()));
                if step < floor { floor } else { step }
            },
            divisor: |_, steps| steps.step,
            quotient: |group, x, divisor| group.to_t1(x / divisor),
            round: |_, quotient| quotient.round_ties_even(),
            code: |group, _, rounded| {
                if rounded.is_nan() { 0 } else { rounded.clamp(-group.qmax(), group.qmax()) as i8 }
            },
            stored_scale: |_, steps| steps.scale,
            value: |group, code, scale| group.to_t1(group.to_t3(f64::from(code) * scale)),
            nibble: |i, _| (i / 2, i % 2 == 1),
            loaded_nibble: |i, _| (i / 2, i % 2 == 1),
            with_nibble: |byte, nibble, high| if high { byte & 0x0f | nibble << 4 } else { byte & 0xf0 | nibble },
            to_nibble: |code| code as u8 & 0x0f,
            from_nibble: |nibble, _| (nibble << 4) as i8 >> 4,
        }
    }
}

impl Group<'_> {
    /// `x` rounded to T1.
    pub fn to_t1(&self, x: f64) -> f64 {
        self.arithmetic.rounded(self.t1, x)
    }

    /// `x` rounded to T3.
    pub fn to_t3(&self, x: f64) -> f64 {
        self.arithmetic.rounded(self.t3, x)
    }

    /// The largest code.
    pub fn qmax(&self) -> f64 {
        (self.arithmetic.qmax)(self.quant_bit)
    }

    /// The largest magnitude of values that share a scale.
    pub fn amax(&self, values: &[f64]) -> f64 {
        (self.arithmetic.amax)(self, values)
    }

    /// The step of values of this largest magnitude, and the scale that it becomes.
    pub fn steps(&self, amax: f64, old_scale: f64) -> Steps {
        let step = (self.arithmetic.step)(self, amax);
        Steps { amax, step, scale: self.to_t3(step), old_scale }
    }

    /// The code of a value.
    pub fn code(&self, x: f64, steps: &Steps) -> i8 {
        let quotient = (self.arithmetic.quotient)(self, x, (self.arithmetic.divisor)(self, steps));
        (self.arithmetic.code)(self, x, (self.arithmetic.round)(self, quotient))
    }

    /// The value of a code.
    pub fn value(&self, code: i8, scale: f64) -> f64 {
        (self.arithmetic.value)(self, code, scale)
    }
}

impl Arithmetic {
    /// `x` rounded to a float type, to nearest, ties to even.
    pub fn rounded(&self, element: ElementType, x: f64) -> f64 {
        match element {
            ElementType::Float16 => (self.widen)((self.narrow)(x as f32)).into(),
            _ => (self.float32)(x as f32).into(),
        }
    }

    /// Element `i` of a float tensor with these bytes.
    pub fn read(&self, element: ElementType, bytes: &[u8], i: usize) -> f64 {
        match element {
            ElementType::Float16 => (self.widen)(f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])).into(),
            _ => {
                let x = [bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]];
                (self.float32)(f32::from_le_bytes(x)).into()
            }
        }
    }

    /// Makes `x`, rounded to the tensor's type, element `i` of a float tensor with these bytes.
    pub fn write(&self, element: ElementType, bytes: &mut [u8], i: usize, x: f64) {
        match element {
            ElementType::Float16 => bytes[2 * i..][..2].copy_from_slice(&(self.narrow)(x as f32).to_le_bytes()),
            _ => bytes[4 * i..][..4].copy_from_slice(&(self.float32)(x as f32).to_le_bytes()),
        }
    }

    /// Code `i` of a head with these bytes: `quant_bit` bits to a code, `len` codes.
    pub fn read_code(&self, quant_bit: i64, bytes: &[u8], i: usize, len: usize) -> i8 {
        if quant_bit == 8 {
            return bytes[i] as i8;
        }
        let (byte, high) = (self.loaded_nibble)(i, len);
        (self.from_nibble)(if high { bytes[byte] >> 4 } else { bytes[byte] & 0x0f }, high)
    }

    /// The same, to be written.
    pub fn write_code(&self, quant_bit: i64, bytes: &mut [u8], i: usize, len: usize, code: i8) {
        if quant_bit == 8 {
            bytes[i] = code as u8;
            return;
        }
        let (byte, high) = (self.nibble)(i, len);
        let nibble = (self.to_nibble)(code) & 0x0f;
        bytes[byte] = (self.with_nibble)(bytes[byte], nibble, high);
    }
}

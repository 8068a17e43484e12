//! Quantization: the width of a quantized cache element, and the constants of the arithmetic.

use crate::ElementType;

/// The smallest scale of a group: a group's scale is `max(amax / qmax, SCALE_FLOOR)` with the constant rounded to T1
/// (for float16 it is 168 * 2^-24).
pub const SCALE_FLOOR: f32 = 1e-5;

/// Attribute `quant_bit` of a quantized cache: the width of its elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuantBit {
    /// int8 cache elements.
    Eight,
    /// int4 cache elements, two to a byte.
    Four,
}

impl QuantBit {
    /// Every code of the attribute `quant_bit`; 0 is no quantization.
    pub const CODES: [i64; 3] = [0, 4, 8];

    /// The width with this code; `None` for 0 (no quantization) and for codes that do not exist.
    pub const fn from_code(code: i64) -> Option<Self> {
        match code {
            8 => Some(Self::Eight),
            4 => Some(Self::Four),
            _ => None,
        }
    }

    /// The width in bits, which is the code in the attribute `quant_bit`.
    pub const fn code(self) -> i64 {
        match self {
            Self::Eight => 8,
            Self::Four => 4,
        }
    }

    /// The largest magnitude of a quantized value: `2^(quant_bit - 1) - 1`.
    pub const fn qmax(self) -> i8 {
        ((1 << (self.code() - 1)) - 1) as i8
    }

    /// The type of the cache's elements (T2).
    pub const fn element(self) -> ElementType {
        match self {
            Self::Eight => ElementType::Int8,
            Self::Four => ElementType::Int4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qmax_is_the_largest_symmetric_value() {
        assert_eq!(QuantBit::Eight.qmax(), 127);
        assert_eq!(QuantBit::Four.qmax(), 7);
    }
}

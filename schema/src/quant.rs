//! Quantization: widths, constants, and which types go together.

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

/// A row of the table of legal types: T1, T2 and T3 for a `quant_bit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TypeCombination {
    /// The attribute `quant_bit`.
    pub quant_bit: i64,
    /// The type of `current_key`, `current_value`, `key` and `value`.
    pub t1: ElementType,
    /// The type of `cache`.
    pub t2: ElementType,
    /// The type of `scale`; `None` where the scale is absent, or given and left untouched.
    pub t3: Option<ElementType>,
}

impl TypeCombination {
    /// Every legal combination. Without quantization any T3 of [`ElementType::T3`] may be given, and is left untouched.
    pub const LEGAL: [Self; 13] = {
        use ElementType::{Float16, Float32, Int4, Int8};
        const fn row(quant_bit: i64, t1: ElementType, t2: ElementType, t3: Option<ElementType>) -> TypeCombination {
            TypeCombination { quant_bit, t1, t2, t3 }
        }
        [
            row(0, Float32, Float32, None),
            row(0, Float32, Float16, None),
            row(0, Float16, Float32, None),
            row(0, Float16, Float16, None),
            row(0, Int8, Int8, None),
            row(8, Float32, Int8, Some(Float32)),
            row(8, Float32, Int8, Some(Float16)),
            row(8, Float16, Int8, Some(Float32)),
            row(8, Float16, Int8, Some(Float16)),
            row(4, Float32, Int4, Some(Float32)),
            row(4, Float32, Int4, Some(Float16)),
            row(4, Float16, Int4, Some(Float32)),
            row(4, Float16, Int4, Some(Float16)),
        ]
    };

    /// Whether the combination is in [`TypeCombination::LEGAL`], a given but unused scale left out of account.
    pub fn is_legal(self) -> bool {
        let unused_scale = self.quant_bit == 0 && self.t3.is_none_or(|t3| ElementType::T3.contains(&t3));
        let looked_up = if unused_scale { Self { t3: None, ..self } } else { self };
        Self::LEGAL.contains(&looked_up)
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

    #[test]
    fn an_unused_scale_is_legal_and_a_missing_one_is_not() {
        let plain = TypeCombination { quant_bit: 0, t1: ElementType::Int8, t2: ElementType::Int8, t3: None };
        assert!(plain.is_legal());
        assert!(TypeCombination { t3: Some(ElementType::Float16), ..plain }.is_legal());
        assert!(!TypeCombination { t3: Some(ElementType::Int64), ..plain }.is_legal());
        assert!(!TypeCombination { quant_bit: 8, ..plain }.is_legal());
    }
}

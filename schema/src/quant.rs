//! Quantization: the width of a quantized cache element, and the constants of the arithmetic.

use crate::ElementType;

/// The least magnitude of a group's scale, rounded to T1 (for float16 it is 168 * 2^-24).
pub const SCALE_FLOOR: f32 = 1e-5;

/// The `quant_type` of floats with static scales: the call reads a scale for each head, and writes none.
pub const STATIC_SCALES: i64 = 2;

/// How the elements of a quantized cache are coded: the attributes `quant_bit` and `quant_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuantBit {
    /// int8 cache elements.
    Eight,
    /// int4 cache elements, two to a byte.
    Four,
    /// float8e4m3fn cache elements.
    Float8,
}

impl QuantBit {
    /// Every coding.
    pub const ALL: [Self; 3] = [Self::Four, Self::Eight, Self::Float8];

    /// Every code of the attribute `quant_bit`; 0 is no quantization.
    pub const CODES: [i64; 3] = [0, 4, 8];

    /// The coding that `quant_bit` and `quant_type` name; `None` for `quant_bit` 0 (no quantization) and for what does
    /// not exist.
    pub fn from_codes(quant_bit: i64, quant_type: i64) -> Option<Self> {
        let is_named = |coding: &Self| coding.code() == quant_bit && coding.quant_types().contains(&quant_type);
        Self::ALL.into_iter().find(is_named)
    }

    /// The coding of a quantized cache with elements of this type; `None` for other types.
    pub fn of_element(t2: ElementType) -> Option<Self> {
        Self::ALL.into_iter().find(|coding| coding.element() == t2)
    }

    /// The width in bits, which is the attribute `quant_bit`.
    pub const fn code(self) -> i64 {
        self.element().bits() as i64
    }

    /// The attribute `quant_type` of a cache with a scale for each group: 0 for integers, 1 for floats.
    pub const fn quant_type(self) -> i64 {
        self.quant_types()[0]
    }

    /// Every `quant_type` that such a cache may have.
    pub const fn quant_types(self) -> &'static [i64] {
        match self {
            Self::Eight | Self::Four => &[0],
            Self::Float8 => &[1, STATIC_SCALES],
        }
    }

    /// The largest magnitude of a quantized value, by which a group's largest magnitude is divided: float8e4m3fn's
    /// largest number; 8 for four bits, where only -8 is a code.
    pub const fn qmax(self) -> i16 {
        match self {
            Self::Eight => 127,
            Self::Four => 8,
            Self::Float8 => 448,
        }
    }

    /// Whether a group's scale has the sign that makes the code of its largest element negative.
    pub const fn has_signed_scales(self) -> bool {
        matches!(self, Self::Four)
    }

    /// The type of the cache's elements (T2).
    pub const fn element(self) -> ElementType {
        match self {
            Self::Eight => ElementType::Int8,
            Self::Four => ElementType::Int4,
            Self::Float8 => ElementType::Float8E4M3Fn,
        }
    }
}

/// The largest order of a Hadamard matrix that keys are multiplied by.
pub const MAX_ROTATION_ORDER: usize = 256;

/// The order of the Hadamard matrix that the blocks of a head are multiplied by where `quant_rotation` is 1: the
/// largest power of two that divides `head_dim`, is at most the group or 32, whichever is larger, and at most 256. With
/// static scales the group is the head.
pub const fn rotation_order(head_dim: usize, group: usize) -> usize {
    // Both are powers of two: the lower one divides the head.
    let most = if group < 64 {
        32
    } else if group < 128 {
        64
    } else if group < MAX_ROTATION_ORDER {
        128
    } else {
        MAX_ROTATION_ORDER
    };
    1 << (head_dim | most).trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coding_is_that_of_its_elements() {
        for coding in QuantBit::ALL {
            assert_eq!(QuantBit::of_element(coding.element()), Some(coding));
            for &quant_type in coding.quant_types() {
                assert_eq!(QuantBit::from_codes(coding.code(), quant_type), Some(coding));
            }
        }
        assert_eq!(QuantBit::of_element(ElementType::Float16), None);
    }

    #[test]
    fn rotations_have_the_largest_power_of_two_that_divides_a_head_up_to_its_groups() {
        let orders = |group| [1, 9, 80, 96, 128, 512, 576].map(|head_dim| rotation_order(head_dim, group));
        assert_eq!(orders(1), [1, 1, 16, 32, 32, 32, 32]);
        assert_eq!(orders(63), orders(1));
        assert_eq!(orders(64), [1, 1, 16, 32, 64, 64, 64]);
        assert_eq!(orders(192), [1, 1, 16, 32, 128, 128, 64]);
        assert_eq!(orders(512), [1, 1, 16, 32, 128, 256, 64]);
    }
}

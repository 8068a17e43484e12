//! The legal combinations of types: T1, T2 and T3 for each `quant_bit`. The one table of them in Rust; a test holds
//! `key_value_cache.yaml` to it, and what must serve each row (kernels, modules, cases) is made from the one or the
//! other.

use crate::{ElementType, QuantBit};

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

const fn row(quant_bit: i64, t1: ElementType, t2: ElementType, t3: Option<ElementType>) -> TypeCombination {
    TypeCombination { quant_bit, t1, t2, t3 }
}

impl TypeCombination {
    /// The legal combinations of the specification. Without quantization any T3 of [`ElementType::T3`] may be given,
    /// and is left untouched.
    pub const LEGAL: [Self; 13] = {
        use ElementType::{Float16, Float32, Int4, Int8};
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

    /// The legal combinations beyond the specification: bfloat16, for models whose values float16 cannot hold, and
    /// codes of float8.
    pub const EXTENSIONS: [Self; 11] = {
        use ElementType::{BFloat16, Float8E4M3Fn, Float16, Float32, Int4, Int8};
        [
            row(0, BFloat16, BFloat16, None),
            row(8, BFloat16, Int8, Some(Float32)),
            row(8, BFloat16, Int8, Some(Float16)),
            row(4, BFloat16, Int4, Some(Float32)),
            row(4, BFloat16, Int4, Some(Float16)),
            row(8, Float32, Float8E4M3Fn, Some(Float32)),
            row(8, Float32, Float8E4M3Fn, Some(Float16)),
            row(8, Float16, Float8E4M3Fn, Some(Float32)),
            row(8, Float16, Float8E4M3Fn, Some(Float16)),
            row(8, BFloat16, Float8E4M3Fn, Some(Float32)),
            row(8, BFloat16, Float8E4M3Fn, Some(Float16)),
        ]
    };

    /// Every legal combination: the specification's, then the extensions.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::LEGAL.iter().chain(&Self::EXTENSIONS).copied()
    }

    /// Whether the combination is in [`TypeCombination::all`], a given but unused scale left out of account.
    pub fn is_legal(self) -> bool {
        let unused_scale = self.quant_bit == 0 && self.t3.is_none_or(|t3| ElementType::T3.contains(&t3));
        let looked_up = if unused_scale { Self { t3: None, ..self } } else { self };
        Self::all().any(|row| row == looked_up)
    }

    /// The attribute `quant_type` that the cache's type needs: 1 for codes of float8 with a scale for each group, else
    /// 0.
    pub const fn quant_type(self) -> i64 {
        self.quant_types()[0]
    }

    /// Every `quant_type` that the cache's type may have.
    pub const fn quant_types(self) -> &'static [i64] {
        match self.t2 {
            ElementType::Float8E4M3Fn => QuantBit::Float8.quant_types(),
            _ => &[0],
        }
    }

    /// T1, T2 and, where there is one, T3.
    pub fn types(self) -> impl Iterator<Item = ElementType> {
        [Some(self.t1), Some(self.t2), self.t3].into_iter().flatten()
    }

    /// The rows for a `quant_bit`, a `quant_type` and some T1, in words.
    pub fn legal_types(quant_bit: i64, quant_type: i64, t1s: &[ElementType]) -> String {
        let is_asked = |row: &Self| row.quant_bit == quant_bit && row.quant_types().contains(&quant_type);
        let rows = Self::all().filter(|row| is_asked(row) && t1s.contains(&row.t1));
        let names = |row: Self| row.types().map(ElementType::name).collect::<Vec<_>>().join(" x ");
        rows.map(names).collect::<Vec<_>>().join(", ")
    }

    /// The row's name: the short names of its types, like `f16_i8_f32`. CUDA modules and kernels are named by it.
    pub fn name(self) -> String {
        self.types().map(ElementType::short_name).collect::<Vec<_>>().join("_")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn an_unused_scale_is_legal_and_a_missing_one_is_not() {
        let plain = TypeCombination { quant_bit: 0, t1: ElementType::Int8, t2: ElementType::Int8, t3: None };
        assert!(plain.is_legal());
        assert!(TypeCombination { t3: Some(ElementType::Float16), ..plain }.is_legal());
        assert!(!TypeCombination { t3: Some(ElementType::Int64), ..plain }.is_legal());
        assert!(!TypeCombination { quant_bit: 8, ..plain }.is_legal());
    }

    #[test]
    fn a_row_has_a_name_of_its_own() {
        let names: HashSet<_> = TypeCombination::all().map(TypeCombination::name).collect();
        assert_eq!(names.len(), TypeCombination::all().count());
        assert!(names.contains("f16_i8_f32") && names.contains("f32_f16"));
    }
}

//! Checks element types.

use kvcache_schema::{ElementType, TypeCombination};

use crate::error::Error;

/// Checks the types of the inputs that are not indices against those rows of the table of types whose T1 is one of
/// `t1s`, which are the operator's, and those that `quant_type` has.
pub(crate) fn types(
    got: TypeCombination,
    quant_type: i64,
    current_value: ElementType,
    t1s: &'static [ElementType],
) -> Result<(), Error> {
    let TypeCombination { quant_bit, t1, t3, .. } = got;
    let legal = |t3| TypeCombination { t3, ..got }.is_legal() && got.quant_types().contains(&quant_type);
    if !legal(t3) {
        if t3.is_none() && ElementType::T3.into_iter().map(Some).any(legal) {
            return Err(Error::ScaleMissing { quant_bit });
        }
        return Err(Error::IllegalTypes { got, quant_type, t1s });
    }
    equal_type("current_value", current_value, t1)
}

/// Checks that a tensor has the one type that it may have.
pub(crate) fn equal_type(input: &'static str, got: ElementType, expected: ElementType) -> Result<(), Error> {
    if got == expected { Ok(()) } else { Err(Error::TypeMismatch { input, got, expected }) }
}

//! Element types: the table of those that go together, and tensors that must have one of them.

use kvcache_schema::{ElementType, TypeCombination};

use crate::error::Error;

/// Checks the types of the inputs that are not indices.
pub(crate) fn types(
    quant_bit: i64,
    current_key: ElementType,
    current_value: ElementType,
    cache: ElementType,
    scale: Option<ElementType>,
) -> Result<(), Error> {
    let (t1, t2) = (current_key, cache);
    let legal = |t3| TypeCombination { quant_bit, t1, t2, t3 }.is_legal();
    if !legal(scale) {
        if scale.is_none() && ElementType::T3.into_iter().map(Some).any(legal) {
            return Err(Error::ScaleMissing { quant_bit });
        }
        return Err(Error::IllegalTypes { t1, t2, t3: scale, quant_bit });
    }
    expect_type("current_value", current_value, t1)
}

/// Checks that a tensor has the one type that it may have.
pub(super) fn expect_type(input: &'static str, got: ElementType, expected: ElementType) -> Result<(), Error> {
    if got == expected { Ok(()) } else { Err(Error::TypeMismatch { input, got, expected }) }
}

//! The cases of `KeyValueCache` of static batching. They are like those of dynamic batching but for their attributes
//! and inputs, and [`run`](crate::run) runs them, too.

use std::path::Path;

use kvcache_schema::StaticAttributes;

use crate::read::{ReadError, read_case, read_folders};
use crate::rules::OperatorPage;
use crate::tensor::Tensor;

/// A node with its state, and calls that are made one after the other.
pub type Case = crate::Case<StaticAttributes, StepInputs>;

/// One call.
pub type Step = crate::Step<StepInputs>;

/// The inputs of a call other than `cache` and `scale`.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the fields are the operator's inputs")]
pub struct StepInputs {
    pub current_key: Tensor,
    pub current_value: Tensor,
    pub start_pos: Tensor,
}

/// The cases of this suite, by name.
///
/// # Errors
/// If there is none, or one cannot be read.
pub fn cases() -> Result<Vec<Case>, ReadError> {
    read_cases(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/static_cases")))
}

/// The cases in the subfolders of `folder`, by name.
///
/// # Errors
/// If there is none, or one cannot be read.
pub fn read_cases(folder: &Path) -> Result<Vec<Case>, ReadError> {
    read_folders(folder, |folder| {
        read_case(folder, OperatorPage::StaticKeyValueCache, StaticAttributes::set, |tensor| {
            Ok(StepInputs {
                current_key: tensor("current_key")?,
                current_value: tensor("current_value")?,
                start_pos: tensor("start_pos")?,
            })
        })
    })
}

//! Validation: every rule is checked before the first byte is written.

pub(crate) mod alias_check;
pub(crate) mod indices;
pub(crate) mod shapes;
pub(crate) mod stores;

pub(crate) use alias_check::AliasCheck;
pub(crate) use shapes::{equal_type, types};

//! The ids of sequences.

use std::fmt;

use serde::{Serialize, Serializer};
use slotmap::{Key, new_key_type};

new_key_type! {
    /// A sequence's id. That of a freed sequence is never given again; the default, the null id, is no sequence's.
    ///
    /// It has a meaning only to the manager that gave it, and to that manager's clones. Another manager does not notice
    /// that it is not its own, and may take it for that of one of its own sequences.
    pub struct SeqId;
}

impl SeqId {
    /// Why no sequence has it.
    pub(crate) fn absence(self) -> &'static str {
        if self == Self::default() { "it is the null id" } else { "it was freed" }
    }
}

impl fmt::Display for SeqId {
    /// The number that names the sequence in other languages: `slotmap::KeyData::as_ffi`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.data().as_ffi().fmt(f)
    }
}

impl Serialize for SeqId {
    /// As that number.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.data().as_ffi().serialize(serializer)
    }
}

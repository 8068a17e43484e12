//! How callers name sequences.

use slotmap::new_key_type;

new_key_type! {
    /// A sequence's id. That of a freed sequence is never given again.
    pub struct SeqId;
}

//! The cases of `MultiHeadAttention` and `MultiHeadCacheAttention`.
//!
//! A case is a folder like those of `KeyValueCache`, with a cache or without. The state after a call must match bit for
//! bit. The output comes from an oracle in float64 and has a tolerance for each element, derived from the number
//! formats and the lengths of the sums (`oracle/attention_tolerance.py`).

mod case;

pub use case::{Case, Inputs, Operator, Step, cases, read_cases};

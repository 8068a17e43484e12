//! The operators of this project as implementations.

mod attention;
mod key_value_cache;
mod memory;

pub use attention::{Attention, check_attention, run_attention, stored};
pub use key_value_cache::{Operator, StaticOperator, inputs_of, run_calls, run_static_calls, static_inputs_of};
pub use memory::{read, write};

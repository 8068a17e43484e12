//! The operators of this project as implementations.

mod attention;
mod key_value_cache;
mod memory;

pub use attention::Attention;
pub use key_value_cache::{Operator, StaticOperator, run_calls, run_static_calls};
pub use memory::{read, write};

//! The operators of this project as implementations.

mod attention;
mod dynamic;
mod memory;
mod static_batching;

pub use attention::Attention;
pub use dynamic::Operator;
pub use memory::{read, write};
pub use static_batching::StaticOperator;

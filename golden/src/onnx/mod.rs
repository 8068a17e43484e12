//! Cases as ONNX models of one node, and tensors in ONNX's format.

mod case;
mod messages;
mod node;
mod tensor;

pub use case::NodeCase;
pub(crate) use case::{LeftOut, state};
pub use messages::TensorProto;
pub use node::{Dims, Node};

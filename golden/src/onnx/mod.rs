//! Cases as ONNX models of one node, and tensors in ONNX's format.

mod case;
mod messages;
mod node;
mod tensor;

pub(crate) use case::LeftOut;
pub use case::NodeCase;
pub use messages::TensorProto;
pub use node::Node;

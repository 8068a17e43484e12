//! The errors of nodes and calls, and their path to ONNX Runtime, which is C++ behind a C interface.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kvcache_op::{ElementType, panic_message};
use ort::value::TensorElementType;

/// Why a node or a call is refused, or the library cannot be registered. The runtime gives the text to the user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{kind}: {0}", kind = .0.kind())]
    Operator(#[from] kvcache_op::Error),
    /// A node of which no kernel can be made.
    #[error("{operator} node '{name}': {reason}")]
    Node { operator: &'static str, name: String, reason: Box<Error> },
    /// A call of ONNX Runtime's interface failed.
    #[error(transparent)]
    Runtime(#[from] ort::Error),
    #[error("attribute {name} is of another type, expected {expected} (ONNX Runtime: {reason})")]
    AttributeType { name: &'static str, expected: &'static str, reason: String },
    /// The node's state would be the session's instead of the caller's.
    #[error("{name} is an initializer, expected a graph input: the operator writes it, and the caller keeps it")]
    Initializer { name: &'static str },
    /// The node's state is the result of another node.
    #[error(
        "{name} is {value}, by its name the result of a node that a tool has put before this one, expected a graph \
         input: what the operator stores would be lost. `python -m kvcache_ops doctor MODEL` names that node"
    )]
    Computed { name: &'static str, value: String },
    /// ONNX Runtime has made a float32 node of a float16 one: its cast insertion.
    #[error(
        "ONNX Runtime has changed this float16 node to float32, as its neighbors have no float16 kernels, and would \
         give it copies of float16 tensors: what it stores in cache and scale would be lost or differ. Keep it \
         float16: put a Reshape before current_value, or make {output} a graph output"
    )]
    CastInserted { output: &'static str },
    /// An input that has elements of a type that no operator knows.
    #[error("type_mismatch: {name} is of type {}, expected {}", name_of(*got), names(expected))]
    ElementType { name: &'static str, got: TensorElementType, expected: &'static [ElementType] },
    #[error("{name} is missing")]
    Missing { name: &'static str },
    /// A tensor that the processor which needs it cannot reach.
    #[cfg(feature = "cuda")]
    #[error("{name} is in memory of {got}, expected memory of {expected}")]
    Device { name: &'static str, got: String, expected: &'static str },
    /// CUDA is not there, or refuses.
    #[cfg(feature = "cuda")]
    #[error("{kind}: {0}", kind = .0.kind())]
    Cuda(#[from] kvcache_op::cuda::Error),
    /// An error that the kernels found on the device, in a call that was already reported as done.
    #[cfg(feature = "cuda")]
    #[error("device_status: in an earlier call of this node {0}; tokens without a place in the cache were skipped")]
    EarlierCall(kvcache_op::cuda::Status),
    /// A runtime from before the interface that the library uses.
    #[error("ONNX Runtime has version {got}, expected 1.{expected} or later")]
    OldRuntime { got: String, expected: u32 },
    /// A second copy of the runtime in one process.
    #[error("another copy of ONNX Runtime in this process has registered this library, which works with one only")]
    SecondRuntime,
    /// The runtime did not accept the operator's definition.
    #[error("ONNX Runtime refused the definition of the operator: {0}")]
    Definition(String),
    /// A panic, caught before it reached the runtime.
    #[error("the operator panicked, which is a defect of this library: {0}")]
    Panic(String),
}

/// The name of a type as the operators would spell it, like `bool` or `float64`.
fn name_of(element: TensorElementType) -> String {
    format!("{element:?}").to_lowercase()
}

fn names(types: &[ElementType]) -> String {
    types.iter().map(|element| element.name()).collect::<Vec<_>>().join(" or ")
}

/// Runs `f`, a callback of ONNX Runtime, and turns an error or a panic into an error of the runtime.
pub(crate) fn guard<T>(f: impl FnOnce() -> Result<T, Error>) -> ort::Result<T> {
    catch(f).map_err(|error| ort::Error::new(without_nul(&error.to_string())))
}

/// Runs `f`; a panic becomes an error, since unwinding into C++ would abort the process.
///
/// Nothing sees what a panicking `f` leaves half done: all that it can reach belongs to one call of the runtime.
pub(crate) fn catch<T>(f: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(f))
        .unwrap_or_else(|payload| Err(Error::Panic(panic_message(&*payload).unwrap_or("no message").to_owned())))
}

/// `text` without NUL bytes: C would take one as the end, and `ort` panics on one.
pub(crate) fn without_nul(text: &str) -> String {
    text.replace('\0', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_with_its_message() {
        for (got, expected) in
            [(catch::<()>(|| panic!("number {}", 2)), "number 2"), (catch(|| std::panic::panic_any(3)), "no message")]
        {
            assert!(matches!(got, Err(Error::Panic(message)) if message == expected));
        }
    }

    #[test]
    fn a_nul_byte_does_not_cut_a_text() {
        assert_eq!(without_nul("head_dim\0 is 3"), "head_dim is 3");
    }
}

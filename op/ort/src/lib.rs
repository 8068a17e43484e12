#![doc = include_str!("../README.md")]
//! `tests/session` is a Rust program of both kinds. One that registers the library by its path is bound to no version
//! of `ort`. A Rust program that needs no graph calls `kvcache-op`.
//!
//! # What it does
//! - It registers each operator in both of its domains, for every choice of types, with ONNX Runtime 1.20 and later.
//!   With an older one registration fails, in a sentence that names the version.
//! - A node that cannot work is refused when the session is made: attributes out of range or of another type than
//!   integer, types that do not go together, a `cache` or `scale` that is an initializer (static scales may be one), a
//!   float16 node that the runtime has changed to float32.
//! - A call is checked before its first byte is written. The message of a refused call begins with the stable name of
//!   the rule that it breaks, as in `kvlen_mismatch: kvstarts gives batch 1 ...`.
//! - No panic reaches the runtime: it becomes an error of the call.
//! - Large calls are split among the session's own threads.
//! - `QuantizedMatMul` and `QuantizedGather`, of the domain `kvcache_ops`, are the CPU provider's alone. They hold no
//!   state; panels, scales and minima may be initializers, which the runtime maps from a file.
//! - An `attn_mask` without elements, of whatever type, counts as not given, and so does an unused `scale`: exports
//!   write both.
//!
//! # In-place writing
//! `cache` and `scale` are inputs that the operators write. ONNX Runtime has no notion of that. It works because the
//! runtime hands an operator the memory that the caller bound. So:
//! - Make `cache` and `scale` graph inputs. A node in the branch of an `If`, or in the body of a `Loop` or `Scan`,
//!   takes them from the outer scope.
//! - Read them after the call, in the caller's own memory, not by another node: the runtime sees no order between a
//!   node that reads the cache and the one that writes it.
//!
//! Otherwise what the operator writes is lost, or read too early. Most of this it cannot detect:
//! - **A cache that is the state of a `Scan` or `Loop`**, that is, an input of the body. The runtime may copy the state
//!   for the next step before the node has stored into it. Outputs and state are then wrong, without an error. This is
//!   not refused, because what the runtime tells an operator of its node (the names, types and shapes of inputs and
//!   outputs, and constants) is the same as for a cache from the outer scope.
//! - A cache that another node computes, `Identity` and `Cast` included, or that the runtime copies between devices:
//!   the copy is written.
//! - An initializer that is also a graph input, when the caller leaves it out: the session's own memory is written. (An
//!   initializer that is no graph input is refused, unless it has no elements.)
//! - A numpy array that is not C-contiguous, or a list, given to `session.run`: the runtime makes a copy.
//! - A numpy array marked as read-only is written all the same. Memory that is mapped read-only ends the process by a
//!   signal.
//!
//! Nodes on one cache may run in any order and at once; nodes of different layers never disturb each other.
//!
//! # Float16 on the CPU
//! ONNX Runtime 1.20 to 1.22, and again 1.30 to 1.32, changes some float16 nodes to float32: those between nodes that
//! have no float16 kernel, as `MatMul`, `Add`, `Mul` and `Einsum` have none. It does so if all nodes that compute
//! `current_key` and `current_value` (and `query`), and all that use the outputs, are of this kind, and no output is a
//! graph output. It puts a `Cast` before every float16 input, `cache` and `scale` too, so the node would store into
//! copies. No session option prevents it. Such a node is refused when the session is made. On every version these keep
//! a node float16:
//! - a `Reshape` between the node that computes `current_value` (or `current_key`, or `query`) and this one, or
//! - `key`, `value` or `attn_output` as a graph output; in the branch of an `If`, as an output of the branch.
//!
//! A `MultiHeadAttention` that is changed so is not refused: it writes no input, and its output is as near.
//!
//! # CUDA
//! Built with the feature `cuda`, as `make build` does, the library also registers the operators for ONNX Runtime's
//! CUDA provider. It links nothing of CUDA: the driver is opened when a session puts a node on the provider, so the
//! same file runs CPU sessions on machines without CUDA. `docs/CUDA.md` in the repository has the kernels, their limits
//! and what becomes of errors that they find. In ONNX Runtime:
//! - `kvstarts` (but not in `MultiHeadAttention`), `max_seqlen`, `max_kvlen`, `decoding_batches` and the `start_pos`
//!   of static batching are read on the host. Where a graph computes them on the device, the runtime copies them, and
//! waits for the copy. All other   tensors stay on the device. Bind `cache` and `scale` there
//! (`io.bind_input("cache", "cuda", 0, ...)`): an array given to `session.run` is copied, and what is written is
//! lost.
//! - An error that the kernels find is reported by the **next** call of the node, which fails and does nothing. To learn
//!   of the last call's errors, make a call of no sequences after it.
//!
//! # Limits of the runtime
//! - The library works with one copy of ONNX Runtime in a process, and refuses a second.
//! - Registering it twice in the options of one session fails.
//! - The runtime does not show an operator the attributes that it does not ask for: a misspelled one counts as absent.
//! - Before version 1.24 the runtime crashes on a node with an input of the empty name. There leave an optional input
//!   out or, where another one follows it, give one without elements, as an initializer or from the caller.
//! - Version 1.20 may fail to make the first two sessions with custom operators at the same time; make them in turn. In
//!   the branch of an `If` or the body of a `Loop` it does not tell a node that its cache is an initializer of the
//!   outer scope, so that one is not refused there.

#[cfg(feature = "cuda")]
mod cuda;
mod error;
mod kernel;
mod node;
mod node_attributes;
mod node_types;
mod register;
mod runtime;
mod shape_inference;
mod tensors;

pub use node_types::runtime_type;
/// The interface of ONNX Runtime that the library needs: version 1.20.
pub use ort::sys::ORT_API_VERSION;
pub use register::{RegisterCustomOps, register};

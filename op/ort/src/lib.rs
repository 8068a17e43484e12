//! The operator `KeyValueCache` as a custom operator library of ONNX Runtime.
//!
//! This crate builds a shared library with one symbol, [`RegisterCustomOps`]. It is a library for the runtime and not for
//! Rust programs, which register it by its path as programs in every language do; so it binds nobody to a version of the
//! `ort` crate, or to the way that it is linked:
//!
//! ```python
//! options = onnxruntime.SessionOptions()
//! options.register_custom_ops_library("target/release/libkvcache_ort.so")
//! session = onnxruntime.InferenceSession("model.onnx", options)
//! ```
//!
//! ```rust,ignore
//! let session = Session::builder(&environment)?
//!     .with_operator_library("target/release/libkvcache_ort.so")?
//!     .commit_from_file("model.onnx")?;
//! ```
//!
//! `tests/session` is such a program. A Rust program that needs no graph calls `kvcache-op` instead.
//!
//! # What it does
//! - It registers the operator in both of its domains, for every choice of types. ONNX Runtime 1.20 and later can load it;
//!   an older one is refused with a sentence that names its version.
//! - A node that cannot work is refused when the session is made: an attribute out of range or of another type than
//!   integer, types that do not go together, a cache or a scale that is an initializer, a float16 node that the runtime
//!   has changed to float32 (see below).
//! - A call is checked before its first byte is written. The message of a refused one begins with the stable name of the
//!   rule that it breaks, as in `kvlen_mismatch: kvstarts gives batch 1 ...`.
//! - No panic reaches the runtime; should there be one, it becomes an error of the call.
//! - Work that is worth it goes to the session's own threads.
//!
//! # In-place writing
//! `cache` and `scale` are inputs that the operator writes, which ONNX Runtime has no notion of. It works where the runtime
//! hands the operator the memory that the caller bound. So:
//! - Make `cache` and `scale` graph inputs. A node in the branch of an `If` or the body of a `Loop` or `Scan` takes them
//!   from the graph around.
//! - Read them after the call, in the caller's own memory, not by another node: the runtime sees no order between a node
//!   that reads the cache and the one that writes it.
//!
//! Elsewhere the operator writes memory that nobody reads, or that is read too early, and mostly it cannot tell:
//! - **a cache that is the state of a `Scan` or `Loop`** (an input of the body that the body gives on): the runtime may
//!   copy the state for the next step before the node has stored into it. Outputs and state are then wrong, without an
//!   error. What the runtime tells an operator of its node (names, types and shapes of inputs and outputs, constants) is
//!   the same as for a cache from the graph around, so that this is not refused;
//! - a cache that another node computes, as `Identity` or `Cast` do, or that the runtime copies between devices;
//! - an initializer that is also a graph input, when the caller leaves it out: the session's own memory is written.
//!   (One that is no graph input is refused.);
//! - a numpy array that is not C-contiguous, or a list, given to `session.run`: the runtime makes a copy;
//! - a numpy array that is marked as read-only is written all the same, and memory that the system has mapped as read-only
//!   ends the process by a signal.
//!
//! Nodes on one cache may run in any order and at once; nodes of different layers never disturb each other. And the runtime
//! does not show the operator attributes that it does not ask for: a misspelt one counts as absent.
//!
//! # Float16 on the CPU
//! Versions of ONNX Runtime before 1.23 and since 1.30 change a float16 node to float32 if no node that computes its
//! `current_key` and `current_value`, or uses its `key` and `value`, has a float16 kernel (`MatMul`, `Add`, `Mul` and
//! `Einsum` have none), and neither `key` nor `value` is an output of its graph. They put a `Cast` before every float16
//! input, `cache` and `scale` too, so the node would store into copies. No session option prevents it. Such a node is
//! refused when the session is made. What keeps a node float16 on every version:
//! - a `Reshape` between the node that computes `current_value` (or `current_key`) and this one, or
//! - `key` (or `value`) as a graph output; in the branch of an `If` as an output of the branch.
//!
//! # CUDA
//! Built with the feature `cuda`, as `make build` does, the library registers the operator for ONNX Runtime's CUDA provider
//! as well. It links nothing of CUDA: the driver is opened when a session puts a node on the provider, so the same file
//! serves CPU sessions on machines without CUDA. A node runs on the session's stream as two kernels.
//! - `kvstarts`, `max_seqlen` and `max_kvlen` are read on the host; where a graph computes them on the device, the runtime
//!   copies them, and waits for the copy. All other tensors stay on the device. Bind `cache` and `scale` there
//!   (`io.bind_input("cache", "cuda", 0, ...)`): an array given to `session.run` is copied, and what is written is lost.
//! - `seqstarts`, `start_pos` and `cachestarts` are checked by the kernels. What they find wrong is told by the **next** call
//!   of the node, which fails and does nothing; tokens with a wrong slot are skipped, all others are moved. Who wants to know
//!   of the last call, too, makes one of no sequences after it.
//!
//! # Limits of the runtime
//! - The library serves one copy of ONNX Runtime in a process, and refuses a second.
//! - Registering it twice in the options of one session fails, as does, before version 1.24, a node whose `scale` has the
//!   empty name; leave the input out there.
//! - Version 1.20 may fail to make the first two sessions with custom operators at the same time; make them in turn. Nor
//!   does it tell a node in the branch of an `If` or the body of a `Loop` that its cache is an initializer of the graph
//!   around, so that one is not refused there.

mod api_1_24;
mod attributes;
#[cfg(feature = "cuda")]
mod cuda;
mod error;
mod infer;
mod kernel;
mod node;
mod node_types;
mod operator;
mod positions;
mod register;
mod runtime;
mod tensor;
mod unwind;
mod workers;

pub use register::RegisterCustomOps;

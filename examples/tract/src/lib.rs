//! `KeyValueCache` as an operator of [tract](https://docs.rs/tract-onnx): [`register`] it, then load a model.
//!
//! tract finds an operator by its name alone, and hands values on by reference count, uncopied. A cache is written in
//! place all the same: keep a clone of the `TValue` that you pass as `cache` (and as `scale`), and it sees what each
//! run has stored. tract has no int4.

mod expansion;
mod operator;

pub use expansion::register;

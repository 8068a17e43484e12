//! What a call reads and writes: its current tokens, the indices that say where tokens are, and its outputs.

use std::mem::MaybeUninit;

use kvcache_schema::shape;
use ndarray::{Array, IntoDimension};

use crate::error::Error;
use crate::tensor::{Element, Shape, TensorMut, TensorRef};

/// The operator's inputs that are only read. Everything is checked when a call is made.
///
/// On the host all are tensors of the host. A call on a device reads those of type `T` on the device, and takes
/// `kvstarts` as a `K`.
#[derive(Debug, Clone)]
pub struct Inputs<'a, T = TensorRef<'a>, K = TensorRef<'a>> {
    /// T1, shape (`seqstarts[B]`, H, Dh).
    pub current_key: T,
    /// T1, shape (`seqstarts[B]`, H, Dh).
    pub current_value: T,
    /// The lengths, positions and slots of the sequences.
    pub indices: IndexInputs<'a, T, K>,
}

/// The inputs of type int64: the lengths, positions and slots of the sequences of a batch. They are the same for every
/// layer of a step.
///
/// On the host all six are tensors. A call on a device reads the inputs of type `T` on the device, and takes `kvstarts`
/// as a `K`; the bounds are the host's there too.
#[derive(Debug, Clone)]
pub struct IndexInputs<'a, T = TensorRef<'a>, K = TensorRef<'a>> {
    /// Where each sequence's tokens start in the current keys and values, and their total. int64, shape (B + 1).
    pub seqstarts: T,
    /// Where each sequence's tokens start in `key` and `value`, and their total. int64, shape (B + 1).
    pub kvstarts: K,
    /// Each sequence's first slot, or the first slots of its pages. int64, shape (B) or, paged, (B, MaxP).
    pub cachestarts: T,
    /// How many tokens of each sequence the cache holds before this call. int64, shape (B).
    pub start_pos: T,
    /// At least the largest number of current tokens of a sequence. int64, a scalar or of shape (1).
    pub max_seqlen: TensorRef<'a>,
    /// At least the largest number of tokens of a sequence, past and current. int64, a scalar or of shape (1).
    pub max_kvlen: TensorRef<'a>,
}

impl<'a> IndexInputs<'a> {
    pub(crate) fn named(&self) -> [(&'static str, &TensorRef<'a>); 6] {
        [
            ("seqstarts", &self.seqstarts),
            ("kvstarts", &self.kvstarts),
            ("cachestarts", &self.cachestarts),
            ("start_pos", &self.start_pos),
            ("max_seqlen", &self.max_seqlen),
            ("max_kvlen", &self.max_kvlen),
        ]
    }
}

/// The operator's outputs, in memory of the caller.
#[derive(Debug)]
pub struct Outputs<'a> {
    /// T1, shape (`kvstarts[B]`, H * `num_repeat`, Dh).
    pub key: TensorMut<'a>,
    /// T1, shape (`kvstarts[B]`, H * `num_repeat`, Dh).
    pub value: TensorMut<'a>,
}

/// Outputs of this shape and of type T that are allocated here, which `run` writes.
pub(crate) fn run_alloc<T: Element, S: IntoDimension + Into<Shape> + AsRef<[usize]> + Copy>(
    shape: S,
    run: impl FnOnce(Outputs<'_>) -> Result<(), Error>,
) -> Result<[Array<T, S::Dim>; 2], Error> {
    let (mut key, mut value) = (allocate::<T, _>("key", shape)?, allocate::<T, _>("value", shape)?);
    // SAFETY: both are new arrays of `shape` elements of T in row-major order, used by nothing else until the call is
    // over; a call writes outputs and does not read them.
    let outputs = unsafe {
        Outputs {
            key: TensorMut::from_raw_parts(T::TYPE, shape, key.as_mut_ptr().cast()),
            value: TensorMut::from_raw_parts(T::TYPE, shape, value.as_mut_ptr().cast()),
        }
    };
    run(outputs)?;
    // SAFETY: `run` has returned `Ok`, so it has written every element of both outputs.
    Ok(unsafe { [key.assume_init(), value.assume_init()] })
}

/// An output of this shape, uninitialized. Its size is the caller's, so a failed allocation is an error, not an abort.
pub(crate) fn allocate<T, S>(output: &'static str, shape: S) -> Result<Array<MaybeUninit<T>, S::Dim>, Error>
where
    S: IntoDimension + AsRef<[usize]> + Copy,
{
    let out_of_memory = || Error::OutOfMemory { output, shape: shape.as_ref().into() };
    let len = shape::elements(shape.as_ref()).ok_or_else(out_of_memory)?;
    let mut elements = Vec::new();
    elements.try_reserve_exact(len).map_err(|_| out_of_memory())?;
    // SAFETY: `try_reserve_exact` has made room for `len` elements, and a `MaybeUninit` needs no value.
    unsafe { elements.set_len(len) };
    Array::from_shape_vec(shape.into_dimension(), elements).map_err(|_| out_of_memory())
}

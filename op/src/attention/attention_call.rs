//! A checked call of an attention operator, waiting for its output.

use std::mem::MaybeUninit;

use kvcache_attention::{AttentionGeometry, AttentionIndices, AttentionPointers, AttentionProblem, Keys, Mask};
use kvcache_kernels::{Problem, Workers};
use kvcache_schema::multi_head_attention::OUTPUTS;
use ndarray::Array3;

use super::backend::AttentionBackend;
use crate::backend::Backend;
use crate::error::Error;
use crate::operator::allocate;
use crate::tensor::{Element, TensorMut};
use crate::validate::{CheckedCall, Extents, equal_type, shapes};

/// Where the keys and values of a checked call are.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one in a call, and a box would be an allocation in each")]
pub(super) enum CheckedKeys<'a> {
    /// `key` and `value`.
    Packed([*const u8; 2]),
    /// In the cache, after this call's stores; `num_repeat` is 0.
    Cache(CheckedCall<'a>, Backend),
}

/// A call whose inputs, cache and scale have been checked, and which has written nothing yet.
#[derive(Debug)]
pub struct AttentionCall<'a> {
    pub(super) backend: AttentionBackend,
    pub(super) geometry: AttentionGeometry,
    pub(super) indices: AttentionIndices<'a>,
    pub(super) keys: CheckedKeys<'a>,
    pub(super) query: *const u8,
    pub(super) attn_mask: Option<Mask>,
    /// The memory of every tensor checked so far.
    pub(super) extents: Extents,
}

impl<'a> AttentionCall<'a> {
    /// The shape of `attn_output`: (`seqstarts[B]`, Hq, Dh).
    pub fn output_shape(&self) -> [usize; 3] {
        [self.indices.seqstarts[self.geometry.batch] as usize, self.geometry.num_heads, self.geometry.head_dim]
    }

    /// Stores the current tokens, if there is a cache, then attends and writes `attn_output`, on the threads of
    /// `workers`.
    ///
    /// # Errors
    /// An [`Error`] that concerns `attn_output`; nothing has then been written.
    pub fn run(self, attn_output: TensorMut<'a>, workers: &dyn Workers) -> Result<(), Error> {
        let backend = self.backend;
        let store = match self.keys {
            CheckedKeys::Packed(_) => Backend::default(),
            CheckedKeys::Cache(_, store) => store,
        };
        let mut problem = self.bind(attn_output)?;
        problem.store(store.kernel(), workers);
        backend.kernel().attend(&mut problem, workers);
        Ok(())
    }

    /// As [`run`](Self::run), with the output allocated here, of the type of `query`.
    ///
    /// # Errors
    /// Any [`Error`] of `attn_output`; nothing has then been written.
    pub fn run_alloc<T: Element>(self, workers: &dyn Workers) -> Result<Array3<T>, Error> {
        let shape = self.output_shape();
        let mut output: Array3<MaybeUninit<T>> = allocate(OUTPUTS[0], shape)?;
        // SAFETY: a new array of `shape` elements of T in row-major order, used by nothing else until the call is over;
        // a call writes its output and does not read it.
        let tensor = unsafe { TensorMut::from_raw_parts(T::TYPE, shape, output.as_mut_ptr().cast()) };
        self.run(tensor, workers)?;
        // SAFETY: `run` has returned `Ok`, so it has written every element.
        Ok(unsafe { output.assume_init() })
    }

    /// The call with its output, ready for a kernel: for callers that drive one themselves.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn bind(self, attn_output: TensorMut<'a>) -> Result<AttentionProblem<'a>, Error> {
        let output_shape = self.output_shape();
        let Self { geometry, indices, keys, query, attn_mask, mut extents, .. } = self;
        equal_type(OUTPUTS[0], attn_output.element, geometry.t1)?;
        let reason = "the shape (seqstarts[B], Hq, Dh) of this call";
        shapes::equal(OUTPUTS[0], &attn_output.shape, &output_shape, reason)?;
        extents.write(OUTPUTS[0], (&attn_output).into())?;
        let keys = match keys {
            CheckedKeys::Packed(pointers) => Keys::Packed(pointers),
            CheckedKeys::Cache(checked, _) => {
                let (geometry, indices, pointers) = checked.into_stores();
                // SAFETY: types, shapes, indices, alignment and overlap are those of a `CheckedCall`; each tensor's
                // memory is valid for 'a, and borrowed so that no other call writes it. num_repeat is 0, so there are
                // no outputs.
                Keys::Cache(unsafe { Problem::assume_checked(geometry, indices, pointers) })
            }
        };
        let pointers = AttentionPointers { query, attn_mask, attn_output: attn_output.data };
        // SAFETY: types, shapes, indices, alignment and overlap have been checked when the call was made and, of the
        // output, here; each tensor's memory is valid for 'a, as a slice or by `from_raw_parts`, for reads or writes of
        // its shape, and borrowed so that no other call writes it.
        Ok(unsafe { AttentionProblem::assume_checked(geometry, indices, keys, pointers) })
    }
}

//! A checked call, waiting for its outputs.

use std::marker::PhantomData;

use kvcache_kernels::{Addressing, Indices, Problem, Stores, Workers};
use smallvec::SmallVec;

use super::checked_sequences::{CheckedCall, Sequences};
use crate::backend::Backend;
use crate::error::Error;
use crate::operands::Outputs;
use crate::validate::CheckedTensors;

/// A call of static batching whose inputs, cache and scale have been checked, and which has written nothing yet.
#[derive(Debug)]
pub struct StaticCall<'a> {
    backend: Backend,
    checked: CheckedCall,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> StaticCall<'a> {
    /// A checked call whose tensors are borrowed for `'a`.
    pub(super) fn new(backend: Backend, checked: CheckedCall) -> Self {
        Self { backend, checked, memory: PhantomData }
    }

    /// The shape of `key` and of `value`: (B, `start_pos` + S, H * `num_repeat`, Dh).
    pub fn output_shape(&self) -> [usize; 4] {
        self.checked.outputs.shape
    }

    /// Stores the current tokens into the cache, then writes all tokens of all sequences to `outputs`, on the threads
    /// of `workers`.
    ///
    /// # Errors
    /// An [`Error`] that concerns `key` or `value`; nothing has then been written.
    pub fn run(self, outputs: Outputs<'a>, workers: &dyn Workers) -> Result<(), Error> {
        let backend = self.backend;
        self.with_problem(outputs, |problem| backend.kernel().run(problem, workers))
    }

    /// Hands the call with its outputs to `run`, ready for a kernel: for callers that drive one themselves, phase by
    /// phase.
    ///
    /// # Errors
    /// An [`Error`] that concerns `key` or `value`.
    pub fn with_problem<R>(self, outputs: Outputs<'a>, run: impl FnOnce(&mut Problem<'_>) -> R) -> Result<R, Error> {
        let CheckedCall { tensors, sequences, outputs: expected } = self.checked;
        let CheckedTensors { mut geometry, pointers, extents } = tensors;
        if expected.shape.contains(&0) {
            geometry.batch = 0; // no tensor has an element that the call touches, and the batch may be any number
        }
        let tables = Tables::new(geometry.batch, &sequences);
        // SAFETY: types, shapes, alignment and overlap are those of a `CheckedCall`. The tables are of sequences of equal
        // length, no longer than the stride between them, so no two share a slot, and of no more sequences than the
        // cache has. Each tensor's memory is valid for 'a, as a slice or by `from_raw_parts`, for reads or writes of its
        // shape, and borrowed so that no other call writes it.
        let stores = unsafe { Stores::assume_checked(geometry, tables.indices(&sequences), pointers) };
        Ok(run(&mut expected.problem(stores, extents, outputs)?))
    }
}

/// Sequences of equal length as kernels read them: a table entry for each. Allocates nothing up to 64 sequences.
struct Tables {
    seqstarts: SmallVec<[i64; 65]>,
    kvstarts: SmallVec<[i64; 65]>,
    start_pos: SmallVec<[i64; 64]>,
}

impl Tables {
    /// The tables of `batch` sequences whose tokens, in all, can be counted.
    fn new(batch: usize, sequences: &Sequences) -> Self {
        let &Sequences { seqlen, start_pos, .. } = sequences;
        let starts = |len: usize| (0..=batch).map(|b| (b * len) as i64).collect();
        Self {
            seqstarts: starts(seqlen),
            kvstarts: starts(start_pos + seqlen),
            start_pos: SmallVec::from_elem(start_pos as i64, batch),
        }
    }

    fn indices(&self, sequences: &Sequences) -> Indices<'_> {
        Indices {
            seqstarts: &self.seqstarts,
            kvstarts: &self.kvstarts,
            start_pos: &self.start_pos,
            addressing: Addressing::Strided { stride: sequences.stride },
        }
    }
}

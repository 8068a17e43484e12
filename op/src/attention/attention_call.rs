//! A checked call of an attention operator, waiting for its output.

use std::mem::MaybeUninit;

use kvcache_attention::AttentionProblem;
use kvcache_kernels::Workers;
use kvcache_schema::ElementType::Float32;
use kvcache_schema::multi_head_attention::OUTPUTS;
use kvcache_schema::multi_head_cache_attention::MASS;
use ndarray::Array3;

use crate::backend::{AttentionBackend, Backend};
use crate::error::Error;
use crate::operands::allocate;
use crate::tensor::{Element, TensorMut};
use crate::validate::{AliasCheck, equal_type, shapes};

/// A call whose inputs, cache and scale have been checked, and which has written nothing yet.
#[derive(Debug)]
pub struct AttentionCall<'a> {
    pub(super) backend: AttentionBackend,
    /// Stores the current tokens, if there is a cache.
    pub(super) store: Backend,
    pub(super) problem: AttentionProblem<'a>,
    /// The memory of every tensor checked so far.
    pub(super) aliases: AliasCheck,
}

impl<'a> AttentionCall<'a> {
    /// The shape of `attn_output`: (`seqstarts[B]`, Hq, Dh).
    pub fn output_shape(&self) -> [usize; 3] {
        let geometry = self.problem.geometry();
        [self.problem.total_seqlen(), geometry.num_heads, geometry.head_dim]
    }

    /// The shape of `attention_mass`: (Hq, `kvstarts[B]`).
    pub fn mass_shape(&self) -> [usize; 2] {
        self.problem.mass_shape()
    }

    /// Stores the current tokens, if there is a cache, then attends and writes `attn_output`, on the threads of
    /// `workers`.
    ///
    /// # Errors
    /// An [`Error`] that concerns `attn_output`; nothing has then been written.
    pub fn run(self, attn_output: TensorMut<'a>, workers: &dyn Workers) -> Result<(), Error> {
        self.run_with(attn_output, None, workers)
    }

    /// As [`run`](Self::run), and writes `attention_mass`, float32: for each query head and each key the sum of the
    /// probabilities that the queries of its sequence give it, 0 for a key that none sees. Scores are computed twice for
    /// that.
    ///
    /// # Errors
    /// An [`Error`] that concerns an output; nothing has then been written.
    pub fn run_with_mass(
        self,
        attn_output: TensorMut<'a>,
        attention_mass: TensorMut<'a>,
        workers: &dyn Workers,
    ) -> Result<(), Error> {
        self.run_with(attn_output, Some(attention_mass), workers)
    }

    fn run_with(
        mut self,
        attn_output: TensorMut<'a>,
        mass: Option<TensorMut<'a>>,
        workers: &dyn Workers,
    ) -> Result<(), Error> {
        let mass = mass.map(|mass| self.bind_mass(&mass)).transpose()?;
        let Self { backend, store, .. } = self;
        let (mut problem, attn_output) = self.bind(attn_output)?;
        problem.store(store.kernel(), workers);
        backend.kernel().attend(&problem, attn_output, mass, workers);
        Ok(())
    }

    fn bind_mass(&mut self, mass: &TensorMut<'a>) -> Result<&'a mut [MaybeUninit<f32>], Error> {
        equal_type(MASS, mass.element, Float32)?;
        shapes::equal(MASS, &mass.shape, &self.mass_shape(), "the shape (Hq, kvstarts[B]) of this call")?;
        Ok(match self.aliases.write_bytes(MASS, mass.into())? {
            0 => &mut [],
            // SAFETY: as in `bind`; the tensor is aligned for its elements, checked above.
            len => unsafe { std::slice::from_raw_parts_mut(mass.data.cast(), len / size_of::<f32>()) },
        })
    }

    /// Runs the call with an output allocated here, of the type of `query`.
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

    /// The call and the memory of its output, ready for a kernel: for callers that drive one themselves.
    ///
    /// # Errors
    /// An [`Error`] that concerns `attn_output`.
    pub fn bind(
        mut self,
        attn_output: TensorMut<'a>,
    ) -> Result<(AttentionProblem<'a>, &'a mut [MaybeUninit<u8>]), Error> {
        equal_type(OUTPUTS[0], attn_output.element, self.problem.geometry().t1)?;
        let reason = "the shape (seqstarts[B], Hq, Dh) of this call";
        shapes::equal(OUTPUTS[0], &attn_output.shape, &self.output_shape(), reason)?;
        let attn_output = match self.aliases.write_bytes(OUTPUTS[0], (&attn_output).into())? {
            0 => &mut [],
            // SAFETY: the tensor is contiguous, of `len` bytes, and shares none with others of the call, checked above.
            // It is valid for writes for 'a, as a slice or by `from_raw_parts`, and borrowed so that nobody else
            // accesses it.
            len => unsafe { std::slice::from_raw_parts_mut(attn_output.data.cast(), len) },
        };
        Ok((self.problem, attn_output))
    }
}

//! A checked call of any operator, which waits for its outputs, and runs on the host or on a device.

use std::mem::MaybeUninit;

use kvcache_attention::AttentionProblem;
use kvcache_kernels::{AlikeSequences, Geometry, Pointers, Problem, Stores, Workers};
use kvcache_matmul::{Matrix, Product};
use kvcache_schema::{ElementType, OUTPUTS};
use ndarray::{Array, Dimension};
use smallvec::{SmallVec, smallvec};

use crate::backend::{Backends, Kernels};
use crate::error::Error;
use crate::operands::{Guards, Operand, allocate};
use crate::static_batching::StaticIndices;
use crate::tensor::{Element, Shape, TensorMut};
use crate::validate::{AliasCheck, alias_check, equal_type, shapes};

/// An output that a checked call writes.
#[derive(Debug, Clone)]
pub struct Output {
    /// Its name.
    pub name: &'static str,
    /// The type of its elements.
    pub element: ElementType,
    /// Its shape.
    pub shape: Shape,
    /// Whether a call need not have it.
    pub optional: bool,
    /// What decides the shape, in words.
    pub(crate) reason: &'static str,
}

impl Output {
    pub(crate) fn new(name: &'static str, element: ElementType, shape: impl Into<Shape>, reason: &'static str) -> Self {
        Self { name, element, shape: shape.into(), optional: false, reason }
    }
}

/// The outputs of a call, by position.
pub(crate) type ExpectedOutputs = SmallVec<[Output; 2]>;

/// `key` and `value`, with these axes before the heads, if their size fits.
pub(crate) fn key_and_value(
    geometry: &Geometry,
    num_repeat: usize,
    rows: &[usize],
    reason: &'static str,
) -> Result<ExpectedOutputs, Error> {
    let &Geometry { num_heads, head_dim, t1, .. } = geometry;
    let shape = |heads: &[usize]| Shape::from_iter(rows.iter().chain(heads).copied().chain([head_dim]));
    let heads = num_heads
        .checked_mul(num_repeat)
        .ok_or_else(|| alias_check::overflow(OUTPUTS[0], &shape(&[num_heads, num_repeat])))?;
    let shape = shape(&[heads]);
    alias_check::bytes(OUTPUTS[0], t1, &shape)?;
    Ok(smallvec![Output::new(OUTPUTS[0], t1, shape.clone(), reason), Output::new(OUTPUTS[1], t1, shape, reason)])
}

/// What a call does, with inputs that have been checked.
#[derive(Debug)]
pub(crate) enum Work<'a> {
    Stores {
        stores: Stores<'a>,
        num_repeat: usize,
    },
    Static {
        geometry: Geometry,
        pointers: Pointers,
        sequences: AlikeSequences,
        num_repeat: usize,
    },
    Attention(AttentionProblem<'a>),
    MatMul(Product<'a>),
    Gather {
        matrix: Matrix<'a>,
        rows: &'a [i64],
    },
    #[cfg(feature = "cuda")]
    Device(crate::device::DeviceWork),
}

impl Work<'_> {
    fn is_on_device(&self) -> bool {
        #[cfg(feature = "cuda")]
        if matches!(self, Self::Device(_)) {
            return true;
        }
        false
    }
}

/// A call whose inputs, cache and scale have been checked, and which has written nothing yet.
#[derive(Debug)]
pub struct Checked<'a> {
    backends: Backends,
    pub(crate) work: Work<'a>,
    outputs: ExpectedOutputs,
    /// The memory of every tensor checked so far.
    aliases: AliasCheck,
    pub(crate) guards: Guards<'a>,
}

impl<'a> Checked<'a> {
    pub(crate) fn new(
        backends: Backends,
        (work, outputs, aliases): (Work<'a>, ExpectedOutputs, AliasCheck),
        guards: Guards<'a>,
    ) -> Self {
        Self { backends, work, outputs, aliases, guards }
    }

    /// The outputs by position, with their types and shapes.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// The shape of the first output, and of every other that is not optional.
    pub fn output_shape(&self) -> &[usize] {
        &self.outputs[0].shape
    }

    /// Runs the call on the threads of `workers`: current tokens are stored into the cache, if there is one, then the
    /// outputs are written. They are in their order; optional ones may be left out at the end.
    ///
    /// # Errors
    /// An [`Error`] that concerns the outputs; nothing has then been written.
    pub fn run<'o>(self, outputs: impl IntoIterator<Item = TensorMut<'o>>, workers: &dyn Workers) -> Result<(), Error> {
        let backends = self.backends;
        self.run_on(outputs, &backends.kernels(), workers)
    }

    /// Runs the call as [`run`](Self::run) does, on kernels of the caller's.
    ///
    /// # Errors
    /// An [`Error`] that concerns the outputs; nothing has then been written.
    pub fn run_on<'o>(
        mut self,
        outputs: impl IntoIterator<Item = TensorMut<'o>>,
        kernels: &Kernels<'_>,
        workers: &dyn Workers,
    ) -> Result<(), Error> {
        let outputs: SmallVec<[Operand<'o>; 2]> = outputs.into_iter().map(Operand::from).collect();
        let memory = self.bind(&outputs)?;
        // SAFETY: `bind` has checked type, shape, alignment and overlap of each output; its memory is valid for writes,
        // as a `TensorMut`, which nobody else accesses as long as `outputs` lives.
        unsafe { self.work.run(&memory, kernels, workers) };
        Ok(())
    }

    /// Runs the call as [`run`](Self::run) does, with outputs that were made as [`outputs`](Self::outputs) says: each
    /// one's address, by position. A graph executor does so, and need not have types and shapes checked again.
    ///
    /// # Errors
    /// [`Error::Misaligned`], [`Error::OperandsOverlap`]; nothing has then been written.
    ///
    /// # Safety
    /// The call is one on the host. `outputs` are no more than it has, and no fewer than those that are not optional.
    /// Until this returns, each address is valid for writes of an output of this type and shape (any address where it
    /// has no elements), and nothing else reads or writes it.
    pub unsafe fn run_at(mut self, outputs: &[*mut u8], workers: &dyn Workers) -> Result<(), Error> {
        let mut memory = Memory::new();
        for (&Output { name, element, ref shape, .. }, &data) in self.outputs.iter().zip(outputs) {
            // SAFETY: of this type and shape, see `# Safety`.
            let TensorMut(tensor) = unsafe { TensorMut::from_raw_parts(element, shape.clone(), data) };
            memory.push((data, self.aliases.write(name, &tensor)?));
        }
        let backends = self.backends;
        // SAFETY: alignment and overlap are checked above; for the rest see `# Safety`.
        unsafe { self.work.run(&memory, &backends.kernels(), workers) };
        Ok(())
    }

    /// Runs the call with outputs that are allocated here: as many as the caller names, of type `T`.
    ///
    /// # Errors
    /// An [`Error`] that concerns the outputs; nothing has then been written.
    pub fn run_alloc<T: Element, D: Dimension, const N: usize>(
        self,
        workers: &dyn Workers,
    ) -> Result<[Array<T, D>; N], Error> {
        let expected = self.outputs.clone();
        let mut arrays = Vec::with_capacity(N);
        for Output { name, shape, .. } in expected.iter().take(N) {
            let array = allocate(name, &**shape)?.into_dimensionality();
            let rank = D::NDIM.unwrap_or(shape.len());
            arrays.push(array.map_err(|_| Error::RankMismatch {
                input: name,
                shape: shape.clone(),
                expected: rank,
            })?);
        }
        let arrays: Result<[Array<MaybeUninit<T>, D>; N], _> = arrays.try_into();
        let mut arrays = arrays.map_err(|_| self.wrong_count(N))?;
        // SAFETY: each is a new array of `shape` elements of T in row-major order, used by nothing else until the call
        // is over; a call writes outputs and does not read them.
        let tensor = |(array, Output { shape, .. }): (&mut Array<MaybeUninit<T>, D>, &Output)| unsafe {
            TensorMut::from_raw_parts(T::TYPE, shape.clone(), array.as_mut_ptr().cast::<u8>())
        };
        self.run(arrays.iter_mut().zip(&expected).map(tensor), workers)?;
        // SAFETY: `run` has returned `Ok`, so it has written every element.
        Ok(arrays.map(|array| unsafe { array.assume_init() }))
    }

    fn wrong_count(&self, got: usize) -> Error {
        let names: Vec<_> = self.outputs.iter().map(|output| output.name).collect();
        Error::OperandCount { what: "outputs", got, expected: names.join(", ") }
    }

    /// Checks number, place, type, shape and memory of the outputs: they share none with other tensors of the call.
    /// Gives each one's first byte and its bytes.
    pub(crate) fn bind(&mut self, outputs: &[Operand<'_>]) -> Result<Memory, Error> {
        let got = outputs.len();
        if got > self.outputs.len() || self.outputs.iter().skip(got).any(|output| !output.optional) {
            return Err(self.wrong_count(got));
        }
        let on_device = self.work.is_on_device();
        let mut memory = Memory::new();
        for (&Output { name, element, ref shape, reason, .. }, output) in self.outputs.iter().zip(outputs) {
            output.check_place(name, on_device)?;
            output.check_writable(name)?;
            equal_type(name, output.tensor.element, element)?;
            shapes::equal(name, &output.tensor.shape, shape, reason)?;
            memory.push((output.data_mut(), self.aliases.write(name, &output.tensor)?));
        }
        Ok(memory)
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn check_scratch(&mut self, scratch: &Operand<'_>) -> Result<usize, Error> {
        self.aliases.write("scratch", &scratch.tensor)
    }
}

/// The first byte of each output, and its bytes.
pub(crate) type Memory = SmallVec<[(*mut u8, usize); 2]>;

impl Work<'_> {
    /// # Safety
    /// The outputs have the types and shapes of this call, are valid for writes and overlap nothing else; the call is
    /// none on a device.
    unsafe fn run(self, outputs: &Memory, kernels: &Kernels<'_>, workers: &dyn Workers) {
        let pointers = || [outputs[0].0, outputs[1].0];
        match self {
            Self::Stores { stores, num_repeat } => {
                // SAFETY: the outputs are as `# Safety` says.
                let mut problem = unsafe { Problem::assume_checked(stores, num_repeat, pointers()) };
                kernels.cache.run(&mut problem, workers);
            }
            Self::Static { geometry, pointers: tensors, sequences, num_repeat } => {
                let indices = StaticIndices::new(geometry.batch, &sequences);
                // SAFETY: the check of static batching has found types, shapes, alignment and overlap right. The index
                // inputs are of sequences of equal length, no longer than the stride between them, so no two share a
                // slot, and of no more sequences than the cache has. The outputs are as `# Safety` says.
                let mut problem = unsafe {
                    let stores = Stores::assume_checked(geometry, indices.indices(), tensors);
                    Problem::assume_checked(stores, num_repeat, pointers())
                };
                kernels.cache.run(&mut problem, workers);
            }
            Self::Attention(mut problem) => {
                // SAFETY: `# Safety`.
                let (attn_output, mass) =
                    unsafe { (slice(outputs[0]), outputs.get(1).map(|mass| slice::<MaybeUninit<f32>>(*mass))) };
                problem.store(kernels.cache, workers);
                kernels.attention.attend(&problem, attn_output, mass, workers);
            }
            // SAFETY: `# Safety`.
            Self::MatMul(product) => kernels.matmul.multiply(&product, unsafe { slice(outputs[0]) }, workers),
            Self::Gather { matrix, rows } => {
                // SAFETY: `# Safety`.
                kernels.matmul.gather(&matrix, rows, unsafe { slice(outputs[0]) }, workers);
            }
            #[cfg(feature = "cuda")]
            Self::Device(_) => unreachable!("no call on a device: `# Safety`"),
        }
    }
}

/// The elements of an output.
///
/// # Safety
/// The memory is valid for writes for the lifetime, aligned for `T`, and nobody else accesses it.
unsafe fn slice<'o, T>((data, bytes): (*mut u8, usize)) -> &'o mut [T] {
    match bytes {
        0 => &mut [],
        // SAFETY: `# Safety`.
        bytes => unsafe { std::slice::from_raw_parts_mut(data.cast(), bytes / size_of::<T>()) },
    }
}

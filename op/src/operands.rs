//! The tensors of a call: [`Operands`] by position, for callers that go through a node's inputs, and structs that name
//! them.

use std::array;
use std::mem::MaybeUninit;

use kvcache_schema::{OperatorKind, shape};
use ndarray::{Array, IntoDimension};
use smallvec::SmallVec;

#[cfg(feature = "cuda")]
use crate::device::StreamGuard;
use crate::error::Error;
use crate::tensor::{Shape, TensorMut, TensorRef};

/// A tensor of a call, and the memory that it is in. Converts from tensors of the host and of a device.
#[derive(Debug)]
pub struct Operand<'a> {
    /// The tensor; on a device its address is one that the host never dereferences.
    pub(crate) tensor: TensorRef<'a>,
    pub(crate) writable: bool,
    pub(crate) on_device: bool,
    #[cfg(feature = "cuda")]
    pub(crate) guard: Option<Box<StreamGuard<'a>>>,
}

impl<'a> From<TensorRef<'a>> for Operand<'a> {
    fn from(tensor: TensorRef<'a>) -> Self {
        Self {
            tensor,
            writable: false,
            on_device: false,
            #[cfg(feature = "cuda")]
            guard: None,
        }
    }
}

impl<'a> From<TensorMut<'a>> for Operand<'a> {
    fn from(tensor: TensorMut<'a>) -> Self {
        Self { writable: true, ..tensor.0.into() }
    }
}

impl Operand<'_> {
    /// The address of a tensor that may be written.
    pub(crate) fn data_mut(&self) -> *mut u8 {
        self.tensor.data.cast_mut()
    }

    pub(crate) fn check_place(&self, input: &'static str, on_device: bool) -> Result<(), Error> {
        let place = |on_device| if on_device { "a device" } else { "the host" };
        match self.on_device == on_device {
            true => Ok(()),
            false => Err(Error::Place { input, got: place(self.on_device), expected: place(on_device) }),
        }
    }

    pub(crate) fn check_writable(&self, input: &'static str) -> Result<(), Error> {
        if self.writable { Ok(()) } else { Err(Error::ReadOnly { input }) }
    }
}

/// The inputs of a call by position, as [`OperatorKind::inputs`] names them; `None` where an optional one is
/// left out. [`Inputs`] and the like name them.
#[derive(Debug, Default)]
pub struct Operands<'a> {
    pub(crate) inputs: SmallVec<[Option<Operand<'a>>; 14]>,
    /// Rows that the outputs have in place of what `kvstarts` says: [`OutputRows::AtMost`].
    pub(crate) at_most: Option<usize>,
    /// Whether types have been checked: [`assume_types_checked`](Self::assume_types_checked).
    pub(crate) types_checked: bool,
}

impl<'a> FromIterator<Option<Operand<'a>>> for Operands<'a> {
    fn from_iter<I: IntoIterator<Item = Option<Operand<'a>>>>(inputs: I) -> Self {
        Self { inputs: inputs.into_iter().collect(), ..Self::default() }
    }
}

impl<'a> Operands<'a> {
    /// Adds the next input.
    #[inline]
    pub fn push(&mut self, input: Option<Operand<'a>>) {
        self.inputs.push(input);
    }

    /// The inputs of a call on a device whose lengths may add up to fewer rows than its tensors have: see
    /// [`OutputRows::AtMost`]. `MultiHeadAttention` takes the number of rows from the shapes of `query` and `key`, and
    /// static batching needs none.
    #[must_use]
    pub fn with_rows_at_most(mut self, rows: usize) -> Self {
        self.at_most = Some(rows);
        self
    }

    /// Says that the call need not check types, since they are those that the operator was loaded with.
    ///
    /// # Safety
    /// [`Operator::check_types`](crate::Operator::check_types) of the operator that is called has accepted the types of
    /// these inputs, and indices, bounds and counts are int64.
    pub unsafe fn assume_types_checked(&mut self) {
        self.types_checked = true;
    }

    /// The inputs of an operator that has `N`, all of them where it needs them: on one device, or on the host.
    pub(crate) fn get<const N: usize>(&self, kind: OperatorKind) -> Result<[Option<&Operand<'a>>; N], Error> {
        let got = self.inputs.len();
        if got > N {
            return Err(Error::OperandCount { what: "inputs", got, expected: format!("at most {N}") });
        }
        if self.is_on_device() {
            for (input, &name) in self.inputs.iter().zip(kind.inputs()) {
                input.as_ref().map_or(Ok(()), |input| input.check_place(name, !kind.is_on_host(name)))?;
            }
        } else if let Some(at) =
            self.inputs.iter().position(|input| input.as_ref().is_some_and(|input| input.on_device))
        {
            return Err(Error::Place { input: kind.inputs()[at], got: "a device", expected: "the host" });
        }
        if self.at_most.is_some() && !self.is_on_device() {
            return Err(Error::Place { input: kind.inputs()[0], got: "the host", expected: "a device" });
        }
        Ok(array::from_fn(|at| self.inputs.get(at)?.as_ref()))
    }

    /// Whether the call is one on a device, where the first input of every operator then is.
    pub(crate) fn is_on_device(&self) -> bool {
        matches!(self.inputs.first(), Some(Some(first)) if first.on_device)
    }

    /// Takes the slices of cudarc among the inputs, with their names.
    pub(crate) fn take_guards(&mut self, kind: OperatorKind) -> Guards<'a> {
        #[cfg(feature = "cuda")]
        if self.is_on_device() {
            let inputs = self.inputs.iter_mut().zip(kind.inputs());
            return inputs.filter_map(|(input, &name)| Some((name, input.as_mut()?.guard.take()?))).collect();
        }
        let _ = kind;
        Guards::default()
    }
}

/// What a call keeps of tensors on a device until it is launched.
#[cfg(feature = "cuda")]
pub(crate) type Guards<'a> = crate::device::StreamGuards<'a>;
#[cfg(not(feature = "cuda"))]
pub(crate) type Guards<'a> = std::marker::PhantomData<&'a ()>;

/// An input that the operator needs.
pub(crate) fn required<'t, 'a>(
    input: &'static str,
    operand: Option<&'t Operand<'a>>,
) -> Result<&'t Operand<'a>, Error> {
    operand.ok_or(Error::InputMissing { input })
}

/// The inputs of `KeyValueCache` that are only read. Everything is checked when a call is made.
///
/// On the host all are tensors of the host. A call on a device reads inputs of type `T` there, and takes
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

/// What the host knows of `kvstarts` in a call on a device.
#[derive(Debug, Clone)]
pub enum OutputRows<'a> {
    /// The input itself, in memory of the host. The device's lengths must add up to its last entry, and
    /// `seqstarts` to the rows of `current_key`; the status word tells if they do not.
    Kvstarts(TensorRef<'a>),
    /// `key` and `value` have so many rows. The device's lengths may add up to less, and `seqstarts` to less
    /// than the rows of `current_key`: the remaining rows are left untouched. This is for CUDA graphs that are replayed
    /// with batches of other lengths. (B stays the same; a finished sequence has no tokens: `start_pos` 0 and no
    /// current ones.)
    AtMost(usize),
}

impl<'a> From<TensorRef<'a>> for OutputRows<'a> {
    fn from(kvstarts: TensorRef<'a>) -> Self {
        Self::Kvstarts(kvstarts)
    }
}

impl<'a, T: Into<Operand<'a>>, K: Into<OutputRows<'a>>> IndexInputs<'a, T, K> {
    /// `seqstarts`, `kvstarts`, `cachestarts`, `start_pos`, `max_seqlen` and `max_kvlen`; and the rows in place of
    /// `kvstarts`.
    pub(crate) fn operands(self) -> ([Option<Operand<'a>>; 6], Option<usize>) {
        let (kvstarts, at_most) = match self.kvstarts.into() {
            OutputRows::Kvstarts(kvstarts) => (Some(kvstarts.into()), None),
            OutputRows::AtMost(rows) => (None, Some(rows)),
        };
        let [seqstarts, cachestarts, start_pos] =
            [self.seqstarts, self.cachestarts, self.start_pos].map(|input| Some(input.into()));
        let [max_seqlen, max_kvlen] = [self.max_seqlen, self.max_kvlen].map(|bound| Some(bound.into()));
        ([seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen], at_most)
    }
}

impl<'a, T: Into<Operand<'a>>, K: Into<OutputRows<'a>>> Inputs<'a, T, K> {
    /// The inputs by position, with `cache` and, where the node has it, `scale`.
    pub fn operands<M: Into<Operand<'a>>>(self, cache: M, scale: Option<M>) -> Operands<'a> {
        let (indices, at_most) = self.indices.operands();
        let current = [self.current_key, self.current_value].map(|current| Some(current.into()));
        let state = [Some(cache.into()), scale.map(Into::into)];
        Operands { at_most, ..current.into_iter().chain(indices).chain(state).collect() }
    }
}

/// The outputs of `KeyValueCache`, in memory of the caller: of the host, or of a device.
#[derive(Debug)]
pub struct Outputs<M> {
    /// T1, shape (`kvstarts[B]`, H * `num_repeat`, Dh).
    pub key: M,
    /// T1, shape (`kvstarts[B]`, H * `num_repeat`, Dh).
    pub value: M,
}

impl<M> IntoIterator for Outputs<M> {
    type Item = M;
    type IntoIter = array::IntoIter<M, 2>;

    fn into_iter(self) -> Self::IntoIter {
        [self.key, self.value].into_iter()
    }
}

/// An output of this shape, uninitialized. Its size is the caller's, so a failed allocation is an error, not an abort.
pub(crate) fn allocate<T, S>(output: &'static str, shape: S) -> Result<Array<MaybeUninit<T>, S::Dim>, Error>
where
    S: IntoDimension + AsRef<[usize]> + Copy,
{
    let out_of_memory = || Error::OutOfMemory { output, shape: Shape::from(shape.as_ref()) };
    let len = shape::elements(shape.as_ref()).ok_or_else(out_of_memory)?;
    let mut elements = Vec::new();
    elements.try_reserve_exact(len).map_err(|_| out_of_memory())?;
    // SAFETY: `try_reserve_exact` has made room for `len` elements, and a `MaybeUninit` needs no value.
    unsafe { elements.set_len(len) };
    Array::from_shape_vec(shape.into_dimension(), elements).map_err(|_| out_of_memory())
}

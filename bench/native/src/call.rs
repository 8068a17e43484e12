//! One call of the operator in the caller's memory.

use kvcache_kernels::{Kernel, Problem, Reference};
use kvcache_op::{
    Attributes, ElementType, IndexInputs, Inputs, KeyValueCache, Outputs, Serial, Shape, TensorMut, TensorRef,
};

use crate::c_call::CCall;
use crate::description::{CallDescription, TensorDescription};
use crate::team::Team;

/// An operator with all tensors of a call, which may be made again and again.
pub struct BoundCall {
    op: KeyValueCache,
    /// The same, for C.
    in_c: CCall,
    inputs: Inputs<'static>,
    cache: Tensor,
    scale: Option<Tensor>,
    outputs: [Tensor; 2],
}

/// A tensor's type, shape and memory.
pub(crate) struct Tensor {
    element: ElementType,
    shape: Shape,
    data: *mut u8,
}

impl BoundCall {
    /// The call that `description` describes.
    ///
    /// # Errors
    /// If a number stands for nothing, or the operator would refuse the call.
    ///
    /// # Safety
    /// As long as the call lives, each tensor's `data` is valid for its type and shape: initialized, and for the last
    /// four also for writes. They do not overlap, and nobody else writes the index tensors, or any of them while the
    /// call runs.
    pub unsafe fn new(description: &CallDescription) -> Result<Self, String> {
        let mut attributes = Attributes::default();
        for (name, value) in Attributes::NAMES.into_iter().zip(description.attributes) {
            assert!(attributes.set(name, value), "{name} is an attribute");
        }
        let tensor = |i: usize| Tensor::new(&description.tensors[i]).map_err(|reason| format!("tensor {i}: {reason}"));
        // SAFETY: valid for its type and shape as long as the call lives, as this function requires.
        let read = |i: usize| tensor(i).map(|tensor| unsafe { tensor.borrow() });
        let inputs = Inputs {
            current_key: read(0)?,
            current_value: read(1)?,
            indices: IndexInputs {
                seqstarts: read(2)?,
                kvstarts: read(3)?,
                cachestarts: read(4)?,
                start_pos: read(5)?,
                max_seqlen: read(6)?,
                max_kvlen: read(7)?,
            },
        };
        let scale = (description.tensors[9].element != 0).then(|| tensor(9)).transpose()?;
        let op = KeyValueCache::new(attributes).map_err(|error| error.to_string())?;
        let in_c = CCall::new(description)?;
        let mut call = Self { op, in_c, inputs, cache: tensor(8)?, scale, outputs: [tensor(10)?, tensor(11)?] };
        call.problem().map_err(|error| error.to_string())?;
        Ok(call)
    }

    /// Checks the inputs, stores the current tokens and loads all of them: what a user calls, through the C interface.
    ///
    /// # Errors
    /// If the operator refuses the call: somebody has changed its memory.
    pub(crate) fn run(&mut self, team: &Team) -> Result<(), String> {
        // SAFETY: `new` requires such memory, and `&mut self` that nobody else uses the call.
        unsafe { self.in_c.run(team) }
    }

    /// The checked call with its outputs, for the kernels.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub(crate) fn problem(&mut self) -> Result<Problem<'_>, kvcache_op::Error> {
        self.op.check(&self.inputs, self.cache_mut(), self.scale_mut())?.bind(self.outputs_mut())
    }

    /// Runs the reference kernel, the oracle: the right answer is then in cache, scale and outputs.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub(crate) fn run_reference(&mut self) -> Result<(), kvcache_op::Error> {
        Reference.run(&mut self.problem()?, &Serial);
        Ok(())
    }

    /// The bytes of `key` and of `value`.
    pub(crate) fn output_bytes(&mut self) -> [&mut [u8]; 2] {
        self.outputs.each_mut().map(|tensor| {
            let bytes = tensor.element.bytes(tensor.shape.iter().product()).unwrap_or_default();
            // SAFETY: `new` requires writable, initialized memory of this type and shape, apart for key and value; the
            // slices borrow the call.
            unsafe { std::slice::from_raw_parts_mut(tensor.data, bytes) }
        })
    }

    fn cache_mut(&self) -> TensorMut<'static> {
        // SAFETY: `new` requires writable memory as long as the call lives, and only `&mut self` methods ask for this.
        unsafe { self.cache.borrow_mut() }
    }

    fn scale_mut(&self) -> Option<TensorMut<'static>> {
        // SAFETY: as for `cache_mut`.
        self.scale.as_ref().map(|scale| unsafe { scale.borrow_mut() })
    }

    fn outputs_mut(&self) -> Outputs<'static> {
        // SAFETY: as for `cache_mut`.
        let [key, value] = self.outputs.each_ref().map(|output| unsafe { output.borrow_mut() });
        Outputs { key, value }
    }
}

impl Tensor {
    pub(crate) fn new(description: &TensorDescription) -> Result<Self, String> {
        let TensorDescription { element, rank, shape, data } = *description;
        let element = match element {
            1 => ElementType::Float32,
            3 => ElementType::Int8,
            7 => ElementType::Int64,
            10 => ElementType::Float16,
            22 => ElementType::Int4,
            _ => return Err(format!("element type: expected 1, 3, 7, 10 or 22, got {element}")),
        };
        let dims = usize::try_from(rank).ok().and_then(|rank| shape.get(..rank));
        let dims = dims.ok_or_else(|| format!("rank: expected 0 to {}, got {rank}", shape.len()))?;
        let dim = |&dim: &i64| usize::try_from(dim).map_err(|_| format!("dimension: expected 0 or more, got {dim}"));
        Ok(Self { element, shape: dims.iter().map(dim).collect::<Result<_, _>>()?, data })
    }

    /// The tensor, to read.
    ///
    /// # Safety
    /// The memory is valid for reads of the tensor as long as the result is used.
    pub(crate) unsafe fn borrow(&self) -> TensorRef<'static> {
        // SAFETY: this function's condition.
        unsafe { TensorRef::from_raw_parts(self.element, self.shape.clone(), self.data) }
    }

    /// The tensor, to write.
    ///
    /// # Safety
    /// The memory is valid for reads and writes of the tensor as long as the result is used, which nobody else does.
    pub(crate) unsafe fn borrow_mut(&self) -> TensorMut<'static> {
        // SAFETY: this function's conditions.
        unsafe { TensorMut::from_raw_parts(self.element, self.shape.clone(), self.data) }
    }
}

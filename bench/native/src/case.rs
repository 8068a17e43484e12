//! One call of the operator in the driver's memory.

use kvcache_kernels::{Cpu, Kernel, Problem, Reference};
use kvcache_op::{
    Attributes, ElementType, Error, IndexInputs, Inputs, KeyValueCache, Outputs, Shape, TensorMut, TensorRef,
};

use crate::sample::Sample;
use crate::team::Team;
use crate::traffic::{self, Direction, Moved};

/// A tensor as the driver describes it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Tensor {
    /// ONNX's number of the element type; 0 for a tensor that is left out.
    pub element: i32,
    /// The length of the shape.
    pub rank: i32,
    /// The shape.
    pub shape: [i64; 5],
    /// The first element.
    pub data: *mut u8,
}

/// A call as the driver describes it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Description {
    /// The attributes, in the order of [`Attributes::NAMES`].
    pub attributes: [i64; 8],
    /// The ten inputs in the specification's order, then `key` and `value`.
    pub tensors: [Tensor; 12],
}

/// A part of a call that is measured alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The kernel's store phase.
    Store,
    /// The kernel's load phase.
    Load,
    /// All that a user calls: the check of the inputs, then both phases.
    Whole,
}

impl Phase {
    /// The phase with the driver's number.
    pub(crate) fn from_number(number: i32) -> Self {
        match number {
            0 => Self::Store,
            1 => Self::Load,
            _ => Self::Whole,
        }
    }
}

/// One call of the operator, made again and again.
pub struct Case {
    op: KeyValueCache,
    inputs: Inputs<'static>,
    tensors: [Tensor; 12],
    elements: [ElementType; 12],
}

/// Places of the tensors that a call writes.
const CACHE: usize = 8;
const SCALE: usize = 9;
const KEY: usize = 10;
const VALUE: usize = 11;

impl Case {
    /// The call that `description` describes.
    ///
    /// # Errors
    /// If the operator would refuse the call.
    ///
    /// # Safety
    /// As long as the case lives, each tensor's `data` is valid for its type and shape: initialized, and for the last four
    /// also for writes. They do not overlap, and nobody else writes the index tensors, or any of them during a call.
    pub unsafe fn new(description: &Description) -> Result<Self, Error> {
        let mut attributes = Attributes::default();
        for (name, value) in Attributes::NAMES.into_iter().zip(description.attributes) {
            assert!(attributes.set(name, value), "{name} is an attribute");
        }
        let tensors = description.tensors;
        let elements = tensors.map(|tensor| element(tensor.element));
        let read = |i: usize| {
            // SAFETY: the caller's promise.
            unsafe { TensorRef::from_raw_parts(elements[i], shape(&tensors[i]), tensors[i].data) }
        };
        let inputs = Inputs {
            current_key: read(0),
            current_value: read(1),
            indices: IndexInputs {
                seqstarts: read(2),
                kvstarts: read(3),
                cachestarts: read(4),
                start_pos: read(5),
                max_seqlen: read(6),
                max_kvlen: read(7),
            },
        };
        let mut case = Self { op: KeyValueCache::new(attributes)?, inputs, tensors, elements };
        case.problem()?;
        Ok(case)
    }

    /// Measures a phase.
    ///
    /// # Errors
    /// If the operator refuses the call: somebody has changed its memory.
    pub fn measure(&mut self, phase: Phase, team: &Team, iterations: usize) -> Result<Sample, Error> {
        if phase == Phase::Whole {
            self.problem()?;
            let (op, inputs) = (&self.op, &self.inputs);
            return Ok(team.measure(iterations, || {
                let outcome = op.run(inputs, self.write(CACHE), self.scale(), self.outputs(), team);
                debug_assert!(outcome.is_ok(), "the call has just been checked");
            }));
        }
        let mut problem = self.problem()?;
        Ok(match phase {
            Phase::Store => team.measure(iterations, || Cpu::default().store(&mut problem, team)),
            _ => team.measure(iterations, || Cpu::default().load(&mut problem, team)),
        })
    }

    /// Measures the traffic of a phase without its arithmetic, and gives the sums of a phase's bytes in one iteration. None if
    /// the case's rows are not whole lines or there is no such schedule.
    ///
    /// # Errors
    /// As for [`measure`](Self::measure).
    pub fn measure_traffic(
        &mut self,
        phase: Phase,
        schedule: usize,
        stream: bool,
        team: &Team,
        iterations: usize,
    ) -> Result<Option<(Sample, Moved)>, Error> {
        let mut problem = self.problem()?;
        let directions = match phase {
            Phase::Store => &[Direction::Store][..],
            Phase::Load => &[Direction::Load],
            Phase::Whole => &[Direction::Store, Direction::Load],
        };
        let mut moved = Some(Moved::default());
        let sample = team.measure(iterations, || {
            let all = directions.iter().map(|&direction| traffic::run(&mut problem, direction, schedule, stream, team));
            moved = all.collect::<Option<Vec<_>>>().map(|parts| parts.into_iter().fold(Moved::default(), Moved::plus));
        });
        Ok(moved.map(|moved| (sample, moved)))
    }

    /// Runs the reference kernel: the right answer is then in cache, scale and outputs.
    ///
    /// # Errors
    /// As for [`measure`](Self::measure).
    pub(crate) fn run_reference(&mut self) -> Result<(), Error> {
        Reference.run(&mut self.problem()?, &kvcache_op::Serial);
        Ok(())
    }

    /// The checked call with its outputs.
    pub(crate) fn problem(&mut self) -> Result<Problem<'_>, Error> {
        self.op.check(&self.inputs, self.write(CACHE), self.scale())?.bind(self.outputs())
    }

    /// The bytes of `key` and of `value`.
    pub(crate) fn output_bytes(&mut self) -> [&mut [u8]; 2] {
        [KEY, VALUE].map(|i| {
            let len = self.tensors[i].shape[..self.tensors[i].rank as usize].iter().product::<i64>() as usize;
            let bytes = self.elements[i].bytes(len).unwrap_or_default();
            // SAFETY: `new` asks for writable, initialized memory of this type and shape; the two do not overlap.
            unsafe { std::slice::from_raw_parts_mut(self.tensors[i].data, bytes) }
        })
    }

    fn write(&self, i: usize) -> TensorMut<'static> {
        // SAFETY: `new` asks for valid memory as long as the case lives, and results do not leave this module.
        unsafe { TensorMut::from_raw_parts(self.elements[i], shape(&self.tensors[i]), self.tensors[i].data) }
    }

    fn scale(&self) -> Option<TensorMut<'static>> {
        (self.tensors[SCALE].element != 0).then(|| self.write(SCALE))
    }

    fn outputs(&self) -> Outputs<'static> {
        Outputs { key: self.write(KEY), value: self.write(VALUE) }
    }
}

fn shape(tensor: &Tensor) -> Shape {
    tensor.shape[..tensor.rank as usize].iter().map(|&axis| axis as usize).collect()
}

/// The type with this number in ONNX; that of a tensor which is left out does not matter.
fn element(number: i32) -> ElementType {
    match number {
        1 => ElementType::Float32,
        3 => ElementType::Int8,
        7 => ElementType::Int64,
        22 => ElementType::Int4,
        _ => ElementType::Float16,
    }
}

//! Products with quantized matrices, called without ONNX Runtime, and their roofline: the instructions that make them,
//! on registers alone.

use std::mem::MaybeUninit;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use kvcache_matmul::{Activations, Gate, MatmulCpu, MatmulKernel, Matrix, MatrixShape, Product};
use kvcache_simd::InstructionSet;
use pyo3::prelude::*;

use crate::calls::Threads;
use crate::refused;

/// A product whose tensors are Python's.
#[pyclass(unsendable)]
pub(crate) struct Multiply {
    kernel: MatmulCpu,
    shape: MatrixShape,
    activations: Activations,
    threads: Threads,
}

#[pymethods]
impl Multiply {
    /// Products with matrices of these sizes (N, K, bits, block size), on an instruction set of this machine by its
    /// name.
    #[new]
    fn new(set: &str, sizes: (usize, usize, usize, usize), activation_bits: usize, threads: usize) -> PyResult<Self> {
        let named = InstructionSet::ALL.into_iter().find(|each| each.name() == set);
        let kernel = named.and_then(MatmulCpu::with_instructions);
        let kernel = kernel.ok_or_else(|| refused(format!("{set} is not here")))?;
        let activations = Activations::ALL.into_iter().find(|each| each.bits() == activation_bits);
        let activations = activations.ok_or_else(|| refused(format!("activations of {activation_bits} bits")))?;
        Ok(Self { kernel, shape: shape(sizes), activations, threads: Threads::new(threads)? })
    }

    /// Multiplies so many rows at one address so many times; gives back nothing.
    ///
    /// Python keeps the memory of all addresses valid, aligned and to itself: rows times K of x, rows times N of y, and
    /// the matrix's panels and scales.
    fn run(&self, panels: usize, scales: usize, x: usize, y: usize, rows: usize, times: usize) {
        let blocks = self.shape.panels() * self.shape.blocks();
        // SAFETY: the addresses are valid for as many elements, and y for writes, as this function's description says.
        let (panels, scales, x, y) = unsafe {
            (
                from_raw_parts(panels as *const u8, blocks * self.shape.block_bytes()),
                from_raw_parts(scales as *const f32, blocks * kvcache_matmul::COLUMNS),
                from_raw_parts(x as *const f32, rows * self.shape.k),
                from_raw_parts_mut(y as *mut MaybeUninit<f32>, rows * self.shape.n),
            )
        };
        let product =
            Product::new(Matrix::new(self.shape, panels, scales, None), self.activations, Gate::None, x, None);
        self.threads.run(|workers| (0..times).for_each(|_| self.kernel.multiply(&product, y, workers)));
    }
}

/// The names of this machine's instruction sets, the best one that may be used last.
#[pyfunction]
pub(crate) fn instruction_sets() -> Vec<&'static str> {
    let best = InstructionSet::best();
    let last = InstructionSet::ALL.into_iter().position(|set| set == best).unwrap_or(0);
    InstructionSet::ALL[..=last].iter().filter(|set| set.is_supported()).map(|set| set.name()).collect()
}

/// The panels of codes (N, K), one a byte.
#[pyfunction]
pub(crate) fn pack(sizes: (usize, usize, usize, usize), codes: &[u8]) -> Vec<u8> {
    kvcache_matmul::pack(&shape(sizes), codes)
}

/// N, K, bits and the size of blocks.
fn shape((n, k, bits, block_size): (usize, usize, usize, usize)) -> MatrixShape {
    MatrixShape { n, k, bits, block_size }
}

/// Steps of [`peak`] in a run.
const STEPS: u64 = 1 << 17;

/// The instructions that an instruction set has for codes and activations of so many bits, on registers alone.
#[pyclass(unsendable)]
pub(crate) struct Peak {
    step: unsafe fn(u64),
    per_step: u64,
    threads: Threads,
    count: usize,
}

#[pymethods]
impl Peak {
    #[new]
    fn new(set: &str, bits: usize, activation_bits: usize, threads: usize) -> PyResult<Self> {
        let named = InstructionSet::ALL.into_iter().find(|each| each.name() == set && each.is_supported());
        let (step, per_step) = named
            .and_then(|set| peak(set, bits, activation_bits))
            .ok_or_else(|| refused(format!("no instructions of {set} are known")))?;
        Ok(Self { step, per_step, threads: Threads::new(threads)?, count: threads })
    }

    /// Runs on every thread, and gives the multiply-adds of each.
    fn run(&self) -> u64 {
        self.threads.run(|workers| {
            workers.run(self.count, &|_| {
                // SAFETY: the machine has the instruction set.
                unsafe { (self.step)(STEPS) }
            });
        });
        STEPS * self.per_step
    }
}

/// A function that adds products of registers to twelve sums in turn, and the multiply-adds of one step.
#[cfg(target_arch = "x86_64")]
fn peak(set: InstructionSet, bits: usize, activation_bits: usize) -> Option<(unsafe fn(u64), u64)> {
    /// A function of instructions whose sum is register `\i`.
    macro_rules! steps {
        ($features:literal, $($instruction:literal)+) => {{
            #[target_feature(enable = $features)]
            unsafe fn steps(steps: u64) {
                // SAFETY: the instructions are enabled, and touch no memory.
                unsafe {
                    std::arch::asm!(
                        "2:", ".irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11", $($instruction,)+ ".endr",
                        "dec {}", "jnz 2b",
                        inout(reg) steps => _,
                        out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _,
                        out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                        out("ymm12") _, out("ymm13") _, out("ymm14") _, options(nomem, nostack),
                    );
                }
            }
            steps
        }};
    }
    // Without VNNI, codes of 8 bits are multiplied as int16, since sums of their products do not fit into that.
    let bytes = activation_bits == 8 && (bits == 4 || set != InstructionSet::Avx2 && set != InstructionSet::Avx512);
    let (step, lanes): (unsafe fn(u64), u64) = match (set, bytes) {
        (InstructionSet::Avx2, true) => {
            (steps!("avx2", "vpmaddubsw ymm14, ymm13, ymm12" "vpaddw ymm\\i, ymm\\i, ymm14"), 32)
        }
        (InstructionSet::Avx2, false) => {
            (steps!("avx2", "vpmaddwd ymm14, ymm13, ymm12" "vpaddd ymm\\i, ymm\\i, ymm14"), 16)
        }
        (InstructionSet::AvxVnni, true) => (steps!("avxvnni", "{{vex}} vpdpbusd ymm\\i, ymm13, ymm12"), 32),
        (InstructionSet::AvxVnni, false) => (steps!("avxvnni", "{{vex}} vpdpwssd ymm\\i, ymm13, ymm12"), 16),
        (InstructionSet::Avx512, true) => {
            (steps!("avx512bw", "vpmaddubsw zmm14, zmm13, zmm12" "vpaddw zmm\\i, zmm\\i, zmm14"), 64)
        }
        (InstructionSet::Avx512, false) => {
            (steps!("avx512bw", "vpmaddwd zmm14, zmm13, zmm12" "vpaddd zmm\\i, zmm\\i, zmm14"), 32)
        }
        (InstructionSet::Avx512Vnni | InstructionSet::Avx512Fp16, true) => {
            (steps!("avx512vnni", "vpdpbusd zmm\\i, zmm13, zmm12"), 64)
        }
        (InstructionSet::Avx512Vnni | InstructionSet::Avx512Fp16, false) => {
            (steps!("avx512vnni", "vpdpwssd zmm\\i, zmm13, zmm12"), 32)
        }
        _ => return None,
    };
    Some((step, 12 * lanes))
}

/// None is known.
#[cfg(not(target_arch = "x86_64"))]
fn peak(_: InstructionSet, _: usize, _: usize) -> Option<(unsafe fn(u64), u64)> {
    None
}

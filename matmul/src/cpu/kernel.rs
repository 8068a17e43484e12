//! The kernel as callers see it.

use std::mem::MaybeUninit;

use kvcache_kernels::{Workers, run_each};
use kvcache_simd::InstructionSet;

use super::activations::{ENDS, Rows};
use super::dispatch::{self, Functions};
use super::gather::Column;
use super::scratch;
use super::tile::{Operands, Packed, Task, parts};
use crate::matrix::{LINE, Matrix};
use crate::product::{MatmulKernel, Product, column};

/// The fast CPU kernel. It gives the bits of the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatmulCpu {
    instructions: InstructionSet,
    parallel_work: usize,
}

/// Bytes of quantized rows that are multiplied before the next ones are quantized, unless a tile has more.
const MOST_BYTES: usize = 1 << 19;

/// A multiple of the rows of every instruction set's tile.
const MOST_ROWS: usize = 12;

/// Tasks for each thread, so that they end at about the same time.
const TASKS_PER_THREAD: usize = 4;

/// Tiles of rows beyond which panels are unpacked.
const PACKED_TILES: usize = 3;

/// Bytes of unpacked codes that are multiplied with all rows before the next ones are unpacked: they stay in the
/// first-level cache.
const UNPACKED_BYTES: usize = 1 << 15;

/// Indices of a task, and elements of y below which one thread gathers them.
const GATHERED: usize = 16;
const GATHER_ALONE: usize = 1 << 15;

/// Elements of x below which they are quantized on one thread.
const QUANTIZE_ALONE: usize = 1 << 14;

impl MatmulCpu {
    /// Multiplications for each thread that a product is split among, at least, unless a caller says otherwise. Fewer
    /// take no longer than to wake a thread.
    pub const PARALLEL_WORK: usize = 1 << 18;

    /// The kernel with an instruction set; none if this machine lacks it.
    pub fn with_instructions(instructions: InstructionSet) -> Option<Self> {
        instructions.is_supported().then_some(Self { instructions, parallel_work: Self::PARALLEL_WORK })
    }

    /// The kernel with another least work of a thread, in place of
    /// [`PARALLEL_WORK`](Self::PARALLEL_WORK).
    pub fn with_parallel_work(self, parallel_work: usize) -> Self {
        Self { parallel_work, ..self }
    }
}

impl Default for MatmulCpu {
    /// The kernel with the best instructions that this machine has, up to `KVCACHE_INSTRUCTION_SET`.
    fn default() -> Self {
        Self { instructions: InstructionSet::best(), parallel_work: Self::PARALLEL_WORK }
    }
}

impl MatmulKernel for MatmulCpu {
    fn name(&self) -> &'static str {
        self.instructions.kernel_name()
    }

    fn multiply(&self, product: &Product<'_>, y: &mut [MaybeUninit<f32>], workers: &dyn Workers) {
        let (matrix, shape) = (product.matrix(), *product.matrix().shape());
        assert_eq!(Some(y.len()), product.rows().checked_mul(shape.n), "the elements of y");
        let functions = dispatch::functions(self.instructions, &shape, product.activations());
        let row_words = shape.blocks() * (functions.words + ENDS);
        let most = (MOST_BYTES / 4 / row_words / MOST_ROWS).max(1) * MOST_ROWS;
        let most = most.min(product.rows());
        let x = product.x().chunks(most.max(1) * product.columns());
        scratch::rows(most * row_words * 4, |tile_words| {
            for (x, y) in x.zip(y.chunks_mut(most.max(1) * shape.n)) {
                let operands = Operands {
                    scales: matrix.scales().as_ptr(),
                    minima: matrix.minima().map_or(std::ptr::null(), <[f32]>::as_ptr),
                    bias: product.bias().map_or(std::ptr::null(), <[f32]>::as_ptr),
                    n: shape.n,
                    blocks: shape.blocks(),
                    block_size: shape.block_size,
                    x: tile_words.cast(),
                    rows: x.len() / product.columns(),
                    y: y.as_mut_ptr().cast(),
                };
                self.multiply_some(product, x, &operands, &functions, workers);
            }
        });
    }

    fn gather(&self, matrix: &Matrix<'_>, indices: &[i64], y: &mut [MaybeUninit<f32>], workers: &dyn Workers) {
        let k = matrix.shape().k;
        assert_eq!(Some(y.len()), indices.len().checked_mul(k), "the elements of y");
        // Before anything is written.
        for &index in indices {
            column(matrix, index);
        }
        let gather = dispatch::gather(self.instructions);
        let threads = if y.len() < GATHER_ALONE { 1 } else { workers.threads() };
        let y = Elements(y.as_mut_ptr().cast::<f32>());
        run_each(indices.len().div_ceil(GATHERED), threads, workers, |task| {
            let first = task * GATHERED;
            for (i, &index) in (first..).zip(&indices[first..indices.len().min(first + GATHERED)]) {
                // SAFETY: the instruction set is supported; y has K elements for each index, which are this task's.
                unsafe { gather(&Column { matrix, column: column(matrix, index), y: y.at(i * k) }) };
            }
        });
    }
}

impl MatmulCpu {
    /// Quantizes rows x into the operands' tiles, and multiplies these.
    fn multiply_some(
        &self,
        product: &Product<'_>,
        x: &[f32],
        operands: &Operands,
        functions: &Functions,
        workers: &dyn Workers,
    ) {
        let (matrix, shape, rows) = (product.matrix(), product.matrix().shape(), operands.rows);
        let worth = (rows * shape.k).saturating_mul(shape.n).checked_div(self.parallel_work).unwrap_or(usize::MAX);
        let threads = workers.threads().min(worth).max(1);
        let unpacked = functions.unpacked.filter(|_| rows > PACKED_TILES * functions.rows);
        let tiles = parts(rows, unpacked.map_or(functions.rows, |unpacked| unpacked.rows));
        run_each(tiles.len(), if x.len() < QUANTIZE_ALONE { 1 } else { threads }, workers, |tile| {
            let Some(tile) = tiles.clone().nth(tile) else { return };
            let x = &x[tile.start * product.columns()..tile.end * product.columns()];
            // SAFETY: the instruction set is supported, checked when the kernel was made; the tile has as many rows of
            // x, and its words in the memory of the operands' tiles, which no other task writes.
            unsafe {
                (functions.quantize)(&Rows {
                    x: x.as_ptr(),
                    gate: product.gate(),
                    k: shape.k,
                    block_size: shape.block_size,
                    count: tile.len(),
                    top: product.activations().top(),
                    offset: functions.offset - matrix.zero_point(),
                    to: operands.x.cast_mut().add(tile.start * operands.blocks * (functions.words + ENDS)),
                });
            }
        });
        let (panels, panel_bytes) = (shape.panels(), shape.blocks() * shape.block_bytes());
        let each = if threads == 1 { panels } else { panels.div_ceil(threads * TASKS_PER_THREAD) };
        run_each(panels.div_ceil(each), threads, workers, |task| {
            let panels = task * each..panels.min((task + 1) * each);
            let codes = matrix.panels()[panels.start * panel_bytes..panels.end * panel_bytes].as_ptr();
            let Some(unpacked) = unpacked else {
                // SAFETY: the instruction set is supported; the operands are the product's, whose lengths `Matrix`,
                // `Product` and `multiply` have checked; each task has panels, and thus elements of y, of its own.
                return unsafe { (functions.multiply)(&Task { operands, codes, panels, blocks: 0..operands.blocks }) };
            };
            let block_bytes = functions.words * LINE;
            let most = match unpacked.panels {
                1 => operands.blocks,
                panels => (UNPACKED_BYTES / panels / block_bytes).max(1),
            };
            scratch::panels(unpacked.panels * most * block_bytes, |to| {
                for first in panels.clone().step_by(unpacked.panels) {
                    let some = first..panels.end.min(first + unpacked.panels);
                    for blocks in parts(operands.blocks, most) {
                        // SAFETY: as above; a panel has `panel_bytes`, and there is room for a line a word of each.
                        unsafe {
                            for (i, p) in some.clone().enumerate() {
                                let at = (p - panels.start) * panel_bytes + blocks.start * shape.block_bytes();
                                let (codes, to) = (codes.add(at), to.add(i * blocks.len() * block_bytes));
                                let block_size = operands.block_size;
                                (unpacked.unpack)(&Packed { codes, blocks: blocks.len(), block_size, to });
                            }
                            (unpacked.multiply)(&Task { operands, codes: to, panels: some.clone(), blocks });
                        }
                    }
                }
            });
        });
    }
}

/// The elements of y, of which each task has its own.
struct Elements(*mut f32);

// SAFETY: each element is written by one task.
unsafe impl Sync for Elements {}

impl Elements {
    /// The elements from the i-th on.
    ///
    /// # Safety
    /// There are more than i elements.
    unsafe fn at(&self, i: usize) -> *mut f32 {
        // SAFETY: i is less than the number of elements.
        unsafe { self.0.add(i) }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use kvcache_kernels::Serial;

    use super::*;
    use crate::gate::Gate;
    use crate::matrix::{MatrixShape, pack, pack_columns};
    use crate::product::Activations;
    use crate::reference::MatmulReference;

    /// AVX-VNNI, whose own tests run only where it is, by the instructions of AVX512-VNNI: few rows, and unpacked
    /// panels.
    #[test]
    fn avx_vnni_by_its_twin() {
        if !InstructionSet::Avx512Vnni.is_supported() {
            return;
        }
        let kernel = MatmulCpu { instructions: InstructionSet::AvxVnni, parallel_work: 0 };
        let mut seed = 1_u32;
        let mut random = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed >> 16
        };
        for rows in [1, 2, 3, 4, 7, 13, 30] {
            for (bits, block_size) in [(4, 16), (4, 32), (8, 16), (8, 32)] {
                let shape = MatrixShape { n: 37, k: 100, bits, block_size };
                let codes: Vec<_> = (0..shape.n * shape.k).map(|_| (random() % (1 << bits)) as u8).collect();
                let mut floats = |len| (0..len).map(|_| random() as f32 / 32768.0 - 1.0).collect::<Vec<_>>();
                let (panels, x) = (pack(&shape, &codes), floats(rows * shape.k));
                let scales = pack_columns(&shape, &floats(shape.n * shape.blocks()));
                for (activations, minima) in
                    Activations::ALL.map(|each| [(each, None), (each, Some(&scales[..]))]).concat()
                {
                    let matrix = Matrix::new(shape, &panels, &scales, minima);
                    let bits = |kernel: &dyn MatmulKernel| -> Vec<u32> {
                        let mut y = vec![MaybeUninit::new(7.0); rows * shape.n];
                        kernel.multiply(&Product::new(matrix, activations, Gate::None, &x, None), &mut y, &Serial);
                        // SAFETY: initialized above.
                        y.into_iter().map(|y: MaybeUninit<f32>| unsafe { y.assume_init() }.to_bits()).collect()
                    };
                    assert!(bits(&kernel) == bits(&MatmulReference), "{rows} rows, {shape:?} {activations:?}");
                }
            }
        }
    }
}

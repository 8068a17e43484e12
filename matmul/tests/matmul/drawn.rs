//! Products of random rows and matrices, on memory between guard pages.

use std::fmt;
use std::mem::MaybeUninit;

use kvcache_conformance::Tensor;
use kvcache_conformance::random::Unstructured;
use kvcache_kernels::Workers;
use kvcache_matmul::{Activations, Gate, MatmulKernel, Matrix, MatrixShape, Product, pack, pack_columns};
use kvcache_schema::ElementType;
use kvcache_testing::guarded::{Guard, Guarded};

/// The operands of a product.
pub struct Drawn {
    shape: MatrixShape,
    activations: Activations,
    pub gate: Gate,
    guard: Guard,
    panels: Guarded,
    scales: Guarded,
    minima: Option<Guarded>,
    x: Guarded,
    bias: Option<Guarded>,
}

impl fmt::Debug for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (rows, minima, bias) = (self.rows(), self.minima.is_some(), self.bias.is_some());
        write!(
            f,
            "{rows} rows, {:?}, minima {minima}, bias {bias}, {:?}, gate {:?}, {:?}",
            self.shape, self.activations, self.gate, self.guard
        )
    }
}

fn guarded(bytes: &[u8], element: ElementType, guard: Guard) -> Guarded {
    let len = bytes.len() / element.byte_len(1);
    Guarded::new(&Tensor::new(element, vec![len], bytes).expect("whole elements"), guard)
}

fn guarded_floats(floats: &[f32], guard: Guard) -> Guarded {
    let bytes: Vec<u8> = floats.iter().flat_map(|x| x.to_ne_bytes()).collect();
    guarded(&bytes, ElementType::Float32, guard)
}

fn floats(guarded: &Guarded) -> &[f32] {
    // SAFETY: any bytes are float32.
    let (before, floats, after) = unsafe { guarded.bytes().align_to() };
    assert!(before.is_empty() && after.is_empty());
    floats
}

/// The bits of what a function writes into guarded memory.
fn written(len: usize, guard: Guard, write: impl FnOnce(&mut [MaybeUninit<f32>])) -> Vec<u32> {
    let mut y = guarded_floats(&vec![7.0; len], guard);
    // SAFETY: bytes of float32, which may be uninitialized; all written are floats.
    let (before, to, after) = unsafe { y.bytes_mut().align_to_mut() };
    assert!(before.is_empty() && after.is_empty());
    write(to);
    floats(&y.clone()).iter().map(|y| y.to_bits()).collect()
}

/// A scale or a minimum: now and then one that is extreme, or not finite.
fn scale(entropy: &mut Unstructured) -> f32 {
    match entropy.below(60) {
        0 => entropy.pick(&[0.0, -0.0, f32::MAX, f32::MIN_POSITIVE, 1e-40, -1e-45, 1e30, -1e-30]),
        1 if entropy.one_in(20) => {
            entropy.pick(&[f32::NAN, f32::from_bits(0xffc0_1234), f32::INFINITY, -f32::INFINITY])
        }
        _ => (entropy.unit() as f32 - 0.5) * 0.1,
    }
}

/// A row of x of one of several kinds.
fn row(entropy: &mut Unstructured, k: usize) -> Vec<f32> {
    let kind = entropy.below(24);
    let size = entropy.pick(&[1.0, 1.0, 1.0, 1e-20, 1e20, 1e-33, 3e38, 1e-40]);
    let mut row: Vec<f32> = (0..k).map(|_| (entropy.unit() as f32 * 2.0 - 1.0) * size).collect();
    let at = entropy.below(k);
    match kind {
        0 => row.fill(0.0),
        1 => row[at] = entropy.pick(&[f32::NAN, -f32::NAN, f32::from_bits(1 | f32::INFINITY.to_bits())]),
        2 => row[at] = entropy.pick(&[f32::INFINITY, -f32::INFINITY]),
        3 => row[at] = 100.0 * size.min(1e30),
        // Ties between codes of int8.
        4..8 => {
            row.fill_with(|| entropy.below(255) as f32 / 2.0 - 63.5);
            row[at] = 127.0;
        }
        8 => row.fill(-size),
        _ => (),
    }
    row
}

impl Drawn {
    /// A product of these sizes.
    pub fn new(entropy: &mut Unstructured, shape: MatrixShape, activations: Activations, rows: usize) -> Self {
        let codes: Vec<u8> = (0..shape.n * shape.k).map(|_| entropy.below(1 << shape.bits) as u8).collect();
        let mut scales = || (0..shape.n * shape.blocks()).map(|_| scale(entropy)).collect::<Vec<_>>();
        let (mut panels, scales, minima) = (pack(&shape, &codes), scales(), scales());
        let [mut scales, mut minima] = [scales, minima].map(|values| pack_columns(&shape, &values));
        // Whatever there is past N and K, it changes nothing.
        if entropy.one_in(2) {
            let used = pack(&shape, &vec![((1 << shape.bits) - 1) as u8; shape.n * shape.k]);
            panels.iter_mut().zip(used).for_each(|(code, used)| *code |= !used);
            let used = pack_columns(&shape, &vec![1.0; shape.n * shape.blocks()]);
            for values in [&mut scales, &mut minima] {
                let past = entropy.pick(&[f32::NAN, f32::INFINITY, -f32::MAX]);
                values.iter_mut().zip(&used).filter(|(_, used)| **used == 0.0).for_each(|(value, _)| *value = past);
            }
        }
        let gate = entropy.pick(&Gate::ALL);
        let columns = if gate == Gate::None { shape.k } else { 2 * shape.k };
        let x: Vec<f32> = (0..rows).flat_map(|_| row(entropy, columns)).collect();
        let bias: Vec<f32> = (0..shape.n).map(|_| scale(entropy)).collect();
        let guard = entropy.pick(&Guard::ALL);
        let matrix = Matrix::new(shape, &panels, &scales, entropy.one_in(2).then_some(&minima[..]));
        Self { gate, ..Self::of(&matrix, activations, &x, entropy.one_in(2).then_some(&bias), guard) }
    }

    /// A product of any form and small sizes.
    pub fn draw(entropy: &mut Unstructured, most_rows: usize) -> Self {
        let (bits, block_size) = (entropy.pick(&[4, 8]), entropy.pick(&[16, 32]));
        let shape = MatrixShape { n: entropy.within(1, 70), k: entropy.within(1, 200), bits, block_size };
        let (activations, rows) = (entropy.pick(&Activations::ALL), entropy.within(1, most_rows));
        Self::new(entropy, shape, activations, rows)
    }

    /// Copies of these operands, of which no row is gated.
    pub fn of(matrix: &Matrix, activations: Activations, x: &[f32], bias: Option<&[f32]>, guard: Guard) -> Self {
        Self {
            shape: *matrix.shape(),
            activations,
            gate: Gate::None,
            guard,
            panels: guarded(matrix.panels(), ElementType::Int8, guard),
            scales: guarded_floats(matrix.scales(), guard),
            minima: matrix.minima().map(|minima| guarded_floats(minima, guard)),
            x: guarded_floats(x, guard),
            bias: bias.map(|bias| guarded_floats(bias, guard)),
        }
    }

    /// One row's product.
    pub fn row(&self, row: usize) -> Self {
        let x = &floats(&self.x)[row * self.columns()..(row + 1) * self.columns()];
        let of = Self::of(&self.matrix(), self.activations, x, self.bias.as_ref().map(floats), self.guard);
        Self { gate: self.gate, ..of }
    }

    pub fn shape(&self) -> &MatrixShape {
        &self.shape
    }

    pub fn rows(&self) -> usize {
        floats(&self.x).len() / self.columns()
    }

    /// Elements of a row of x.
    fn columns(&self) -> usize {
        self.shape.k * if self.gate == Gate::None { 1 } else { 2 }
    }

    fn matrix(&self) -> Matrix<'_> {
        Matrix::new(self.shape, self.panels.bytes(), floats(&self.scales), self.minima.as_ref().map(floats))
    }

    /// The bits of y.
    pub fn multiply(&self, kernel: &dyn MatmulKernel, workers: &dyn Workers) -> Vec<u32> {
        let (matrix, bias) = (self.matrix(), self.bias.as_ref().map(floats));
        let product = Product::new(matrix, self.activations, self.gate, floats(&self.x), bias);
        written(self.rows() * self.shape.n, self.guard, |y| kernel.multiply(&product, y, workers))
    }

    /// The bits of gathered columns.
    pub fn gather(&self, kernel: &dyn MatmulKernel, indices: &[i64], workers: &dyn Workers) -> Vec<u32> {
        written(indices.len() * self.shape.k, self.guard, |y| kernel.gather(&self.matrix(), indices, y, workers))
    }
}

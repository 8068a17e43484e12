//! The scalar reference, which reads like the definition.
//!
//! ```text
//! each row of x, if it is gated, becomes one of half as many elements
//! for each block b of a row of x
//!     a = the largest |x_i|; size = max(a, 2^-100); sa = size / top; inverse = top / size
//!     q_i = x_i * inverse, rounded to nearest, ties to even
//!     if some x_i is NaN or infinite: sa = NaN, every q_i = 0
//! c = +0; for b ascending
//!     s = the sum of q_i * (code_i - zero point), exact
//!     c = fma(float(s), scale * sa, c)
//!     with minima, whose zero point is 0: c = fma(minimum, sa * float(the sum of q_i), c)
//! y = c, or c + bias; a NaN is 0x7fc00000
//! ```

use std::mem::MaybeUninit;

use kvcache_kernels::Workers;

use crate::gate::{Gate, gated};
use crate::matrix::Matrix;
use crate::product::{Activations, MatmulKernel, Product, column};

/// The magnitude, 2^-100, below which a block is quantized as if it were the block's largest one.
pub(crate) const LEAST_SIZE: f32 = f32::from_bits((127 - 100) << 23);

/// The one NaN of outputs.
pub(crate) const NAN: f32 = f32::from_bits(0x7fc0_0000);

/// The scalar reference. It must not be made faster: it is what the others are compared with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct MatmulReference;

impl MatmulKernel for MatmulReference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn multiply(&self, product: &Product<'_>, y: &mut [MaybeUninit<f32>], _: &dyn Workers) {
        let shape = product.matrix().shape();
        assert_eq!(Some(y.len()), product.rows().checked_mul(shape.n), "the elements of y");
        for (x, y) in product.x().chunks_exact(product.columns()).zip(y.chunks_exact_mut(shape.n)) {
            let x = match product.gate() {
                Gate::None => x.to_vec(),
                gate => (0..shape.k).map(|k| gated(gate, x[k], x[shape.k + k])).collect(),
            };
            let blocks: Vec<_> = x.chunks(shape.block_size).map(|x| quantize(x, product.activations())).collect();
            for (n, y) in y.iter_mut().enumerate() {
                y.write(element(product, &blocks, n));
            }
        }
    }

    fn gather(&self, matrix: &Matrix<'_>, indices: &[i64], y: &mut [MaybeUninit<f32>], _: &dyn Workers) {
        let shape = matrix.shape();
        assert_eq!(Some(y.len()), indices.len().checked_mul(shape.k), "the elements of y");
        for (&index, y) in indices.iter().zip(y.chunks_exact_mut(shape.k)) {
            let column = column(matrix, index);
            for (k, y) in y.iter_mut().enumerate() {
                let at = shape.scale_position(k / shape.block_size, column);
                let (code, scale) = (f32::from(matrix.code(k, column)), matrix.scales()[at]);
                y.write(one_nan(match matrix.minima() {
                    Some(minima) => scale.mul_add(code, minima[at]),
                    None => (code - matrix.zero_point() as f32) * scale,
                }));
            }
        }
    }
}

/// A block of x: its scale, and its codes.
fn quantize(x: &[f32], activations: Activations) -> (f32, Vec<i32>) {
    if x.iter().any(|x| !x.is_finite()) {
        return (f32::NAN, vec![0; x.len()]);
    }
    let size = x.iter().fold(LEAST_SIZE, |size, x| size.max(x.abs()));
    let inverse = activations.top() / size;
    (size / activations.top(), x.iter().map(|x| (x * inverse).round_ties_even() as i32).collect())
}

/// The element of y of a quantized row and of column n.
fn element(product: &Product<'_>, blocks: &[(f32, Vec<i32>)], n: usize) -> f32 {
    let matrix = product.matrix();
    let mut c = 0.0_f32;
    for (b, (sa, codes)) in blocks.iter().enumerate() {
        let first = b * matrix.shape().block_size;
        let weights = (first..).map(|k| i32::from(matrix.code(k, n)) - matrix.zero_point());
        let s: i32 = codes.iter().zip(weights).map(|(q, weight)| q * weight).sum();
        let at = matrix.shape().scale_position(b, n);
        c = (s as f32).mul_add(matrix.scales()[at] * sa, c);
        if let Some(minima) = matrix.minima() {
            let z: i32 = codes.iter().sum();
            c = minima[at].mul_add(sa * z as f32, c);
        }
    }
    one_nan(product.bias().map_or(c, |bias| c + bias[n]))
}

/// `y`, with [`NAN`] for every NaN: sign and payload of others differ between processors.
pub(crate) fn one_nan(y: f32) -> f32 {
    if y.is_nan() { NAN } else { y }
}

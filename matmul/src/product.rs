//! What a kernel multiplies, already checked.

use std::mem::MaybeUninit;

use kvcache_kernels::Workers;

use crate::gate::Gate;
use crate::matrix::Matrix;

/// What a block of an activation row is quantized to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activations {
    /// Codes from -127 to 127.
    Int8,
    /// Codes from -32767 to 32767.
    Int16,
}

impl Activations {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Int8, Self::Int16];

    /// Bits of a code, as the operator's attribute says.
    pub const fn bits(self) -> usize {
        match self {
            Self::Int8 => 8,
            Self::Int16 => 16,
        }
    }

    /// The largest code, which the largest magnitude of a block becomes.
    pub(crate) const fn top(self) -> f32 {
        match self {
            Self::Int8 => 127.0,
            Self::Int16 => 32767.0,
        }
    }
}

/// A product of float32 rows with a quantized matrix.
#[derive(Debug, Clone, Copy)]
pub struct Product<'a> {
    matrix: Matrix<'a>,
    activations: Activations,
    gate: Gate,
    x: &'a [f32],
    bias: Option<&'a [f32]>,
}

impl<'a> Product<'a> {
    /// The product of x (M, K), or gated (M, 2K), with a matrix; with a bias (N), this is added to each row.
    ///
    /// # Panics
    /// If x has no whole rows, or the bias another length. The caller has checked both.
    pub fn new(
        matrix: Matrix<'a>,
        activations: Activations,
        gate: Gate,
        x: &'a [f32],
        bias: Option<&'a [f32]>,
    ) -> Self {
        let shape = matrix.shape();
        let columns = shape.k.checked_mul(gate.parts());
        assert!(columns.is_some_and(|columns| x.len().is_multiple_of(columns)), "{} elements of {columns:?}", x.len());
        assert!(bias.is_none_or(|bias| bias.len() == shape.n), "a bias of N = {}", shape.n);
        Self { matrix, activations, gate, x, bias }
    }

    /// The matrix.
    pub fn matrix(&self) -> &Matrix<'a> {
        &self.matrix
    }

    /// What rows are quantized to.
    pub fn activations(&self) -> Activations {
        self.activations
    }

    /// What gates rows.
    pub fn gate(&self) -> Gate {
        self.gate
    }

    /// The rows, (M, K) or gated (M, 2K).
    pub fn x(&self) -> &'a [f32] {
        self.x
    }

    /// What is added to each row, (N).
    pub fn bias(&self) -> Option<&'a [f32]> {
        self.bias
    }

    /// Elements of a row of x: K, or 2K where they are gated.
    pub(crate) fn columns(&self) -> usize {
        self.matrix.shape().k * self.gate.parts()
    }

    /// M.
    pub fn rows(&self) -> usize {
        self.x.len() / self.columns()
    }
}

/// An implementation. All give the same bits: an element of `y` depends on its row of x and its column alone.
pub trait MatmulKernel: Sync {
    /// Its name, as a user writes it.
    fn name(&self) -> &'static str;

    /// Writes every element of y (M, N).
    ///
    /// # Panics
    /// If y has another length.
    fn multiply(&self, product: &Product<'_>, y: &mut [MaybeUninit<f32>], workers: &dyn Workers);

    /// Writes every element of y (indices, K): columns of the matrix as float32, `scale * (code - 2^(bits - 1))`
    /// rounded once, or with minima a fused multiply-add; a NaN is 0x7fc00000.
    ///
    /// # Panics
    /// If an index is not in [0, N), or y has another length.
    fn gather(&self, matrix: &Matrix<'_>, indices: &[i64], y: &mut [MaybeUninit<f32>], workers: &dyn Workers);
}

/// The columns of indices, each less than N.
///
/// # Panics
/// If one is not.
pub(crate) fn column(matrix: &Matrix<'_>, index: i64) -> usize {
    let n = matrix.shape().n;
    usize::try_from(index).ok().filter(|&column| column < n).unwrap_or_else(|| panic!("index {index} of N = {n}"))
}

//! The operators over panels of quantized matrices: `QuantizedMatMul` and `QuantizedGather`.

use kvcache_matmul::{Activations, COLUMNS, Gate, Matrix, MatrixShape, Product};
use kvcache_schema::ElementType::{Float32, Int64, UInt8};
use kvcache_schema::{GatherAttributes, MatMulAttributes, OperatorKind};
use smallvec::smallvec;

use crate::backend::{Backends, MatMulBackend};
use crate::checked::{Checked, Output, Work};
use crate::config::ranges;
use crate::error::Error;
use crate::operands::{Operand, Operands, required};
use crate::shape_inference::Dim;
use crate::tensor::{Shape, TensorRef};
use crate::validate::{AliasCheck, equal_type, shapes};

const Y: &str = "y";

/// A quantized matrix (N, K) as an operator's inputs.
#[derive(Debug, Clone)]
pub struct MatrixInputs<'a> {
    /// The codes. uint8, shape (P, B, `block_size` * `bits` * 2), as docs/QuantizedMatMul.md lays them out;
    /// [`pack`](kvcache_matmul::pack) makes them.
    pub panels: TensorRef<'a>,
    /// The scales. float32, shape (P, B, 16).
    pub scales: TensorRef<'a>,
    /// The weights of code 0, if given. float32, shape (P, B, 16); without elements it counts as absent.
    pub minima: Option<TensorRef<'a>>,
}

impl<'a> MatrixInputs<'a> {
    fn operands(self) -> [Option<Operand<'a>>; 3] {
        [Some(self.panels), Some(self.scales), self.minima].map(|tensor| tensor.map(Operand::from))
    }
}

/// Checks the matrix of a call, and adds its memory to `aliases`.
fn check_matrix<'a>(
    [panels, scales, minima]: [Option<&Operand<'a>>; 3],
    shape: MatrixShape,
    aliases: &mut AliasCheck,
) -> Result<Matrix<'a>, Error> {
    let [p, b] = [shape.panels(), shape.blocks()];
    let panels = read(("panels", panels), UInt8, &[p, b, shape.block_bytes()], aliases)?;
    let scales = read(("scales", scales), Float32, &[p, b, COLUMNS], aliases)?;
    let minima = read_given("minima", minima, &[p, b, COLUMNS], aliases)?;
    Ok(Matrix::new(shape, panels, scales, minima))
}

/// The sizes of a matrix, of attributes in their ranges.
fn matrix_shape([n, k, bits, block_size]: [i64; 4]) -> MatrixShape {
    MatrixShape { n: n as usize, k: k as usize, bits: bits as usize, block_size: block_size as usize }
}

/// The elements of a tensor of this type and shape, which are of the Rust type `T`.
fn read<'a, T>(
    (name, operand): (&'static str, Option<&Operand<'a>>),
    element: kvcache_schema::ElementType,
    shape: &[usize],
    aliases: &mut AliasCheck,
) -> Result<&'a [T], Error> {
    let tensor = &required(name, operand)?.tensor;
    equal_type(name, tensor.element, element)?;
    shapes::equal(name, &tensor.shape, shape, "by the attributes")?;
    debug_assert_eq!(element.bits(), 8 * size_of::<T>());
    Ok(match aliases.read(name, tensor)? {
        0 => &[],
        // SAFETY: the tensor is contiguous, of `len` bytes, and aligned for elements of the size of T, which are plain
        // numbers; it is valid for reads for 'a, as a `TensorRef`.
        len => unsafe { std::slice::from_raw_parts(tensor.data.cast(), len / size_of::<T>()) },
    })
}

/// The elements of an optional tensor of float32; one without elements counts as not given.
fn read_given<'a>(
    name: &'static str,
    operand: Option<&Operand<'a>>,
    shape: &[usize],
    aliases: &mut AliasCheck,
) -> Result<Option<&'a [f32]>, Error> {
    let given = operand.filter(|operand| !operand.tensor.shape.contains(&0));
    given.map(|given| read((name, Some(given)), Float32, shape, aliases)).transpose()
}

/// The inputs of `QuantizedMatMul`. Everything is checked when a call is made.
#[derive(Debug, Clone)]
pub struct MatMulInputs<'a> {
    /// The rows. float32, shape (..., K), or (..., 2K) where they are gated.
    pub x: TensorRef<'a>,
    /// The matrix.
    pub matrix: MatrixInputs<'a>,
    /// What is added to each row of the output, if given. float32, shape (N); without elements it counts as absent.
    pub bias: Option<TensorRef<'a>>,
}

impl<'a> MatMulInputs<'a> {
    /// The inputs by position.
    pub fn operands(self) -> Operands<'a> {
        let bias = self.bias.map(Operand::from);
        [Some(self.x.into())].into_iter().chain(self.matrix.operands()).chain([bias]).collect()
    }
}

/// The operator `kvcache_ops.QuantizedMatMul` with checked attributes: float rows times the transpose of a quantized
/// matrix (N, K). An element of the output depends on its row and its column alone, to the bit.
///
/// ```
/// use kvcache_op::matmul_kernels::{MatrixShape, pack};
/// use kvcache_op::{MatMulAttributes, MatMulInputs, MatrixInputs, QuantizedMatMul, Serial};
/// use ndarray::{Array2, Array3};
///
/// # fn main() -> Result<(), kvcache_op::Error> {
/// // The matrix (1, 32) of codes 9, which stand for 9 - 8, of the scale 2.
/// let shape = MatrixShape { n: 1, k: 32, bits: 4, block_size: 32 };
/// let panels = Array3::from_shape_vec((1, 1, 256), pack(&shape, &[9; 32])).unwrap();
/// let scales = Array3::<f32>::from_elem((1, 1, 16), 2.0);
/// let attributes = MatMulAttributes { N: 1, K: 32, bits: 4, block_size: 32, activation_bits: 16, gate: 0 };
/// let x = Array2::<f32>::ones((3, 32));
/// let matrix = MatrixInputs { panels: (&panels).into(), scales: (&scales).into(), minima: None };
/// let inputs = MatMulInputs { x: (&x).into(), matrix, bias: None };
/// let [y]: [Array2<f32>; 1] = QuantizedMatMul::new(attributes)?.check(&inputs)?.run_alloc(&Serial)?;
/// assert_eq!((y.shape(), y[[2, 0]]), ([3, 1].as_slice(), 64.0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct QuantizedMatMul {
    attributes: MatMulAttributes,
    matrix: MatrixShape,
    activations: Activations,
    gate: Gate,
    pub(crate) backends: Backends,
}

impl QuantizedMatMul {
    /// The operator with these attributes.
    ///
    /// # Errors
    /// [`Error::AttributeOutOfRange`].
    pub fn new(attributes: MatMulAttributes) -> Result<Self, Error> {
        ranges(&MatMulAttributes::SPEC, &attributes)?;
        let MatMulAttributes { N, K, bits, block_size, activation_bits, gate } = attributes;
        let activations = if activation_bits == 8 { Activations::Int8 } else { Activations::Int16 };
        let matrix = matrix_shape([N, K, bits, block_size]);
        let gate = Gate::ALL[gate as usize];
        Ok(Self { attributes, matrix, activations, gate, backends: Backends::default() })
    }

    /// The operator on another kernel.
    #[must_use]
    pub fn with_backend(mut self, backend: MatMulBackend) -> Self {
        self.backends.matmul = backend;
        self
    }

    /// The attributes that the operator was made with.
    pub fn attributes(&self) -> &MatMulAttributes {
        &self.attributes
    }

    /// The shape of `y`, if the rank of `x` is known before a call.
    pub fn infer_shape(&self, x: Option<&[Dim]>) -> Option<Vec<Dim>> {
        let (_, rows) = x?.split_last()?;
        Some(rows.iter().cloned().chain([Dim::Known(self.matrix.n)]).collect())
    }

    /// Checks a call; nothing is written yet.
    ///
    /// # Errors
    /// Every [`Error`] that concerns the inputs.
    pub fn check<'a>(&self, inputs: &MatMulInputs<'a>) -> Result<Checked<'a>, Error> {
        self.check_operands(&mut inputs.clone().operands())
    }

    /// Checks a call of the inputs by position.
    pub(crate) fn check_operands<'a>(&self, operands: &mut Operands<'a>) -> Result<Checked<'a>, Error> {
        const KIND: OperatorKind = OperatorKind::QuantizedMatMul;
        let [x, panels, scales, minima, bias] = operands.get(KIND)?;
        let MatrixShape { n, k, .. } = self.matrix;
        let mut aliases = AliasCheck::default();
        let Some((_, rows)) = required("x", x)?.tensor.shape.split_last() else {
            return Err(Error::RankMismatch { input: "x", shape: Shape::default(), expected: 1 });
        };
        let shape = |last| rows.iter().copied().chain([last]).collect::<Shape>();
        let columns = if self.gate == Gate::None { k } else { k.saturating_mul(2) };
        let rows_of_x = read(("x", x), Float32, &shape(columns), &mut aliases)?;
        let matrix = check_matrix([panels, scales, minima], self.matrix, &mut aliases)?;
        let bias = read_given("bias", bias, &[n], &mut aliases)?;
        let work = Work::MatMul(Product::new(matrix, self.activations, self.gate, rows_of_x, bias));
        let outputs = smallvec![Output::new(Y, Float32, shape(n), "the shape of this call")];
        Ok(Checked::new(self.backends, (work, outputs, aliases), operands.take_guards(KIND)))
    }
}

/// The inputs of `QuantizedGather`. Everything is checked when a call is made.
#[derive(Debug, Clone)]
pub struct GatherInputs<'a> {
    /// The rows that are wanted, each from 0 to N - 1. int64, any shape.
    pub indices: TensorRef<'a>,
    /// The matrix.
    pub matrix: MatrixInputs<'a>,
}

impl<'a> GatherInputs<'a> {
    /// The inputs by position.
    pub fn operands(self) -> Operands<'a> {
        [Some(self.indices.into())].into_iter().chain(self.matrix.operands()).collect()
    }
}

/// The operator `kvcache_ops.QuantizedGather` with checked attributes: rows of a quantized matrix (N, K) as floats,
/// from the panels that [`QuantizedMatMul`] multiplies by.
#[derive(Debug, Clone)]
pub struct QuantizedGather {
    attributes: GatherAttributes,
    matrix: MatrixShape,
    pub(crate) backends: Backends,
}

impl QuantizedGather {
    /// The operator with these attributes.
    ///
    /// # Errors
    /// [`Error::AttributeOutOfRange`].
    pub fn new(attributes: GatherAttributes) -> Result<Self, Error> {
        ranges(&GatherAttributes::SPEC, &attributes)?;
        let GatherAttributes { N, K, bits, block_size } = attributes;
        let matrix = matrix_shape([N, K, bits, block_size]);
        Ok(Self { attributes, matrix, backends: Backends::default() })
    }

    /// The operator on another kernel.
    #[must_use]
    pub fn with_backend(mut self, backend: MatMulBackend) -> Self {
        self.backends.matmul = backend;
        self
    }

    /// The attributes that the operator was made with.
    pub fn attributes(&self) -> &GatherAttributes {
        &self.attributes
    }

    /// The shape of `y`, if the shape of `indices` is known before a call.
    pub fn infer_shape(&self, indices: Option<&[Dim]>) -> Option<Vec<Dim>> {
        Some(indices?.iter().cloned().chain([Dim::Known(self.matrix.k)]).collect())
    }

    /// Checks a call; nothing is written yet.
    ///
    /// # Errors
    /// Every [`Error`] that concerns the inputs.
    pub fn check<'a>(&self, inputs: &GatherInputs<'a>) -> Result<Checked<'a>, Error> {
        self.check_operands(&mut inputs.clone().operands())
    }

    /// Checks a call of the inputs by position.
    pub(crate) fn check_operands<'a>(&self, operands: &mut Operands<'a>) -> Result<Checked<'a>, Error> {
        const KIND: OperatorKind = OperatorKind::QuantizedGather;
        let [indices, panels, scales, minima] = operands.get(KIND)?;
        let MatrixShape { n, k, .. } = self.matrix;
        let mut aliases = AliasCheck::default();
        let shape = &required("indices", indices)?.tensor.shape;
        let rows = read::<i64>(("indices", indices), Int64, shape, &mut aliases)?;
        if let Some((place, &got)) = rows.iter().enumerate().find(|&(_, &row)| !(0..n as i64).contains(&row)) {
            return Err(Error::IndexRange { place, got, n });
        }
        let matrix = check_matrix([panels, scales, minima], self.matrix, &mut aliases)?;
        let shape = shape.iter().copied().chain([k]).collect::<Shape>();
        let outputs = smallvec![Output::new(Y, Float32, shape, "the shape of this call")];
        let work = Work::Gather { matrix, rows };
        Ok(Checked::new(self.backends, (work, outputs, aliases), operands.take_guards(KIND)))
    }
}

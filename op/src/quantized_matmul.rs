//! The operators over panels of quantized matrices: `QuantizedMatMul` and `QuantizedGather`.

use std::mem::MaybeUninit;

use kvcache_kernels::Workers;
use kvcache_matmul::{Activations, COLUMNS, Gate, Matrix, MatrixShape, Product};
use kvcache_schema::ElementType::{Float32, Int64, UInt8};
use kvcache_schema::{GatherAttributes, MatMulAttributes};
use ndarray::{Array, IxDyn};

use crate::backend::MatMulBackend;
use crate::config::ranges;
use crate::error::Error;
use crate::operands::allocate;
use crate::shape_inference::Dim;
use crate::tensor::{Shape, TensorMut, TensorRef};
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
    /// Checks the matrix of a call, and adds its memory to `aliases`.
    fn check(&self, shape: MatrixShape, aliases: &mut AliasCheck) -> Result<Matrix<'a>, Error> {
        let [p, b] = [shape.panels(), shape.blocks()];
        let panels = read(("panels", &self.panels), UInt8, &[p, b, shape.block_bytes()], aliases)?;
        let scales = read(("scales", &self.scales), Float32, &[p, b, COLUMNS], aliases)?;
        let minima = read_given("minima", self.minima.as_ref(), &[p, b, COLUMNS], aliases)?;
        Ok(Matrix::new(shape, panels, scales, minima))
    }
}

/// The sizes of a matrix, of attributes in their ranges.
fn matrix_shape([n, k, bits, block_size]: [i64; 4]) -> MatrixShape {
    MatrixShape { n: n as usize, k: k as usize, bits: bits as usize, block_size: block_size as usize }
}

/// The elements of a tensor of this type and shape, which are of the Rust type `T`.
fn read<'a, T>(
    (name, tensor): (&'static str, &TensorRef<'a>),
    element: kvcache_schema::ElementType,
    shape: &[usize],
    aliases: &mut AliasCheck,
) -> Result<&'a [T], Error> {
    equal_type(name, tensor.element, element)?;
    shapes::equal(name, &tensor.shape, shape, "by the attributes")?;
    debug_assert_eq!(element.bits(), 8 * size_of::<T>());
    Ok(match aliases.read_bytes(name, tensor.into())? {
        0 => &[],
        // SAFETY: the tensor is contiguous, of `len` bytes, and aligned for elements of the size of T, which are plain
        // numbers; it is valid for reads for 'a, as a `TensorRef`.
        len => unsafe { std::slice::from_raw_parts(tensor.data.cast(), len / size_of::<T>()) },
    })
}

/// The elements of an optional tensor of float32; one without elements counts as not given.
fn read_given<'a>(
    name: &'static str,
    tensor: Option<&TensorRef<'a>>,
    shape: &[usize],
    aliases: &mut AliasCheck,
) -> Result<Option<&'a [f32]>, Error> {
    let given = tensor.filter(|tensor| !tensor.shape.contains(&0));
    given.map(|tensor| read((name, tensor), Float32, shape, aliases)).transpose()
}

/// The memory of an output of this shape.
fn write<'a>(
    tensor: &TensorMut<'a>,
    shape: &[usize],
    aliases: &mut AliasCheck,
) -> Result<&'a mut [MaybeUninit<f32>], Error> {
    equal_type(Y, tensor.element, Float32)?;
    shapes::equal(Y, &tensor.shape, shape, "the shape of this call")?;
    Ok(match aliases.write_bytes(Y, tensor.into())? {
        0 => &mut [],
        // SAFETY: the tensor is contiguous, of `len` bytes, aligned for float32, and shares none with others of the
        // call, checked above. It is valid for writes for 'a, and borrowed so that nobody else accesses it.
        len => unsafe { std::slice::from_raw_parts_mut(tensor.data.cast(), len / size_of::<f32>()) },
    })
}

/// An output of this shape that is allocated here, which `run` writes.
fn run_alloc<'a>(
    shape: &[usize],
    run: impl FnOnce(TensorMut<'a>) -> Result<(), Error>,
) -> Result<Array<f32, IxDyn>, Error> {
    let mut y: Array<MaybeUninit<f32>, IxDyn> = allocate(Y, shape)?;
    // SAFETY: a new array of `shape` elements in row-major order, used by nothing else until the call is over; a call
    // writes its output and does not read it.
    run(unsafe { TensorMut::from_raw_parts(Float32, shape, y.as_mut_ptr().cast()) })?;
    // SAFETY: `run` has returned `Ok`, so it has written every element.
    Ok(unsafe { y.assume_init() })
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
/// let y = QuantizedMatMul::new(attributes)?.check(&inputs)?.run_alloc(&Serial)?;
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
    backend: MatMulBackend,
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
        Ok(Self { attributes, matrix, activations, gate, backend: MatMulBackend::default() })
    }

    /// The operator on another kernel.
    #[must_use]
    pub fn with_backend(self, backend: MatMulBackend) -> Self {
        Self { backend, ..self }
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
    pub fn check<'a>(&self, inputs: &MatMulInputs<'a>) -> Result<MatMulCall<'a>, Error> {
        let MatrixShape { n, k, .. } = self.matrix;
        let mut aliases = AliasCheck::default();
        let mut shape = inputs.x.shape.to_vec();
        let Some(last) = shape.last_mut() else {
            return Err(Error::RankMismatch { input: "x", shape: Shape::default(), expected: 1 });
        };
        *last = if self.gate == Gate::None { k } else { k.saturating_mul(2) };
        let x = read(("x", &inputs.x), Float32, &shape, &mut aliases)?;
        *shape.last_mut().expect("at least one axis, checked above") = n;
        let matrix = inputs.matrix.check(self.matrix, &mut aliases)?;
        let bias = read_given("bias", inputs.bias.as_ref(), &[n], &mut aliases)?;
        let product = Product::new(matrix, self.activations, self.gate, x, bias);
        Ok(MatMulCall { backend: self.backend, product, shape, aliases })
    }
}

/// A call of `QuantizedMatMul` whose inputs have been checked, and which has written nothing yet.
#[derive(Debug)]
pub struct MatMulCall<'a> {
    backend: MatMulBackend,
    product: Product<'a>,
    shape: Vec<usize>,
    aliases: AliasCheck,
}

impl<'a> MatMulCall<'a> {
    /// The shape of `y`: (..., N).
    pub fn output_shape(&self) -> &[usize] {
        &self.shape
    }

    /// Multiplies, on the threads of `workers`.
    ///
    /// # Errors
    /// An [`Error`] that concerns `y`; nothing has then been written.
    pub fn run(mut self, y: TensorMut<'a>, workers: &dyn Workers) -> Result<(), Error> {
        let y = write(&y, &self.shape, &mut self.aliases)?;
        self.backend.kernel().multiply(&self.product, y, workers);
        Ok(())
    }

    /// Runs the call with an output allocated here.
    ///
    /// # Errors
    /// Any [`Error`] of `y`; nothing has then been written.
    pub fn run_alloc(self, workers: &dyn Workers) -> Result<Array<f32, IxDyn>, Error> {
        run_alloc(&self.shape.clone(), |y| self.run(y, workers))
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

/// The operator `kvcache_ops.QuantizedGather` with checked attributes: rows of a quantized matrix (N, K) as floats, from
/// the panels that [`QuantizedMatMul`] multiplies by.
#[derive(Debug, Clone)]
pub struct QuantizedGather {
    attributes: GatherAttributes,
    matrix: MatrixShape,
    backend: MatMulBackend,
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
        Ok(Self { attributes, matrix, backend: MatMulBackend::default() })
    }

    /// The operator on another kernel.
    #[must_use]
    pub fn with_backend(self, backend: MatMulBackend) -> Self {
        Self { backend, ..self }
    }

    /// The attributes that the operator was made with.
    pub fn attributes(&self) -> &GatherAttributes {
        &self.attributes
    }

    /// The shape of `y`, if that of `indices` is known before a call.
    pub fn infer_shape(&self, indices: Option<&[Dim]>) -> Option<Vec<Dim>> {
        Some(indices?.iter().cloned().chain([Dim::Known(self.matrix.k)]).collect())
    }

    /// Checks a call; nothing is written yet.
    ///
    /// # Errors
    /// Every [`Error`] that concerns the inputs.
    pub fn check<'a>(&self, inputs: &GatherInputs<'a>) -> Result<GatherCall<'a>, Error> {
        let MatrixShape { n, k, .. } = self.matrix;
        let mut aliases = AliasCheck::default();
        let rows = read::<i64>(("indices", &inputs.indices), Int64, &inputs.indices.shape, &mut aliases)?;
        if let Some((place, &got)) = rows.iter().enumerate().find(|&(_, &row)| !(0..n as i64).contains(&row)) {
            return Err(Error::IndexRange { place, got, n });
        }
        let matrix = inputs.matrix.check(self.matrix, &mut aliases)?;
        let shape = inputs.indices.shape.iter().copied().chain([k]).collect();
        Ok(GatherCall { backend: self.backend, matrix, rows, shape, aliases })
    }
}

/// A call of `QuantizedGather` whose inputs have been checked, and which has written nothing yet.
#[derive(Debug)]
pub struct GatherCall<'a> {
    backend: MatMulBackend,
    matrix: Matrix<'a>,
    rows: &'a [i64],
    shape: Vec<usize>,
    aliases: AliasCheck,
}

impl<'a> GatherCall<'a> {
    /// The shape of `y`: that of `indices`, then K.
    pub fn output_shape(&self) -> &[usize] {
        &self.shape
    }

    /// Writes the rows, on the threads of `workers`.
    ///
    /// # Errors
    /// An [`Error`] that concerns `y`; nothing has then been written.
    pub fn run(mut self, y: TensorMut<'a>, workers: &dyn Workers) -> Result<(), Error> {
        let y = write(&y, &self.shape, &mut self.aliases)?;
        self.backend.kernel().gather(&self.matrix, self.rows, y, workers);
        Ok(())
    }

    /// Runs the call with an output allocated here.
    ///
    /// # Errors
    /// Any [`Error`] of `y`; nothing has then been written.
    pub fn run_alloc(self, workers: &dyn Workers) -> Result<Array<f32, IxDyn>, Error> {
        run_alloc(&self.shape.clone(), |y| self.run(y, workers))
    }
}

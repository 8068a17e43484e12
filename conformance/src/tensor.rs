//! Tensors in memory of their own, and their elements as numbers and bits.

use std::fmt;

use half::{bf16, f16};
use kvcache_schema::{ElementType, shape};

/// A row-major tensor with its own, aligned memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Tensor {
    element: ElementType,
    shape: Vec<usize>,
    memory: Memory,
}

/// As many bytes as a tensor has and not one more, so that sanitizers see every access beyond them; aligned for
/// elements of one, two, four or eight bytes.
#[derive(Clone, PartialEq, Eq)]
enum Memory {
    One(Vec<u8>),
    Two(Vec<u16>),
    Four(Vec<u32>),
    Eight(Vec<u64>),
}

impl Memory {
    /// Zero bytes, which are whole elements of this alignment.
    fn zeros(bytes: usize, align: usize) -> Self {
        match align {
            1 => Self::One(vec![0; bytes]),
            2 => Self::Two(vec![0; bytes / 2]),
            4 => Self::Four(vec![0; bytes / 4]),
            8 => Self::Eight(vec![0; bytes / 8]),
            _ => unreachable!("no element is aligned to {align} bytes"),
        }
    }
}

impl Tensor {
    /// A tensor with these bytes, little-endian; int4 is packed, low nibble first. `None` if they are not as many as
    /// the shape needs.
    pub fn new(element: ElementType, shape: Vec<usize>, bytes: &[u8]) -> Option<Self> {
        if shape::bytes(element, &shape)? != bytes.len() {
            return None;
        }
        let mut tensor = Self::zeros(element, shape)?;
        tensor.bytes_mut().copy_from_slice(bytes);
        Some(tensor)
    }

    /// A tensor of indices of this shape.
    ///
    /// # Panics
    /// If there are not as many as the shape needs.
    pub fn of_indices(indices: &[i64], shape: &[usize]) -> Self {
        let bytes: Vec<_> = indices.iter().flat_map(|index| index.to_le_bytes()).collect();
        Self::new(ElementType::Int64, shape.to_vec(), &bytes).expect("as many indices as the shape needs")
    }

    /// A tensor of zero bytes; `None` if its size overflows.
    pub fn zeros(element: ElementType, shape: Vec<usize>) -> Option<Self> {
        let memory = Memory::zeros(shape::bytes(element, &shape)?, element.align());
        Some(Self { element, shape, memory })
    }

    /// The type of the elements.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// The shape, outermost axis first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The memory.
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::One(elements) => elements,
            Memory::Two(elements) => bytemuck::cast_slice(elements),
            Memory::Four(elements) => bytemuck::cast_slice(elements),
            Memory::Eight(elements) => bytemuck::cast_slice(elements),
        }
    }

    /// The values of a tensor of indices; none if it is of another type.
    pub fn indices(&self) -> Vec<i64> {
        match self.element {
            ElementType::Int64 => self.bytes().as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect(),
            _ => Vec::new(),
        }
    }

    /// The memory, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::One(elements) => elements,
            Memory::Two(elements) => bytemuck::cast_slice_mut(elements),
            Memory::Four(elements) => bytemuck::cast_slice_mut(elements),
            Memory::Eight(elements) => bytemuck::cast_slice_mut(elements),
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.element, self.shape)
    }
}

/// An element of a tensor. Displayed: the number, then its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    /// The type.
    pub element: ElementType,
    /// The bits, in the lowest places.
    pub bits: u64,
}

impl Value {
    /// How many values are in the memory of a tensor: its elements and, where int4 does not fill the last byte, the
    /// nibble that is left.
    pub fn count(tensor: &Tensor) -> usize {
        tensor.bytes().len() * 8 / tensor.element().bits()
    }

    /// The value at an index below [`count`](Self::count).
    pub fn at(tensor: &Tensor, i: usize) -> Self {
        let (element, bytes) = (tensor.element(), tensor.bytes());
        let bits = match element {
            ElementType::Int4 => u64::from(bytes[i / 2] >> (i % 2 * 4) & 0xf),
            _ => {
                let size = element.align();
                let mut bits = [0; 8];
                bits[..size].copy_from_slice(&bytes[i * size..][..size]);
                u64::from_le_bytes(bits)
            }
        };
        Self { element, bits }
    }

    /// The nearest number of a float type of 16 or 32 bits, ties to even.
    pub(crate) fn nearest(element: ElementType, x: f32) -> Self {
        let bits = match element {
            ElementType::Float16 => f16::from_f32(x).to_bits().into(),
            ElementType::BFloat16 => bf16::from_f32(x).to_bits().into(),
            _ => x.to_bits().into(),
        };
        Self { element, bits }
    }

    /// The number that it stands for, if it is of a float type.
    pub fn float(self) -> Option<f64> {
        match self.element {
            ElementType::Float32 => Some(f32::from_bits(self.bits as u32).into()),
            ElementType::Float16 => Some(f16::from_bits(self.bits as u16).to_f64()),
            ElementType::BFloat16 => Some(bf16::from_bits(self.bits as u16).to_f64()),
            ElementType::Float8E4M3Fn => Some(float8(self.bits)),
            ElementType::Int8 | ElementType::Int4 | ElementType::Int64 | ElementType::UInt8 => None,
        }
    }

    /// The number that it stands for, if it is of an integer type.
    pub fn integer(self) -> Option<i64> {
        if self.element == ElementType::UInt8 {
            return Some(self.bits as i64);
        }
        let unused = u64::BITS - self.element.bits() as u32;
        self.float().is_none().then_some((self.bits << unused) as i64 >> unused)
    }

    /// Whether it is a NaN.
    pub fn is_nan(self) -> bool {
        self.float().is_some_and(f64::is_nan)
    }

    /// How many floats of the type lie between the two, plus one; 0 for equal ones and for the two zeros. `None` unless
    /// both are numbers or infinities of one float type.
    pub fn ulps(self, other: Self) -> Option<u64> {
        if self.element != other.element || self.is_nan() || other.is_nan() {
            return None;
        }
        self.float()?;
        Some(self.rank().abs_diff(other.rank()))
    }

    /// A float's place in the order of the floats of its type; 0 for both zeros.
    fn rank(self) -> i64 {
        let sign = 1u64 << (self.element.bits() - 1);
        let magnitude = (self.bits & (sign - 1)) as i64;
        if self.bits & sign == 0 { magnitude } else { -magnitude }
    }

    pub(crate) fn hex(self) -> String {
        format!("{:#0width$x}", self.bits, width = 2 + self.element.bits() / 4)
    }

    pub(crate) fn number(self) -> String {
        match (self.float(), self.integer()) {
            (_, Some(integer)) => integer.to_string(),
            // `{:?}` writes very large and very small numbers with an exponent.
            (Some(x), _) if self.element == ElementType::Float32 => format!("{:?}", x as f32),
            (x, _) => x.map_or_else(String::new, |x| (x as f32).to_string()),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.number(), self.hex())
    }
}

/// The number of a float8e4m3fn, which has no infinities.
fn float8(bits: u64) -> f64 {
    let (exponent, mantissa) = ((bits >> 3 & 15) as i32, (bits & 7) as f64);
    let magnitude = match (exponent, bits & 7) {
        (15, 7) => f64::NAN,
        (0, _) => mantissa * 2f64.powi(-9),
        _ => (8.0 + mantissa) * 2f64.powi(exponent - 10),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

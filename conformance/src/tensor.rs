//! Tensors in memory of their own.

use std::fmt;

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

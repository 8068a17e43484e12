//! Tensors as the cases hold them.

use std::fmt;

use kvcache_schema::ElementType;

/// A row-major tensor with its own, aligned memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Tensor {
    element: ElementType,
    shape: Vec<usize>,
    /// The bytes, rounded up to whole words so that they are aligned for every element type.
    words: Vec<u64>,
    bytes: usize,
}

impl Tensor {
    /// A tensor with these bytes, little-endian; int4 is packed, low nibble first. `None` if they are not as many as the
    /// shape asks for.
    pub fn new(element: ElementType, shape: Vec<usize>, bytes: &[u8]) -> Option<Self> {
        let len = shape.iter().try_fold(1usize, |len, &axis| len.checked_mul(axis))?;
        if element.bytes(len)? != bytes.len() {
            return None;
        }
        let mut words = vec![0; bytes.len().div_ceil(size_of::<u64>())];
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Some(Self { element, shape, words, bytes: bytes.len() })
    }

    /// A tensor of zero bytes; `None` if its size overflows.
    pub fn zeros(element: ElementType, shape: Vec<usize>) -> Option<Self> {
        let len = shape.iter().try_fold(1usize, |len, &axis| len.checked_mul(axis))?;
        let bytes = element.bytes(len)?;
        Some(Self { element, shape, words: vec![0; bytes.div_ceil(size_of::<u64>())], bytes })
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
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }

    /// The memory, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes]
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.element, self.shape)
    }
}

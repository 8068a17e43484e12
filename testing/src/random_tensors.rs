//! What a random call leaves behind, and outputs that show what is written beside them.

use std::ops::Range;

use kvcache_conformance::Tensor;
use kvcache_op::{ElementType, TensorMut};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct After {
    pub key: Tensor,
    pub value: Tensor,
    pub cache: Tensor,
    pub scale: Option<Tensor>,
}

/// The bytes around an output, and in it before it is written.
const UNTOUCHED: u8 = 0xa5;

/// An output at this offset in bytes from a cache line.
pub struct Output {
    element: ElementType,
    shape: Vec<usize>,
    memory: Vec<u8>,
    place: Range<usize>,
}

impl Output {
    pub fn new(element: ElementType, shape: &[usize], past_line: usize) -> Self {
        let len = element.bytes(shape.iter().product()).unwrap();
        let memory = vec![UNTOUCHED; len + 2 * 64];
        let start = memory.as_ptr().align_offset(64) + past_line;
        Self { element, shape: shape.to_vec(), memory, place: start..start + len }
    }

    pub fn write(&mut self) -> TensorMut<'_> {
        let data = self.memory[self.place.clone()].as_mut_ptr();
        // SAFETY: memory of this type and shape, aligned for it, borrowed mutably as long as the result lives.
        unsafe { TensorMut::from_raw_parts(self.element, self.shape.as_slice(), data) }
    }

    /// The output, around which nothing has been written.
    pub fn tensor(&self) -> Tensor {
        let around = self.memory[..self.place.start].iter().chain(&self.memory[self.place.end..]);
        assert!(around.copied().all(|byte| byte == UNTOUCHED), "written outside an output");
        Tensor::new(self.element, self.shape.clone(), &self.memory[self.place.clone()]).unwrap()
    }
}

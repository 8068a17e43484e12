//! Tensors of random values, and outputs that show what is written beside them.

use std::ops::Range;

use half::f16;
use kvcache_conformance::Tensor;
use kvcache_op::{ElementType, TensorMut};
use proptest::prelude::*;
use proptest::test_runner::TestRng;

/// What a call leaves behind.
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

/// A number below `end`.
pub fn below(rng: &mut TestRng, end: usize) -> usize {
    rng.next_u32() as usize % end
}

/// A float near an edge case: of ordinary size, a tie, tiny, huge, or non-finite.
fn float(rng: &mut TestRng) -> f32 {
    let x = (rng.next_u32() as i32 >> 8) as f32 / 2f32.powi(20);
    match rng.next_u32() % 64 {
        0 => 0.0,
        1 => -0.0,
        2 => 63.5,
        3 => 127.0,
        4 => x * 2f32.powi(-18),
        5 => x * 2f32.powi(-130),
        6 => x * 8192.0,
        7 => f32::NAN,
        8 => f32::INFINITY,
        9..20 => x.round() + 0.5,
        _ => x,
    }
}

/// Random floats, of which few or none are non-finite; random bits for integers.
pub fn random(element: ElementType, shape: Vec<usize>, rng: &mut TestRng) -> Tensor {
    let mut tensor = Tensor::zeros(element, shape).unwrap();
    // A non-finite value propagates to its group: most tensors have none, so that arithmetic is tested.
    let with_non_finite = below(rng, 4) == 0;
    let mut next = || {
        let x = float(rng);
        if x.is_finite() || with_non_finite { x } else { 1.0 }
    };
    match element {
        ElementType::Float32 => {
            for to in tensor.bytes_mut().chunks_exact_mut(4) {
                to.copy_from_slice(&next().to_le_bytes());
            }
        }
        ElementType::Float16 => {
            for (i, to) in tensor.bytes_mut().chunks_exact_mut(2).enumerate() {
                let x = f16::from_f32(next());
                // Conversions make quiet NaNs only; a signalling one comes by its bits.
                let signalling = if x.is_nan() && i % 2 == 0 { 0x02ff } else { 0 };
                to.copy_from_slice(&(x.to_bits() ^ signalling).to_le_bytes());
            }
        }
        _ => rng.fill_bytes(tensor.bytes_mut()),
    }
    tensor
}

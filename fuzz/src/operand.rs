//! Tensors as a call describes them, and memory of exactly their size.

use std::alloc::{self, Layout};
use std::ptr::{self, NonNull};

use half::f16;
use kvcache_op::schema::shape;
use kvcache_op::{ElementType, TensorMut, TensorRef};

use crate::source::Random;

/// A tensor as a call describes it. The shape may be any, also one for which there are no such bytes.
#[derive(Debug, Clone)]
pub struct Operand {
    /// The operator's name for it.
    pub name: &'static str,
    /// The type.
    pub element: ElementType,
    /// The shape.
    pub shape: Vec<usize>,
    /// What is in it, again and again if the shape needs more.
    pub bytes: Vec<u8>,
}

/// Which numbers a tensor holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// Between -1 and 1.
    Moderate,
    /// Of every size, with ties and zeros.
    Finite,
    /// The same, and non-finite ones.
    Any,
}

impl Operand {
    /// A tensor of int64.
    pub fn index(name: &'static str, shape: Vec<usize>, values: &[i64]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { name, element: ElementType::Int64, shape, bytes }
    }

    /// A tensor of random numbers.
    pub fn random(
        name: &'static str,
        element: ElementType,
        shape: Vec<usize>,
        numbers: Numbers,
        random: &mut Random,
    ) -> Self {
        let len = shape.iter().product();
        Self { name, element, shape, bytes: random_bytes(element, len, numbers, random) }
    }

    /// The bytes that the tensor has; `None` if they are too many for any memory.
    pub fn len(&self) -> Option<usize> {
        shape::bytes(self.element, &self.shape)
    }

    /// A tensor of int64's values.
    pub fn values(&self) -> Vec<i64> {
        let (values, _) = self.bytes.as_chunks();
        values.iter().map(|&value| i64::from_le_bytes(value)).collect()
    }
}

/// The bytes of `len` random elements.
pub fn random_bytes(element: ElementType, len: usize, numbers: Numbers, random: &mut Random) -> Vec<u8> {
    match element {
        ElementType::Float32 => (0..len).flat_map(|_| float(numbers, random).to_le_bytes()).collect(),
        ElementType::Float16 => {
            let number = |i| {
                let x = f16::from_f32(float(numbers, random));
                // Conversions make quiet NaNs only; a signaling one comes by its bits.
                let x = if x.is_nan() && i % 2 == 0 { f16::from_bits(x.to_bits() ^ 0x02ff) } else { x };
                // What is too large for float16 is no finite number of it.
                let x = if x.is_infinite() && numbers != Numbers::Any { f16::MAX } else { x };
                x.to_le_bytes()
            };
            (0..len).flat_map(number).collect()
        }
        _ => {
            let bytes = element.bytes(len).unwrap_or_default();
            (0..bytes).map(|_| random.bits() as u8).collect()
        }
    }
}

fn float(numbers: Numbers, random: &mut Random) -> f32 {
    // Multiples of 2^-12 in (-2048, 2048).
    let x = ((random.bits() >> 40) as f32 - (1 << 23) as f32) / (1 << 12) as f32;
    match (numbers, random.below(64)) {
        (Numbers::Moderate, _) => x / 2048.0,
        (_, 0) => 0.0,
        (_, 1) => -0.0,
        (_, 2) => 63.5,
        (_, 3) => 127.0,
        (_, 4) => x * 2f32.powi(-18),
        (_, 5) => x * 2f32.powi(-130),
        (_, 6) => x * 8192.0,
        (Numbers::Any, 7) => f32::NAN,
        (Numbers::Any, 8) => f32::INFINITY,
        (_, 9..24) => (x / 16.0).round() + 0.5,
        _ => x / 16.0,
    }
}

/// The most bytes that a tensor is given.
const MOST: usize = 32 << 20;

/// Memory of an operand, with not one byte more, so that sanitizers see every access behind it, and at `offset` 0 every
/// one before it. Of what is too large there is none: an access to it ends the process.
pub struct Memory {
    /// What it is the memory of.
    pub operand: Operand,
    start: *mut u8,
    /// `None` if there is no memory.
    layout: Option<Layout>,
    offset: usize,
}

impl Memory {
    /// The memory of an operand, `offset` bytes behind a cache line.
    pub fn new(operand: Operand, offset: usize) -> Self {
        let len = operand.len().filter(|&len| len > 0 && len <= MOST);
        let layout = len.and_then(|len| Layout::from_size_align(offset + len, 64).ok());
        let Some(layout) = layout else {
            // An address that no system maps: not canonical.
            let start = ptr::without_provenance_mut::<u8>(1 << 62);
            return Self { operand, start, layout, offset };
        };
        // SAFETY: the layout has a size.
        let start = NonNull::new(unsafe { alloc::alloc(layout) }).expect("a little memory").as_ptr();
        let memory = Self { operand, start, layout: Some(layout), offset };
        let contents = memory.operand.bytes.iter().copied().cycle().chain(std::iter::repeat(0));
        let contents: Vec<u8> = contents.take(layout.size() - offset).collect();
        // SAFETY: the layout is `offset` and as many bytes as the contents are.
        unsafe { ptr::copy_nonoverlapping(contents.as_ptr(), memory.data(), contents.len()) };
        memory
    }

    /// Whether the bytes that the shape needs are there.
    pub fn is_whole(&self) -> bool {
        self.layout.is_some() || self.operand.len() == Some(0)
    }

    /// The first byte.
    pub fn data(&self) -> *mut u8 {
        self.start.wrapping_add(self.offset)
    }

    /// What is in the memory now.
    pub fn bytes(&self) -> Vec<u8> {
        let Some(layout) = self.layout else { return Vec::new() };
        // SAFETY: `new` has initialized the bytes from `data` on to the end of the layout; no call has them meanwhile.
        unsafe { std::slice::from_raw_parts(self.data(), layout.size() - self.offset) }.to_vec()
    }

    /// The tensor as the operators read it.
    pub fn read(&self) -> TensorRef<'_> {
        // SAFETY: memory of this type and shape; where there is none, no call is run, and its checks read no tensor but
        // those of indices, of which `Call::is_testable` has made sure.
        unsafe { TensorRef::from_raw_parts(self.operand.element, &self.operand.shape[..], self.data()) }
    }

    /// The tensor as the operators write it.
    pub fn write(&self) -> TensorMut<'_> {
        // SAFETY: as for `read`; the memory is initialized, and no reference to it is ever made here. One call at a time
        // has it.
        unsafe { TensorMut::from_raw_parts(self.operand.element, &self.operand.shape[..], self.data()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: `new` has allocated it with this layout.
            unsafe { alloc::dealloc(self.start, layout) };
        }
    }
}

//! Tensors as a call describes them, and memory of exactly their size.

use std::alloc::{self, Layout};
use std::ptr::{self, NonNull};

use half::f16;
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

/// Random numbers of a tensor before they repeat: a prime, so that neighboring rows differ.
pub const PATTERN: usize = 4093;

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

    /// A tensor of random numbers, which repeat where it is large.
    pub fn random(
        name: &'static str,
        element: ElementType,
        shape: Vec<usize>,
        numbers: Numbers,
        random: &mut Random,
    ) -> Self {
        let len: usize = shape.iter().product();
        Self { name, element, shape, bytes: random_bytes(element, len.min(PATTERN), numbers, random) }
    }

    /// The bytes that the tensor has; `None` if they are too many for any memory.
    pub fn len(&self) -> Option<usize> {
        let nonzero = self.shape.iter().filter(|&&len| len > 0);
        let bits = nonzero.fold(self.element.bits() as u128, |bits, &len| bits.saturating_mul(len as u128));
        let bytes = isize::try_from(bits.div_ceil(8)).ok();
        if self.shape.contains(&0) { Some(0) } else { bytes.map(isize::unsigned_abs) }
    }

    /// A tensor of int64's values.
    pub fn values(&self) -> Vec<i64> {
        let (values, _) = self.bytes.as_chunks();
        values.iter().map(|&value| i64::from_le_bytes(value)).collect()
    }
}

/// The bytes of `len` random elements.
pub fn random_bytes(element: ElementType, len: usize, numbers: Numbers, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 * len);
    match element {
        ElementType::Float32 => {
            for _ in 0..len {
                bytes.extend_from_slice(&float(numbers, random).to_le_bytes());
            }
        }
        ElementType::Float16 => {
            for i in 0..len {
                let x = f16::from_f32(float(numbers, random));
                // Conversions make quiet NaNs only; a signaling one comes by its bits.
                let x = if x.is_nan() && i % 2 == 0 { f16::from_bits(x.to_bits() ^ 0x02ff) } else { x };
                // What is too large for float16 is no finite number of it.
                let x = if x.is_infinite() && numbers != Numbers::Any { f16::MAX } else { x };
                bytes.extend_from_slice(&x.to_le_bytes());
            }
        }
        _ => {
            for _ in 0..element.bytes(len).unwrap_or_default().div_ceil(8) {
                bytes.extend_from_slice(&random.bits().to_le_bytes());
            }
            bytes.truncate(element.bytes(len).unwrap_or_default());
        }
    }
    bytes
}

/// The values of a tensor of floats.
pub fn floats(element: ElementType, bytes: &[u8]) -> Vec<f32> {
    match element {
        ElementType::Float16 => bytes.as_chunks().0.iter().map(|&x| f16::from_le_bytes(x).to_f32()).collect(),
        _ => bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect(),
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
pub const MOST: usize = 32 << 20;

/// Memory of an operand, with not one byte more, so that sanitizers see every access behind it, and at `offset` 0 every
/// one before it. Of what is too large there is none: an access to it ends the process.
pub struct Memory {
    /// What it is the memory of.
    pub operand: Operand,
    data: *mut u8,
    /// The bytes that are there: all, or none.
    len: usize,
    /// The allocation, unless the bytes are another operand's.
    owned: Option<(NonNull<u8>, Layout)>,
}

impl Memory {
    /// The memory of an operand, `offset` bytes behind a cache line.
    pub fn new(operand: Operand, offset: usize) -> Self {
        let len = operand.len().filter(|&len| len > 0 && len <= MOST);
        let layout = len.and_then(|len| Some((len, Layout::from_size_align(offset + len, 64).ok()?)));
        let Some((len, layout)) = layout else {
            // An address that no system maps: not canonical.
            let data = ptr::without_provenance_mut::<u8>((1 << 62) + offset);
            return Self { operand, data, len: 0, owned: None };
        };
        // SAFETY: the layout has a size.
        let start = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).expect("a little memory");
        let data = start.as_ptr().wrapping_add(offset);
        let mut memory = Self { operand, data, len, owned: Some((start, layout)) };
        memory.fill();
        memory
    }

    /// The memory of an operand inside that of another one, which it must not outlive, with what is there; `None` if
    /// there is not so much.
    pub fn inside(operand: Operand, other: &Self, offset: usize) -> Option<Self> {
        let len = operand.len().filter(|&len| len > 0)?;
        (offset.checked_add(len)? <= other.len).then(|| {
            let data = other.data.wrapping_add(offset);
            Self { operand, data, len, owned: None }
        })
    }

    /// Writes what the operand holds.
    pub fn fill(&mut self) {
        if self.len > 0 {
            // SAFETY: `len` initialized bytes, of this memory or of the one around it, which no reference is to.
            repeat(&self.operand.bytes, unsafe { std::slice::from_raw_parts_mut(self.data, self.len) });
        }
    }

    /// Whether the bytes that the shape needs are there.
    pub fn is_whole(&self) -> bool {
        self.operand.len() == Some(self.len)
    }

    /// The first byte.
    pub fn data(&self) -> *mut u8 {
        self.data
    }

    /// What is in the memory now.
    pub fn bytes(&self) -> Vec<u8> {
        if self.len == 0 {
            return Vec::new();
        }
        // SAFETY: `new` has initialized `len` bytes from `data` on, of this operand or of the one that it is inside of;
        // no call has them meanwhile.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }.to_vec()
    }

    /// The tensor as the operators read it.
    pub fn read(&self) -> TensorRef<'_> {
        // SAFETY: memory of this type and shape; where there is none, no call is run, and its checks read no tensor but
        // those of indices, of which `Call::is_testable` has made sure.
        unsafe { TensorRef::from_raw_parts(self.operand.element, &self.operand.shape[..], self.data) }
    }

    /// The tensor as the operators write it.
    pub fn write(&self) -> TensorMut<'_> {
        // SAFETY: as for `read`; the memory is initialized, and no reference to it is ever made here. One call at a
        // time has it, and refuses memory that it has twice.
        unsafe { TensorMut::from_raw_parts(self.operand.element, &self.operand.shape[..], self.data) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some((start, layout)) = self.owned {
            // SAFETY: `new` has allocated it with this layout.
            unsafe { alloc::dealloc(start.as_ptr(), layout) };
        }
    }
}

/// Fills `to` with a pattern, again and again; leaves it if the pattern is empty.
pub fn repeat(pattern: &[u8], to: &mut [u8]) {
    let mut done = pattern.len().min(to.len());
    to[..done].copy_from_slice(&pattern[..done]);
    while done > 0 && done < to.len() {
        let more = done.min(to.len() - done);
        to.copy_within(..more, done);
        done += more;
    }
}

//! Checks the tensors' memory: contiguous, aligned, of a size that fits, and without overlap where it is written.
//!
//! What has been checked so can be borrowed as bytes.

use kvcache_schema::{ElementType, shape};
use smallvec::SmallVec;

use crate::error::Error;
use crate::tensor::{Defect, Shape, TensorMut, TensorRef};

/// The memory of a tensor of either kind.
pub(crate) struct Memory<'t> {
    element: ElementType,
    shape: &'t Shape,
    address: usize,
    defect: Option<Defect>,
}

impl<'t> From<&'t TensorRef<'_>> for Memory<'t> {
    fn from(tensor: &'t TensorRef<'_>) -> Self {
        Self { element: tensor.element, shape: &tensor.shape, address: tensor.data.addr(), defect: tensor.defect }
    }
}

impl<'t> From<&'t TensorMut<'_>> for Memory<'t> {
    fn from(tensor: &'t TensorMut<'_>) -> Self {
        Self { element: tensor.element, shape: &tensor.shape, address: tensor.data.addr(), defect: tensor.defect }
    }
}

impl Memory<'_> {
    /// Checks the memory of the tensor called `name` by itself; returns its bytes.
    fn check(self, name: &'static str) -> Result<usize, Error> {
        let Memory { element, shape, address, defect } = self;
        let bytes = bytes(name, element, shape)?;
        match defect {
            Some(Defect::NotContiguous) => return Err(Error::NotContiguous { input: name, shape: shape.clone() }),
            Some(Defect::PackedLength(got)) => {
                return Err(Error::PackedLength { input: name, shape: shape.clone(), got, expected: bytes });
            }
            #[cfg(feature = "cuda")]
            Some(Defect::SliceLength(got)) => {
                return Err(Error::SliceLength { input: name, shape: shape.clone(), got, expected: bytes });
            }
            None => {}
        }
        // The address of a tensor without elements is not used.
        if bytes > 0 && !address.is_multiple_of(element.align()) {
            return Err(Error::Misaligned { input: name, address, expected: element.align() });
        }
        Ok(bytes)
    }
}

impl TensorMut<'_> {
    /// The tensor's bytes, row-major and in the machine's byte order, two elements of int4 to a byte.
    ///
    /// # Errors
    /// Those of a tensor that is no operand: [`Error::NotContiguous`], [`Error::PackedLength`], [`Error::Misaligned`],
    /// [`Error::SizeOverflow`]. They call it `input`.
    pub fn bytes(&self, input: &'static str) -> Result<&[u8], Error> {
        match Memory::from(self).check(input)? {
            0 => Ok(&[]),
            // SAFETY: the tensor is contiguous, of `len` bytes, checked above. They come from a borrowed array or
            // slice, or from_raw_parts: initialized, and not written by others while they are borrowed.
            len => Ok(unsafe { std::slice::from_raw_parts(self.data, len) }),
        }
    }

    /// The tensor's bytes, to be written.
    ///
    /// # Errors
    /// Those of [`bytes`](Self::bytes).
    pub fn bytes_mut(&mut self, input: &'static str) -> Result<&mut [u8], Error> {
        match Memory::from(&*self).check(input)? {
            0 => Ok(&mut []),
            // SAFETY: the tensor is contiguous, of `len` bytes, checked above. It is borrowed mutably, and
            // from_raw_parts asks that nobody else accesses it. Any byte may be a part of any number.
            len => Ok(unsafe { std::slice::from_raw_parts_mut(self.data, len) }),
        }
    }
}

/// The address ranges of the tensors of a call that have been checked so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct AliasCheck(SmallVec<[Extent; 14]>);

#[derive(Debug, Clone, Copy)]
struct Extent {
    name: &'static str,
    start: usize,
    end: usize,
    written: bool,
}

impl AliasCheck {
    pub(crate) fn read(&mut self, name: &'static str, memory: Memory<'_>) -> Result<(), Error> {
        self.add(name, memory, false)
    }

    /// Checks a tensor that is read, as [`read`](Self::read) does; returns its bytes.
    pub(crate) fn read_bytes(&mut self, name: &'static str, memory: Memory<'_>) -> Result<usize, Error> {
        self.add_bytes(name, memory, false)
    }

    /// Checks a tensor that is written: it may overlap no other.
    pub(crate) fn write(&mut self, name: &'static str, memory: Memory<'_>) -> Result<(), Error> {
        self.add(name, memory, true)
    }

    /// Checks a tensor that is written, as [`write`](Self::write) does; returns its bytes.
    pub(crate) fn write_bytes(&mut self, name: &'static str, memory: Memory<'_>) -> Result<usize, Error> {
        self.add_bytes(name, memory, true)
    }

    fn add(&mut self, name: &'static str, memory: Memory<'_>, written: bool) -> Result<(), Error> {
        self.add_bytes(name, memory, written).map(drop)
    }

    fn add_bytes(&mut self, name: &'static str, memory: Memory<'_>, written: bool) -> Result<usize, Error> {
        let (address, bytes) = (memory.address, memory.check(name)?);
        if bytes == 0 {
            return Ok(0);
        }
        let new = Extent { name, start: address, end: address.saturating_add(bytes), written };
        for old in &self.0 {
            if (new.written || old.written) && new.start < old.end && old.start < new.end {
                let (input, other) = if new.written { (new.name, old.name) } else { (old.name, new.name) };
                return Err(Error::OperandsOverlap { input, other });
            }
        }
        self.0.push(new);
        Ok(bytes)
    }
}

pub(crate) fn len(input: &'static str, shape: &Shape) -> Result<usize, Error> {
    shape::elements(shape).ok_or_else(|| overflow(input, shape))
}

pub(crate) fn bytes(input: &'static str, element: ElementType, shape: &Shape) -> Result<usize, Error> {
    shape::bytes(element, shape).ok_or_else(|| overflow(input, shape))
}

/// The error of a tensor whose size does not fit in 64 bits.
pub(crate) fn overflow(input: &'static str, shape: &Shape) -> Error {
    Error::SizeOverflow { input, shape: shape.clone() }
}

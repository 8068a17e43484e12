//! Checks the tensors' memory: contiguous, aligned, of a size that fits, and without overlap where it is written.
//!
//! What has been checked so can be borrowed as bytes.

use kvcache_schema::{ElementType, shape};
use smallvec::SmallVec;

use crate::error::Error;
use crate::tensor::{Defect, Shape, TensorMut, TensorRef};

impl TensorRef<'_> {
    /// Checks the memory of the tensor called `name` by itself; returns its bytes.
    fn check_memory(&self, name: &'static str) -> Result<usize, Error> {
        let &Self { element, ref shape, data, defect, .. } = self;
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
        if bytes > 0 && !data.addr().is_multiple_of(element.align()) {
            return Err(Error::Misaligned { input: name, address: data.addr(), expected: element.align() });
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
        match self.0.check_memory(input)? {
            0 => Ok(&[]),
            // SAFETY: the tensor is contiguous, of `len` bytes, checked above. They come from a borrowed array or
            // slice, or from_raw_parts: initialized, and not written by others while they are borrowed.
            len => Ok(unsafe { std::slice::from_raw_parts(self.0.data, len) }),
        }
    }

    /// The tensor's bytes, to be written.
    ///
    /// # Errors
    /// Those of [`bytes`](Self::bytes).
    pub fn bytes_mut(&mut self, input: &'static str) -> Result<&mut [u8], Error> {
        match self.0.check_memory(input)? {
            0 => Ok(&mut []),
            // SAFETY: the tensor is contiguous, of `len` bytes, checked above. It is borrowed mutably, and
            // from_raw_parts asks that nobody else accesses it. Any byte may be a part of any number.
            len => Ok(unsafe { std::slice::from_raw_parts_mut(self.0.data.cast_mut(), len) }),
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
    /// Checks a tensor that is read; returns its bytes.
    pub(crate) fn read(&mut self, name: &'static str, tensor: &TensorRef<'_>) -> Result<usize, Error> {
        self.add(name, tensor, false)
    }

    /// Checks a tensor that is written: it may overlap no other. Returns its bytes.
    pub(crate) fn write(&mut self, name: &'static str, tensor: &TensorRef<'_>) -> Result<usize, Error> {
        self.add(name, tensor, true)
    }

    fn add(&mut self, name: &'static str, tensor: &TensorRef<'_>, written: bool) -> Result<usize, Error> {
        let (start, bytes) = (tensor.data.addr(), tensor.check_memory(name)?);
        if bytes == 0 {
            return Ok(0);
        }
        let new = Extent { name, start, end: start.saturating_add(bytes), written };
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

pub(crate) fn bytes(input: &'static str, element: ElementType, shape: &Shape) -> Result<usize, Error> {
    shape::bytes(element, shape).ok_or_else(|| overflow(input, shape))
}

/// The error of a tensor whose size does not fit in 64 bits.
pub(crate) fn overflow(input: &'static str, shape: &Shape) -> Error {
    Error::SizeOverflow { input, shape: shape.clone() }
}

//! The tensors' memory: contiguous, aligned, of a size that fits, and nobody else's where it is written.

use kvcache_schema::{ElementType, shape};
use smallvec::SmallVec;

use crate::error::Error;
use crate::tensor::{Defect, Shape, TensorMut, TensorRef};

/// What both kinds of tensors say of their memory.
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

/// The memory of the tensors of a call, as far as they have been checked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Extents(SmallVec<[Extent; 12]>);

#[derive(Debug, Clone, Copy)]
struct Extent {
    name: &'static str,
    start: usize,
    end: usize,
    written: bool,
}

impl Extents {
    /// Checks a tensor that is read.
    pub(crate) fn read(&mut self, name: &'static str, memory: Memory<'_>) -> Result<(), Error> {
        self.add(name, memory, false)
    }

    /// Checks a tensor that is written: it may share memory with no other.
    pub(crate) fn write(&mut self, name: &'static str, memory: Memory<'_>) -> Result<(), Error> {
        self.add(name, memory, true)
    }

    fn add(&mut self, name: &'static str, memory: Memory<'_>, written: bool) -> Result<(), Error> {
        let Memory { element, shape, address, defect } = memory;
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
        if bytes == 0 {
            return Ok(());
        }
        if !address.is_multiple_of(element.align()) {
            return Err(Error::Misaligned { input: name, address, expected: element.align() });
        }
        let new = Extent { name, start: address, end: address.saturating_add(bytes), written };
        for old in &self.0 {
            if (new.written || old.written) && new.start < old.end && old.start < new.end {
                let (input, other) = if new.written { (new.name, old.name) } else { (old.name, new.name) };
                return Err(Error::OperandsOverlap { input, other });
            }
        }
        self.0.push(new);
        Ok(())
    }
}

/// The number of elements of a tensor.
pub(crate) fn len(input: &'static str, shape: &Shape) -> Result<usize, Error> {
    shape::elements(shape).ok_or_else(|| Error::SizeOverflow { input, shape: shape.clone() })
}

/// The bytes of a tensor.
pub(crate) fn bytes(input: &'static str, element: ElementType, shape: &Shape) -> Result<usize, Error> {
    shape::bytes(element, shape).ok_or_else(|| Error::SizeOverflow { input, shape: shape.clone() })
}

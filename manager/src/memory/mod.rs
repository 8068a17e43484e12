//! Memory whose rows a manager moves: `update` runs what edits have queued, and `swap` and `blocks` bring rows to a
//! store and back.

pub(crate) mod block;
pub(crate) mod blocks;
#[cfg(feature = "cuda")]
pub(crate) mod device;
pub(crate) mod store;
pub(crate) mod swap;
pub(crate) mod update;

use std::fmt;

use kvcache_kernels::{CacheRows, Rope, Rotation, RowCopy, Workers};
use kvcache_op::TensorMut;
use kvcache_schema::ElementType;

use crate::error::{Error, MemoryError};
use crate::spec::CacheSpec;

/// The memory of a cache and its scales. [`CacheSpec::rows`] says where the bytes of its slots are.
///
/// Every method takes a whole list. An error may be whatever the memory has to say; then rows that the call writes may
/// have changed, and others may not.
pub trait CacheMemory {
    /// Copies rows of slots, one copy after the other, each as `memmove` does: keys and values of all layers, and their
    /// scales.
    fn copy_rows(&mut self, copies: &[RowCopy]) -> Result<(), MemoryError>;

    /// Rotates the keys of slots to other positions, in all layers, with new scales where they are quantized: as
    /// [`CacheRows::rotate_keys`]. No slot is in two rotations.
    fn rotate_keys(&mut self, rotations: &[Rotation], rope: &Rope) -> Result<(), MemoryError>;

    /// Reads rows into `rows`, one after the other, each in canonical order: as [`CacheRows::read`].
    fn read_rows(&self, slots: &[usize], rows: &mut [u8]) -> Result<(), MemoryError>;

    /// Writes rows in canonical order: as [`CacheRows::write`].
    fn write_rows(&mut self, slots: &[usize], rows: &[u8]) -> Result<(), MemoryError>;

    /// Writes rows of one layer, and leaves the other layers of the slots: as
    /// [`LayerRows::write`](kvcache_kernels::LayerRows::write).
    fn write_layer_rows(&mut self, layer: usize, slots: &[usize], rows: &[u8]) -> Result<(), MemoryError>;
}

/// A cache in memory of this process: the tensors that the operator takes, borrowed.
///
/// It costs nothing to make one for each step.
pub struct HostMemory<'a> {
    rows: CacheRows,
    cache: TensorMut<'a>,
    scale: Option<TensorMut<'a>>,
    workers: &'a dyn Workers,
}

impl<'a> HostMemory<'a> {
    /// The tensors of a cache, and the threads that move and rotate its rows.
    ///
    /// # Errors
    /// [`Error::ScaleMissing`], [`Error::ScaleUnexpected`], [`Error::TensorType`], [`Error::TensorShape`];
    /// [`Error::Tensor`] for a tensor that is not contiguous or not aligned.
    pub fn new(
        spec: &CacheSpec,
        cache: TensorMut<'a>,
        scale: Option<TensorMut<'a>>,
        workers: &'a dyn Workers,
    ) -> Result<Self, Error> {
        let rows = *spec.rows();
        let (t2, t3) = rows.types();
        check("cache", &cache, t2, spec.cache_shape())?;
        match (&scale, t3.zip(spec.scale_shape())) {
            (Some(scale), Some((t3, shape))) => check("scale", scale, t3, shape)?,
            (None, None) => {}
            (None, Some((expected, shape))) => return Err(Error::ScaleMissing { expected, shape }),
            (Some(scale), None) => {
                return Err(Error::ScaleUnexpected { got: scale.element(), shape: scale.shape().clone() });
            }
        }
        Ok(Self { rows, cache, scale, workers })
    }

    /// `cache` and `scale`, as the operator takes them.
    pub fn tensors(&mut self) -> (TensorMut<'_>, Option<TensorMut<'_>>) {
        (self.cache.reborrow(), self.scale.as_mut().map(TensorMut::reborrow))
    }
}

fn check(input: &'static str, tensor: &TensorMut<'_>, expected: ElementType, shape: [usize; 5]) -> Result<(), Error> {
    if tensor.element() != expected {
        return Err(Error::TensorType { input, expected, got: tensor.element() });
    }
    if **tensor.shape() != shape {
        return Err(Error::TensorShape { input, expected: shape, got: tensor.shape().clone() });
    }
    tensor.bytes(input)?;
    Ok(())
}

impl CacheMemory for HostMemory<'_> {
    fn copy_rows(&mut self, copies: &[RowCopy]) -> Result<(), MemoryError> {
        let (cache, scale) = bytes_mut(&mut self.cache, self.scale.as_mut())?;
        Ok(self.rows.copy(cache, scale, copies, self.workers)?)
    }

    fn rotate_keys(&mut self, rotations: &[Rotation], rope: &Rope) -> Result<(), MemoryError> {
        let (cache, scale) = bytes_mut(&mut self.cache, self.scale.as_mut())?;
        Ok(self.rows.rotate_keys(cache, scale, rotations, rope, self.workers)?)
    }

    fn read_rows(&self, slots: &[usize], rows: &mut [u8]) -> Result<(), MemoryError> {
        let scale = self.scale.as_ref().map_or(Ok(&[][..]), |scale| scale.bytes("scale"))?;
        Ok(self.rows.read(self.cache.bytes("cache")?, scale, slots, rows)?)
    }

    fn write_rows(&mut self, slots: &[usize], rows: &[u8]) -> Result<(), MemoryError> {
        let (cache, scale) = bytes_mut(&mut self.cache, self.scale.as_mut())?;
        Ok(self.rows.write(cache, scale, slots, rows)?)
    }

    fn write_layer_rows(&mut self, layer: usize, slots: &[usize], rows: &[u8]) -> Result<(), MemoryError> {
        let (cache, scale) = bytes_mut(&mut self.cache, self.scale.as_mut())?;
        Ok(self.rows.layer(layer)?.write(cache, scale, slots, rows)?)
    }
}

/// The bytes of `cache`, and of `scale`, which has none without quantization.
fn bytes_mut<'t>(
    cache: &'t mut TensorMut<'_>,
    scale: Option<&'t mut TensorMut<'_>>,
) -> Result<(&'t mut [u8], &'t mut [u8]), kvcache_op::Error> {
    let scale = scale.map_or(Ok(&mut [][..]), |scale| scale.bytes_mut("scale"))?;
    Ok((cache.bytes_mut("cache")?, scale))
}

impl fmt::Debug for HostMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMemory").field("cache", &self.cache).field("scale", &self.scale).finish_non_exhaustive()
    }
}

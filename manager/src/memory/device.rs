//! A cache in a CUDA device's memory.

use kvcache_kernels::{Rope, Rotation, RowCopy};
use kvcache_op::cuda::cudarc::driver::CudaStream;
use kvcache_op::cuda::{DeviceCacheRows, DeviceMut, Staging};

use crate::error::{Error, MemoryError};
use crate::memory::CacheMemory;
use crate::spec::CacheSpec;

/// A cache in a CUDA device's memory: the tensors that the operator takes there, and the stream on which it runs.
///
/// What a manager does to it happens in the order of the stream, between the operator's calls. The driver copies rows,
/// and nothing waits for that. Rows that are rotated, read or written go through `staging`, where the host does the
/// work, and the call waits for the stream. It has the same bytes then as a [`HostMemory`](crate::HostMemory).
#[derive(Debug)]
pub struct DeviceMemory<'a>(DeviceCacheRows<'a>);

impl<'a> DeviceMemory<'a> {
    /// The tensors of a cache on the device of a stream. `staging` has room for a row at least, better for some pages.
    ///
    /// # Errors
    /// [`Error::Memory`]: what is wrong with the tensors, the staging, or the device.
    pub fn new(
        spec: &CacheSpec,
        cache: DeviceMut<'a>,
        scale: Option<DeviceMut<'a>>,
        stream: &'a CudaStream,
        staging: &'a mut Staging,
    ) -> Result<Self, Error> {
        let rows = DeviceCacheRows::new(spec.rows(), cache, scale, stream, staging);
        rows.map(Self).map_err(|error| Error::Memory { source: error.into() })
    }
}

impl CacheMemory for DeviceMemory<'_> {
    fn copy_rows(&mut self, copies: &[RowCopy]) -> Result<(), MemoryError> {
        Ok(self.0.copy(copies)?)
    }

    fn rotate_keys(&mut self, rotations: &[Rotation], rope: &Rope) -> Result<(), MemoryError> {
        Ok(self.0.rotate_keys(rotations, rope)?)
    }

    fn read_rows(&self, slots: &[usize], rows: &mut [u8]) -> Result<(), MemoryError> {
        Ok(self.0.read(slots, rows)?)
    }

    fn write_rows(&mut self, slots: &[usize], rows: &[u8]) -> Result<(), MemoryError> {
        Ok(self.0.write(slots, rows)?)
    }

    fn write_layer_rows(&mut self, layer: usize, slots: &[usize], rows: &[u8]) -> Result<(), MemoryError> {
        Ok(self.0.write_layer(layer, slots, rows)?)
    }
}

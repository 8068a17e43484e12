//! The rows of a cache in a CUDA device's memory, moved and rotated by a stream.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError};
use kvcache_kernels::cuda::{self as kernels, DeviceRowsError, PinnedMemory, Queue, ROWS, cudarc};
use kvcache_kernels::{CacheRows, Rope, Rotation, RowCopy, RowsError};
use thiserror::Error;

use super::device_tensor::DeviceMut;
use super::error::Error;
use crate::validate::{AliasCheck, equal_type};

/// Why rows of a device are not moved or rotated.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CacheRowsError {
    /// A tensor that is none of the cache's.
    #[error(transparent)]
    Tensor(#[from] Error),
    /// What the host refuses, too, or what cannot be launched.
    #[error(transparent)]
    Rows(#[from] DeviceRowsError),
    /// Waiting for the device failed.
    #[error("the CUDA driver failed in waiting for rows: {0}")]
    Wait(#[from] DriverError),
}

impl From<RowsError> for CacheRowsError {
    fn from(error: RowsError) -> Self {
        Self::Rows(error.into())
    }
}

/// Page-locked memory through which rows go between host and device, in two halves: one is copied while the other is on
/// its way. It is made once, and serves any number of calls, one after the other.
#[derive(Debug)]
pub struct Staging {
    halves: [Half; 2],
    next: usize,
    len: usize,
}

#[derive(Debug)]
struct Half {
    memory: PinnedMemory,
    /// The event behind the launch that used it last.
    done: Option<CudaEvent>,
}

impl Half {
    /// Waits until no launch uses it. Gives its memory.
    fn wait(&mut self) -> Result<&mut [u8], CacheRowsError> {
        if let Some(done) = self.done.take() {
            done.synchronize()?;
        }
        // SAFETY: launches use it by `Staging` alone, and the last one is done.
        Ok(unsafe { self.memory.bytes() })
    }
}

impl Staging {
    /// Two halves of `nbytes` bytes each.
    ///
    /// # Errors
    /// [`Error::Launch`](super::Error::Launch).
    pub fn new(context: &Arc<CudaContext>, nbytes: usize) -> Result<Self, Error> {
        let half = || Ok::<_, Error>(Half { memory: PinnedMemory::new(context, nbytes)?, done: None });
        Ok(Self { halves: [half()?, half()?], next: 0, len: nbytes })
    }

    /// The rows that fit into a half.
    fn rows(&self, row_len: usize) -> Result<usize, RowsError> {
        match self.len.checked_div(row_len) {
            Some(0) => Err(RowsError::Length { memory: "staging", expected: row_len, got: self.len }),
            rows => Ok(rows.unwrap_or(usize::MAX)),
        }
    }

    fn take(&mut self) -> usize {
        self.next = 1 - self.next;
        self.next
    }
}

/// The rows of a whole cache on a device: what [`CacheRows`] does, put into a stream. A method that waits says so; none
/// allocates on the device.
///
/// The bits are those of [`CacheRows`], but for keys that are not numbers: rotated, they are another NaN.
pub struct DeviceCacheRows<'a> {
    rows: kernels::DeviceRows,
    stream: &'a CudaStream,
    staging: RefCell<&'a mut Staging>,
    /// In use by the stream until this is dropped.
    _tensors: (DeviceMut<'a>, Option<DeviceMut<'a>>),
}

impl<'a> DeviceCacheRows<'a> {
    /// The rows of a cache and its scales, which have the types and bytes that `rows` tells. Loads the kernels, the
    /// first time in a context.
    ///
    /// # Errors
    /// [`CacheRowsError::Tensor`]; [`RowsError::Length`].
    pub fn new(
        rows: &CacheRows,
        cache: DeviceMut<'a>,
        scale: Option<DeviceMut<'a>>,
        stream: &'a CudaStream,
        staging: &'a mut Staging,
    ) -> Result<Self, CacheRowsError> {
        let (t2, t3) = rows.types();
        let mut aliases = AliasCheck::default();
        let mut check = |name, tensor: &DeviceMut<'_>, element, expected| {
            tensor.check_stream(name, stream)?;
            let equal = equal_type(name, tensor.tensor.element(), element);
            let got = equal.and_then(|()| aliases.write_bytes(name, (&tensor.tensor).into())).map_err(Error::from)?;
            let length = RowsError::Length { memory: name, expected, got };
            if got == expected { Ok(()) } else { Err(CacheRowsError::from(length)) }
        };
        check("cache", &cache, t2, rows.cache_len())?;
        match (&scale, t3) {
            (Some(scale), Some(t3)) => check("scale", scale, t3, rows.scale_len())?,
            (None, None) => {}
            (scale, _) => {
                let got = scale.as_ref().map_or(0, |scale| scale.tensor.shape().iter().product());
                return Err(RowsError::Length { memory: "scale", expected: rows.scale_len(), got }.into());
            }
        }
        if staging.halves[0].memory.context().cu_ctx() != stream.context().cu_ctx() {
            return Err(Error::OtherContext { input: "staging" }.into());
        }
        let rows = kernels::DeviceRows::new(rows, cache.address(), scale.as_ref().map_or(0, DeviceMut::address))?;
        let this = Self { rows, stream, staging: RefCell::new(staging), _tensors: (cache, scale) };
        this.queue()?.prepare_module(&ROWS).map_err(DeviceRowsError::from)?;
        Ok(this)
    }

    fn queue(&self) -> Result<Queue<'_>, CacheRowsError> {
        Ok(Queue::new(self.stream).map_err(DeviceRowsError::from)?)
    }

    /// Behind all that was launched; what cannot be told later is waited for.
    fn launched(&self) -> Result<CudaEvent, DriverError> {
        self.stream.record_event(None).or_else(|error| self.stream.synchronize().and(Err(error)))
    }

    /// Copies rows: [`CacheRows::copy`]. Does not wait.
    ///
    /// # Errors
    /// [`CacheRowsError::Rows`].
    pub fn copy(&mut self, copies: &[RowCopy]) -> Result<(), CacheRowsError> {
        // SAFETY: the tensors have the bytes of the cache, checked by `new`, and are the stream's alone while they are
        // borrowed.
        Ok(unsafe { self.rows.copy(&self.queue()?, copies) }?)
    }

    /// Rotates keys: [`CacheRows::rotate_keys`]. Does not wait.
    ///
    /// # Errors
    /// [`CacheRowsError::Rows`].
    pub fn rotate_keys(&mut self, rotations: &[Rotation], rope: &Rope) -> Result<(), CacheRowsError> {
        // SAFETY: as in `copy`.
        Ok(unsafe { self.rows.rotate_keys(&self.queue()?, rotations, rope) }?)
    }

    /// Reads rows: [`CacheRows::read`]. Waits for the stream, since the bytes are for the host.
    ///
    /// # Errors
    /// [`CacheRowsError`]; [`RowsError::Length`], also of a staging that no row fits into.
    pub fn read(&self, slots: &[usize], rows: &mut [u8]) -> Result<(), CacheRowsError> {
        let (mut staging, queue) = (self.staging.borrow_mut(), self.queue()?);
        let row_len = check_rows(&self.rows, slots, rows.len())?;
        let at_once = staging.rows(row_len)?;
        let mut ahead: Option<(usize, &mut [u8])> = None;
        for (slots, rows) in slots.chunks(at_once).zip(rows.chunks_mut(at_once.saturating_mul(row_len).max(1))) {
            let half = staging.take();
            staging.halves[half].wait()?;
            // SAFETY: as in `copy`; a half has room for these rows, and no launch uses it.
            let launched = unsafe { self.rows.read(&queue, slots, staging.halves[half].memory.address()) };
            staging.halves[half].done = Some(self.launched()?);
            launched?;
            // While this half is on its way.
            if let Some((half, rows)) = ahead.replace((half, rows)) {
                rows.copy_from_slice(&staging.halves[half].wait()?[..rows.len()]);
            }
        }
        if let Some((half, rows)) = ahead {
            rows.copy_from_slice(&staging.halves[half].wait()?[..rows.len()]);
        }
        Ok(())
    }

    /// Writes rows: [`CacheRows::write`]. Waits at most until rows that were written before have left the staging.
    ///
    /// # Errors
    /// [`CacheRowsError`]; [`RowsError::Length`], also of a staging that no row fits into.
    pub fn write(&mut self, slots: &[usize], rows: &[u8]) -> Result<(), CacheRowsError> {
        self.write_to(self.rows, slots, rows)
    }

    /// Writes rows of a layer: [`LayerRows::write`](kvcache_kernels::LayerRows::write). Waits as [`write`](Self::write).
    ///
    /// # Errors
    /// Those of [`write`](Self::write); [`RowsError::Layer`].
    pub fn write_layer(&mut self, layer: usize, slots: &[usize], rows: &[u8]) -> Result<(), CacheRowsError> {
        self.write_to(self.rows.layer(layer)?, slots, rows)
    }

    fn write_to(&mut self, to: kernels::DeviceRows, slots: &[usize], rows: &[u8]) -> Result<(), CacheRowsError> {
        let (mut staging, queue) = (self.staging.borrow_mut(), self.queue()?);
        let row_len = check_rows(&to, slots, rows.len())?;
        let at_once = staging.rows(row_len)?;
        for (slots, rows) in slots.chunks(at_once).zip(rows.chunks(at_once.saturating_mul(row_len).max(1))) {
            let half = staging.take();
            staging.halves[half].wait()?[..rows.len()].copy_from_slice(rows);
            // SAFETY: as in `copy`; the half has these rows, and is written again when the launch is done.
            let launched = unsafe { to.write(&queue, slots, staging.halves[half].memory.address()) };
            staging.halves[half].done = Some(self.launched()?);
            launched?;
        }
        Ok(())
    }
}

/// Checks slots, and that there are bytes of a row for each; gives the bytes of a row.
fn check_rows(rows: &kernels::DeviceRows, slots: &[usize], got: usize) -> Result<usize, RowsError> {
    rows.check(slots)?;
    let expected = slots.len().saturating_mul(rows.row_len());
    if got == expected { Ok(rows.row_len()) } else { Err(RowsError::Length { memory: "rows", expected, got }) }
}

impl fmt::Debug for DeviceCacheRows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceCacheRows").field("rows", &self.rows).finish_non_exhaustive()
    }
}

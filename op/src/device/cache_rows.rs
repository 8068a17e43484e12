//! The rows of a cache in a CUDA device's memory: copied by the driver, in the order of a stream.
//!
//! ```text
//! copy:                in the device's memory
//! read, write, rotate: as many slots at once as the staging has room for
//!     to read or rotate, copy the slots into the staging, which is a cache of these slots alone; wait
//!     read, write or rotate there, as the host does with its own caches
//!     if they are written or rotated, copy the slots back; wait
//! ```

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, DriverError};
use kvcache_kernels::cuda::{self as kernels, PinnedMemory, PitchedCopy, Queue, cudarc};
use kvcache_kernels::{CacheRows, Rope, Rotation, RowCopy, RowsError, Serial, SlotLines};
use thiserror::Error;

use super::device_tensor::DeviceMut;
use super::error::Error;
use crate::validate::{AliasCheck, equal_type};

/// Why rows of a device are not moved or rotated.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CacheRowsError {
    /// `cache` or `scale` has another type or stream than the cache's.
    #[error(transparent)]
    Tensor(#[from] Error),
    /// What the host refuses, too.
    #[error(transparent)]
    Rows(#[from] RowsError),
    /// The driver has failed.
    #[error(transparent)]
    Launch(#[from] kernels::Error),
    /// Waiting for the device failed.
    #[error("the CUDA driver failed in waiting for rows: {0}")]
    Wait(#[from] DriverError),
    /// A stream that is being captured into a graph, which would run without the host.
    #[error("rows go through the host, expected a stream that is not captured")]
    Captured,
}

/// Page-locked memory through which rows go between host and device. It is made once, and serves any number of calls,
/// one after the other.
#[derive(Debug)]
pub struct Staging {
    memory: PinnedMemory,
    len: usize,
}

/// The staged `scale` is aligned for any type.
const ALIGN: usize = 16;

impl Staging {
    /// Room for `nbytes` bytes of rows.
    ///
    /// # Errors
    /// [`Error::Launch`](super::Error::Launch).
    pub fn new(context: &Arc<CudaContext>, nbytes: usize) -> Result<Self, Error> {
        Ok(Self { memory: PinnedMemory::new(context, nbytes.saturating_add(ALIGN))?, len: nbytes })
    }
}

/// The rows of a whole cache on a device: what [`CacheRows`] does, with the same bits, in the order of a stream. Copies
/// wait for nothing; everything else waits for the stream. Nothing is allocated on the device.
pub struct DeviceCacheRows<'a> {
    rows: CacheRows,
    stream: &'a CudaStream,
    staging: RefCell<&'a mut Staging>,
    /// Addresses of `cache` and `scale`.
    addresses: [u64; 2],
    /// In use by the stream until this is dropped.
    _tensors: (DeviceMut<'a>, Option<DeviceMut<'a>>),
}

impl<'a> DeviceCacheRows<'a> {
    /// The rows of a cache and its scales, which have the types and bytes that `rows` tells.
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
            let got = equal.and_then(|()| aliases.write(name, &tensor.tensor.0)).map_err(Error::from)?;
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
        if staging.memory.context().cu_ctx() != stream.context().cu_ctx() {
            return Err(Error::OtherContext { input: "staging" }.into());
        }
        let addresses = [cache.address(), scale.as_ref().map_or(0, DeviceMut::address)];
        Ok(Self { rows: *rows, stream, staging: RefCell::new(staging), addresses, _tensors: (cache, scale) })
    }

    /// Copies rows: [`CacheRows::copy`]. Does not wait.
    ///
    /// # Errors
    /// [`CacheRowsError::Rows`], [`CacheRowsError::Launch`].
    pub fn copy(&mut self, copies: &[RowCopy]) -> Result<(), CacheRowsError> {
        let queue = Queue::new(self.stream)?;
        for &RowCopy { src, dst, len } in copies {
            self.rows.check_slots(src, len)?;
            self.rows.check_slots(dst, len)?;
        }
        let lines = |slots| self.rows.lines(None, slots);
        for &RowCopy { src, dst, len } in copies.iter().filter(|copy| copy.src != copy.dst) {
            // The driver's copies must not overlap: as many slots at once as the two are apart, the first ones first
            // where rows move down.
            let at_once = src.abs_diff(dst);
            for part in 0..len.div_ceil(at_once) {
                let first = at_once * if dst < src { part } else { len.div_ceil(at_once) - 1 - part };
                let slots = |start: usize| start + first..start + len.min(first + at_once);
                self.move_lines(&queue, self.addresses, lines(slots(src))?, self.addresses, lines(slots(dst))?)?;
            }
        }
        Ok(())
    }

    /// Rotates keys: [`CacheRows::rotate_keys`].
    ///
    /// # Errors
    /// [`CacheRowsError`]; [`RowsError::Length`] of a staging that no row fits into.
    pub fn rotate_keys(&mut self, rotations: &[Rotation], rope: &Rope) -> Result<(), CacheRowsError> {
        let rotations = self.rows.check_rotations(rotations, rope)?;
        let slots = rotations.iter().flat_map(|of| (of.slot..of.slot + of.len).map(|slot| (slot, of.delta)));
        let (slots, deltas): (Vec<_>, Vec<_>) = slots.unzip();
        self.stage(None, &slots, [true, true], |rows, cache, scale, staged| {
            let rotation = |(slot, delta): (usize, &i64)| Rotation { slot, len: 1, delta: *delta };
            let rotations: Vec<_> = deltas[staged].iter().enumerate().map(rotation).collect();
            rows.rotate_keys(cache, scale, &rotations, rope, &Serial)
        })
    }

    /// Reads rows: [`CacheRows::read`].
    ///
    /// # Errors
    /// Those of [`rotate_keys`](Self::rotate_keys); [`RowsError::Length`].
    pub fn read(&self, slots: &[usize], rows: &mut [u8]) -> Result<(), CacheRowsError> {
        let row_len = check_rows(&self.rows, self.rows.row_len(), slots, rows.len())?;
        self.stage(None, slots, [true, false], |staged, cache, scale, part| {
            let all: Vec<_> = (0..part.len()).collect();
            staged.read(cache, scale, &all, &mut rows[part.start * row_len..part.end * row_len])
        })
    }

    /// Writes rows: [`CacheRows::write`].
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn write(&mut self, slots: &[usize], rows: &[u8]) -> Result<(), CacheRowsError> {
        let row_len = check_rows(&self.rows, self.rows.row_len(), slots, rows.len())?;
        self.stage(None, slots, [false, true], |staged, cache, scale, part| {
            let all: Vec<_> = (0..part.len()).collect();
            staged.write(cache, scale, &all, &rows[part.start * row_len..part.end * row_len])
        })
    }

    /// Writes rows of a layer: [`LayerRows::write`](kvcache_kernels::LayerRows::write).
    ///
    /// # Errors
    /// Those of [`read`](Self::read); [`RowsError::Layer`].
    pub fn write_layer(&mut self, layer: usize, slots: &[usize], rows: &[u8]) -> Result<(), CacheRowsError> {
        let row_len = check_rows(&self.rows, self.rows.layer(layer)?.row_len(), slots, rows.len())?;
        self.stage(Some(layer), slots, [false, true], |staged, cache, scale, part| {
            let all: Vec<_> = (0..part.len()).collect();
            staged.layer(layer)?.write(cache, scale, &all, &rows[part.start * row_len..part.end * row_len])
        })
    }

    /// Has the host act on slots, of one layer or of all, some at a time: on a cache of these slots alone, of which it
    /// gets the rows, the bytes, and which of the slots these are. Before that the slots are copied there if
    /// `is_copied[0]`, and after that back if `is_copied[1]`.
    fn stage(
        &self,
        layer: Option<usize>,
        slots: &[usize],
        is_copied: [bool; 2],
        mut act: impl FnMut(&CacheRows, &mut [u8], &mut [u8], Range<usize>) -> Result<(), RowsError>,
    ) -> Result<(), CacheRowsError> {
        let (mut staging, queue) = (self.staging.borrow_mut(), Queue::new(self.stream)?);
        if queue.is_captured()? {
            return Err(CacheRowsError::Captured);
        }
        let (row_len, got) = (self.rows.row_len(), staging.len);
        let at_once = got.checked_div(row_len).unwrap_or(usize::MAX);
        if at_once == 0 {
            return Err(RowsError::Length { memory: "staging", expected: row_len, got }.into());
        }
        let mut first = 0;
        while first < slots.len() {
            let part = first..slots.len().min(first.saturating_add(at_once));
            let rows = self.rows.with_max_t(part.len())?;
            let scale_at = rows.cache_len().next_multiple_of(ALIGN);
            let staged_at = [staging.memory.address(), staging.memory.address() + scale_at as u64];
            // Neighboring slots, as [slot, staged slot, slots].
            let mut staged = 0;
            let runs = slots[part.clone()].chunk_by(|a, b| a + 1 == *b).map(|run| {
                staged += run.len();
                [run[0], staged - run.len(), run.len()]
            });
            let runs: Vec<_> = runs.collect();
            let lines = |[slot, staged, len]: [usize; 3]| {
                Ok::<_, RowsError>((
                    self.rows.lines(layer, slot..slot + len)?,
                    rows.lines(layer, staged..staged + len)?,
                ))
            };
            for &run in runs.iter().filter(|_| is_copied[0]) {
                let (there, here) = lines(run)?;
                self.move_lines(&queue, self.addresses, there, staged_at, here)?;
            }
            self.stream.synchronize()?;
            // SAFETY: the stream is done with the staging, which is borrowed mutably.
            let (cache, scale) = unsafe { staging.memory.bytes() }.split_at_mut(scale_at);
            act(&rows, &mut cache[..rows.cache_len()], &mut scale[..rows.scale_len()], part.clone())?;
            for &run in runs.iter().filter(|_| is_copied[1]) {
                let (there, here) = lines(run)?;
                self.move_lines(&queue, staged_at, here, self.addresses, there)?;
            }
            self.stream.synchronize()?;
            first = part.end;
        }
        Ok(())
    }

    /// Puts the copies of lines of `cache` and of `scale` into the stream.
    fn move_lines(
        &self,
        queue: &Queue<'_>,
        from_at: [u64; 2],
        from: [SlotLines; 2],
        to_at: [u64; 2],
        to: [SlotLines; 2],
    ) -> Result<(), CacheRowsError> {
        for (i, (from, to)) in from.into_iter().zip(to).enumerate() {
            let copy = PitchedCopy {
                from: from_at[i] + from.start as u64,
                from_pitch: from.pitch,
                to: to_at[i] + to.start as u64,
                to_pitch: to.pitch,
                width: from.width,
                height: from.height,
            };
            // SAFETY: the tensors have the bytes of the cache, checked by `new`, and are the stream's alone while they
            // are borrowed; `lines` is inside the cache and inside the staging. The two do not overlap: of one cache
            // `copy` gives slots that are apart.
            unsafe { queue.copy(copy) }?;
        }
        Ok(())
    }
}

/// Checks slots, and that there are `row_len` bytes for each.
fn check_rows(rows: &CacheRows, row_len: usize, slots: &[usize], got: usize) -> Result<usize, RowsError> {
    slots.iter().try_for_each(|&slot| rows.check_slots(slot, 1))?;
    let expected = slots.len().saturating_mul(row_len);
    if got == expected { Ok(row_len) } else { Err(RowsError::Length { memory: "rows", expected, got }) }
}

impl fmt::Debug for DeviceCacheRows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceCacheRows").field("rows", &self.rows).finish_non_exhaustive()
    }
}

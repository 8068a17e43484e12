//! The launches that move and rotate the rows of a cache.

use kvcache_schema::CacheDims;
use thiserror::Error;

use super::parameters::{
    MOST_HEAD_DIM, MOST_MOVES, MOST_PAIRS, MOST_TURNS, Move, MoveParameters, RotateParameters, RowPlace, Turn,
};
use super::ptx::{MOVE_NARROW, MOVE_WIDE, ROWS, rotate};
use crate::cache_rows::{CacheRows, RowCopy};
use crate::cuda::error::Error as LaunchError;
use crate::cuda::launch::{BLOCK, Launch, TooLarge};
use crate::cuda::queue::Queue;
use crate::key_rotation::KeyRotation;
use crate::rotary::{Rope, RopeStyle, Rotation, cos_sin};
use crate::rows_error::RowsError;

/// Bytes of a word of the wide kernel.
const WIDE: usize = 16;
/// Warps of a block: each has a head.
const WARPS: u64 = BLOCK as u64 / 32;
/// Blocks for each multiprocessor: as many as are resident.
const BLOCKS_PER_MULTIPROCESSOR: u64 = 4;
/// Rows that a thread has in flight, as in the kernel: a part has no fewer.
const ROWS_AT_ONCE: u64 = 4;

/// Why rows of a device cannot be moved or rotated.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum DeviceRowsError {
    /// What the host refuses, too.
    #[error(transparent)]
    Rows(#[from] RowsError),
    /// What cannot be launched.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl From<TooLarge> for DeviceRowsError {
    fn from(error: TooLarge) -> Self {
        Self::Launch(error.into())
    }
}

/// The rows of a cache in a device's memory: what [`CacheRows`] does on the host, put into a stream, with the same
/// bits; but a key that is not a number becomes some other one when it is rotated.
///
/// Everything is checked before anything is launched. Nothing waits or is allocated.
#[derive(Debug, Clone, Copy)]
pub struct DeviceRows {
    rows: CacheRows,
    addresses: [u64; 2],
}

impl DeviceRows {
    /// The rows of a cache at these addresses of `cache` and `scale`.
    ///
    /// # Errors
    /// [`RowsError::Misaligned`].
    pub fn new(rows: &CacheRows, cache: u64, scale: u64) -> Result<Self, RowsError> {
        let (t2, t3) = rows.types();
        for (memory, address, element) in [("cache", cache, Some(t2)), ("scale", scale, t3)] {
            if let Some(expected) = element.map(|element| element.align())
                && !address.is_multiple_of(expected as u64)
            {
                return Err(RowsError::Misaligned { memory, address: address as usize, expected });
            }
        }
        Ok(Self { rows: *rows, addresses: [cache, scale] })
    }

    /// The rows of one layer, whose other layers keep their bytes.
    ///
    /// # Errors
    /// [`RowsError::Layer`].
    pub fn layer(&self, layer: usize) -> Result<Self, RowsError> {
        self.rows.layer(layer)?;
        Ok(Self { rows: self.rows.of_layer(layer), ..*self })
    }

    /// The bytes of a row.
    pub fn row_len(&self) -> usize {
        self.rows.row_len()
    }

    /// Checks that slots are inside the cache.
    ///
    /// # Errors
    /// [`RowsError::Slots`].
    pub fn check(&self, slots: &[usize]) -> Result<(), RowsError> {
        slots.iter().try_for_each(|&slot| self.rows.check_slots(slot, 1))
    }

    /// The launches that copy rows of slots, as [`CacheRows::copy`], on a device of so many multiprocessors, which size
    /// the grids. They are for a stream in this order. Whenever it runs them, `cache` and `scale` must be accessible to
    /// the device, of the lengths that [`CacheRows`] tells, and nothing else access the slots.
    ///
    /// # Errors
    /// [`RowsError::Slots`], [`TooLarge`].
    pub fn copies(
        &self,
        multiprocessors: u32,
        copies: &[RowCopy],
    ) -> Result<Vec<Launch<MoveParameters>>, DeviceRowsError> {
        for &RowCopy { src, dst, len } in copies {
            self.rows.check_slots(src, len)?;
            self.rows.check_slots(dst, len)?;
        }
        let copies = copies.iter().map(|copy| [copy.src, copy.dst, copy.len]);
        self.moves(multiprocessors, copies, self.places(), self.places())
    }

    /// Copies rows of slots, as [`CacheRows::copy`].
    ///
    /// # Errors
    /// [`RowsError::Slots`]; [`LaunchError`].
    ///
    /// # Safety
    /// The conditions of [`copies`](Self::copies).
    pub unsafe fn copy(&self, queue: &Queue<'_>, copies: &[RowCopy]) -> Result<(), DeviceRowsError> {
        // SAFETY: the slots are inside the cache, checked by `copies`, which is accessible: see `# Safety`.
        unsafe { launch(queue, self.copies(queue.multiprocessors(), copies)?) }
    }

    /// Reads rows of slots to an address of the device, as [`CacheRows::read`]: `slots.len() * row_len` bytes.
    ///
    /// # Errors
    /// [`RowsError::Slots`]; [`LaunchError`].
    ///
    /// # Safety
    /// As of [`copy`](Self::copy); the bytes at `to` are the device's to write and nobody else's.
    pub unsafe fn read(&self, queue: &Queue<'_>, slots: &[usize], to: u64) -> Result<(), DeviceRowsError> {
        let moves = self.moves(queue.multiprocessors(), self.runs(slots)?, self.places(), self.canonical(to))?;
        // SAFETY: the slots are inside the cache, checked by `runs`; both are accessible: see `# Safety`.
        unsafe { launch(queue, moves) }
    }

    /// Writes rows from an address of the device into slots, as [`CacheRows::write`].
    ///
    /// # Errors
    /// [`RowsError::Slots`]; [`LaunchError`].
    ///
    /// # Safety
    /// As of [`copy`](Self::copy); nobody writes the bytes at `from` until the stream has read them.
    pub unsafe fn write(&self, queue: &Queue<'_>, slots: &[usize], from: u64) -> Result<(), DeviceRowsError> {
        let runs = self.runs(slots)?.map(|[slot, row, len]| [row, slot, len]);
        let moves = self.moves(queue.multiprocessors(), runs, self.canonical(from), self.places())?;
        // SAFETY: the slots are inside the cache, checked by `runs`; both are accessible: see `# Safety`.
        unsafe { launch(queue, moves) }
    }

    /// The launches that rotate the keys of slots, as [`CacheRows::rotate_keys`], as [`copies`](Self::copies) are.
    ///
    /// # Errors
    /// [`RowsError::KeyType`], [`RowsError::Rope`], [`RowsError::Slots`], [`RowsError::RotatedTwice`]; [`TooLarge`] for
    /// more than 512 rotated elements, or 512 elements of a quantized head.
    pub fn rotations(
        &self,
        multiprocessors: u32,
        rotations: &[Rotation],
        rope: &Rope,
    ) -> Result<Vec<Launch<RotateParameters>>, DeviceRowsError> {
        let mut rotations = KeyRotation::check(&self.rows, rotations, rope)?;
        let CacheDims { num_layer, num_heads, inner: head_dim, .. } = self.rows.dims();
        let pairs = narrow("n_rot", rope.n_rot(), 2 * MOST_PAIRS)? / 2;
        let is_quantized = self.rows.quant().is_some();
        let head_dim = narrow("head_dim", head_dim, if is_quantized { MOST_HEAD_DIM } else { i32::MAX as usize })?;
        let kernel = rotate(&self.rows).ok_or(RowsError::KeyType { t2: self.rows.t2() })?;
        let [cache, scale] = self.places();
        let mut parameters = RotateParameters {
            cache,
            scale,
            heads: 0,
            num_layer: narrow("num_layer", num_layer, i32::MAX as usize)?,
            num_heads: narrow("num_heads", num_heads, i32::MAX as usize)?,
            head_dim,
            group: self.rows.quant().map_or(1, |quant| quant.group as u32),
            pairs,
            step: if rope.style() == RopeStyle::Neox { pairs } else { 1 },
            stride: if rope.style() == RopeStyle::Neox { 1 } else { 2 },
            count: 0,
            order: self.rows.rotation_order() as u32,
            unused: 0,
            cos: [0.0; MOST_PAIRS],
            sin: [0.0; MOST_PAIRS],
            turns: [Turn::default(); MOST_TURNS],
        };
        let mut launches = Vec::new();
        rotations.sort_by_key(|rotation| rotation.delta);
        for same in rotations.chunk_by(|a, b| a.delta == b.delta) {
            for (pair, f) in rope.frequencies().enumerate() {
                (parameters.cos[pair], parameters.sin[pair]) = cos_sin(same[0].delta, f);
            }
            for rotations in same.chunks(MOST_TURNS) {
                let mut slots = 0;
                for (turn, rotation) in parameters.turns.iter_mut().zip(rotations) {
                    *turn = Turn { slot: rotation.slot as i64, before: slots };
                    slots += rotation.len as u64;
                }
                parameters.count = rotations.len() as u32;
                parameters.heads = slots * (num_layer * num_heads) as u64;
                let grid = parameters.heads.div_ceil(WARPS).min(most_blocks(multiprocessors)) as u32;
                launches.push(Launch { module: &ROWS, kernel, grid, parameters });
            }
        }
        Ok(launches)
    }

    /// Rotates the keys of slots, as [`CacheRows::rotate_keys`].
    ///
    /// # Errors
    /// Those of [`rotations`](Self::rotations); [`LaunchError`].
    ///
    /// # Safety
    /// As of [`copy`](Self::copy).
    pub unsafe fn rotate_keys(
        &self,
        queue: &Queue<'_>,
        rotations: &[Rotation],
        rope: &Rope,
    ) -> Result<(), DeviceRowsError> {
        // SAFETY: the slots are inside the cache, checked by `rotations`, each in one rotation at most; the cache is
        // accessible: see `# Safety`.
        unsafe { launch(queue, self.rotations(queue.multiprocessors(), rotations, rope)?) }
    }

    /// The launches of moves of `[from, to, len]` rows between places, of `cache` and of `scale`.
    fn moves(
        &self,
        multiprocessors: u32,
        moves: impl IntoIterator<Item = [usize; 3]>,
        from: [RowPlace; 2],
        to: [RowPlace; 2],
    ) -> Result<Vec<Launch<MoveParameters>>, DeviceRowsError> {
        let moves = moves.into_iter().map(|move_| move_.map(|rows| rows as i64));
        let moves: Vec<_> = moves.map(|[from, to, len]| Move { from, to, len }).filter(|move_| move_.len > 0).collect();
        let in_place = from == to;
        let mut launches = Vec::new();
        for (tensor, (from, to)) in from.into_iter().zip(to).enumerate() {
            let (row, head) = (self.rows.row_lens()[tensor], self.rows.strides()[tensor].head_len);
            if row == 0 {
                continue;
            }
            let numbers = [&from, &to].map(|place| [place.base as i64, place.token, place.layer, place.kv, place.head]);
            let is_wide = head.is_multiple_of(WIDE) && numbers.as_flattened().iter().all(|n| n % WIDE as i64 == 0);
            let (kernel, width) = if is_wide { (MOVE_WIDE, WIDE) } else { (MOVE_NARROW, 1) };
            let words = row / width;
            let blocks = words.div_ceil(BLOCK as usize);
            let mut parameters = MoveParameters {
                from,
                to,
                words: words as u64,
                words_per_head: narrow("head_dim", head / width, i32::MAX as usize)?,
                num_heads: narrow("num_heads", self.rows.dims().num_heads, i32::MAX as usize)?,
                count: 0,
                parts: 1,
                moves: [Move::default(); MOST_MOVES],
            };
            for moves in moves.chunks(MOST_MOVES) {
                parameters.count = moves.len() as u32;
                parameters.moves[..moves.len()].copy_from_slice(moves);
                let rows = moves.iter().map(|move_| move_.len as u64).sum::<u64>();
                let most = rows.div_ceil(ROWS_AT_ONCE).min(most_blocks(multiprocessors) / blocks as u64);
                parameters.parts = if most > 1 && are_apart(moves, in_place) { most as u32 } else { 1 };
                let grid = narrow("the words of a row", blocks * parameters.parts as usize, i32::MAX as usize)?;
                launches.push(Launch { module: &ROWS, kernel, grid, parameters });
            }
        }
        Ok(launches)
    }

    /// Neighboring slots, as `[slot, row, len]`.
    fn runs(&self, slots: &[usize]) -> Result<impl Iterator<Item = [usize; 3]>, RowsError> {
        self.check(slots)?;
        let mut row = 0;
        Ok(slots.chunk_by(|a, b| a + 1 == *b).map(move |run| {
            row += run.len();
            [run[0], row - run.len(), run.len()]
        }))
    }

    /// Where the rows lie in `cache` and in `scale`.
    fn places(&self) -> [RowPlace; 2] {
        let (strides, starts) = (self.rows.strides(), self.rows.starts());
        [0, 1].map(|tensor| RowPlace {
            base: self.addresses[tensor] + starts[tensor] as u64,
            token: strides[tensor].token as i64,
            layer: strides[tensor].layer as i64,
            kv: strides[tensor].kv as i64,
            head: strides[tensor].head as i64,
        })
    }

    /// Where the parts of canonical rows at an address lie.
    fn canonical(&self, address: u64) -> [RowPlace; 2] {
        let (heads, before) = (self.rows.dims().num_heads as i64, [0, self.rows.row_lens()[0]]);
        [0, 1].map(|tensor| {
            let head = self.rows.strides()[tensor].head_len as i64;
            let base = address + before[tensor] as u64;
            RowPlace { base, token: self.row_len() as i64, layer: 2 * heads * head, kv: heads * head, head }
        })
    }
}

fn most_blocks(multiprocessors: u32) -> u64 {
    u64::from(multiprocessors.max(1)) * BLOCKS_PER_MULTIPROCESSOR
}

/// Whether no row that is written is written again or, in place, read.
fn are_apart(moves: &[Move], in_place: bool) -> bool {
    let written = moves.iter().map(|move_| (move_.to, move_.len, true));
    let read = moves.iter().filter(|_| in_place).map(|move_| (move_.from, move_.len, false));
    let mut rows: Vec<_> = written.chain(read).collect();
    rows.sort_unstable();
    // The ends so far of what is read and of what is written.
    let mut ends = [0; 2];
    rows.into_iter().all(|(first, len, is_written)| {
        let is_apart = first >= ends[1] && (!is_written || first >= ends[0]);
        let end = &mut ends[usize::from(is_written)];
        *end = (*end).max(first + len);
        is_apart
    })
}

/// Puts launches into the stream, once all are ready.
///
/// # Safety
/// The kernels take these parameters, and what they access is accessible whenever the stream runs them.
unsafe fn launch<P>(queue: &Queue<'_>, launches: Vec<Launch<P>>) -> Result<(), DeviceRowsError> {
    let ready: Vec<_> = launches.into_iter().map(|launch| queue.ready(launch)).collect::<Result<_, _>>()?;
    // SAFETY: see `# Safety`.
    ready.into_iter().try_for_each(|ready| unsafe { ready.launch() })?;
    Ok(())
}

fn narrow(what: &'static str, got: usize, limit: usize) -> Result<u32, TooLarge> {
    u32::try_from(got).ok().filter(|_| got <= limit).ok_or(TooLarge { what, got, limit })
}

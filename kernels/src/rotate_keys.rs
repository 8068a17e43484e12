//! Rotating the keys of a cache's rows, by the fastest kernel that this machine has.

use crate::cache_rows::CacheRows;
use crate::cpu::Cpu;
use crate::rotary::{Rope, Rotation};
use crate::rows_error::RowsError;
use crate::workers::Workers;

impl CacheRows {
    /// Turns the keys of slots from one position to another (K-shift), in all layers and heads. Each slot may be in one
    /// rotation at most; the order of rotations does not matter.
    ///
    /// Keys of float32 are rotated as they are, those of float16 in float32 and then rounded. A quantized head is
    /// dequantized to float32 (T1), rotated, and quantized with new scales: all of it, since elements that are not
    /// rotated share groups with those that are. Values, and keys that are rotated by 0, keep their bytes.
    ///
    /// # Errors
    /// [`RowsError::KeyType`], [`RowsError::Rope`], [`RowsError::Length`], [`RowsError::Misaligned`],
    /// [`RowsError::Slots`], [`RowsError::RotatedTwice`].
    pub fn rotate_keys(
        &self,
        cache: &mut [u8],
        scale: &mut [u8],
        rotations: &[Rotation],
        rope: &Rope,
        workers: &dyn Workers,
    ) -> Result<(), RowsError> {
        Cpu::default().rotate_keys(self, cache, scale, rotations, rope, workers)
    }
}

//! A rotation of a cache's keys, already checked: the input of every kernel that rotates.

use kvcache_schema::ElementType;

use crate::cache_rows::CacheRows;
use crate::rotary::{Rope, Rotation};
use crate::rows_error::RowsError;

/// The keys of a cache that are rotated, and how.
///
/// Its conditions are checked when it is made: the memory has the cache's lengths and is aligned for its types, which
/// are a float type without scales, or codes with scales; every slot is inside the cache, and in one rotation at most;
/// the rope fits the heads.
pub(crate) struct KeyRotation<'a> {
    pub(crate) rows: &'a CacheRows,
    pub(crate) cache: &'a mut [u8],
    pub(crate) scale: &'a mut [u8],
    /// In ascending order of slots; none is empty, and none has a delta of 0.
    pub(crate) rotations: Vec<Rotation>,
    pub(crate) rope: &'a Rope,
}

impl<'a> KeyRotation<'a> {
    /// Checks everything.
    pub(crate) fn new(
        rows: &'a CacheRows,
        cache: &'a mut [u8],
        scale: &'a mut [u8],
        rotations: &[Rotation],
        rope: &'a Rope,
    ) -> Result<Self, RowsError> {
        let rotations = rows.check_rotations(rotations, rope)?;
        rows.check_memory(cache, scale)?;
        check_alignment("cache", cache, rows.t2())?;
        if let Some(quant) = rows.quant() {
            check_alignment("scale", scale, quant.t3)?;
        }
        Ok(Self { rows, cache, scale, rotations, rope })
    }
}

impl CacheRows {
    /// Checks a call of [`rotate_keys`](Self::rotate_keys), but for the memory. Returns the rotations that rotate
    /// something, in ascending order of slots.
    ///
    /// # Errors
    /// [`RowsError::KeyType`], [`RowsError::Rope`], [`RowsError::Slots`], [`RowsError::RotatedTwice`].
    pub fn check_rotations(&self, rotations: &[Rotation], rope: &Rope) -> Result<Vec<Rotation>, RowsError> {
        let t2 = self.t2();
        if self.quant().is_none() && !t2.is_float() {
            return Err(RowsError::KeyType { t2 });
        }
        rope.check(self.dims().inner)?;
        rotations.iter().try_for_each(|rotation| self.check_slots(rotation.slot, rotation.len))?;
        let mut rotations: Vec<_> = rotations.iter().filter(|rotation| rotation.len > 0).copied().collect();
        rotations.sort_unstable_by_key(|rotation| rotation.slot);
        if let Some(twice) = rotations.windows(2).find(|pair| pair[0].slot + pair[0].len > pair[1].slot) {
            return Err(RowsError::RotatedTwice { slot: twice[1].slot });
        }
        // The axes of an empty tensor may have any length.
        rotations.retain(|rotation| rotation.delta != 0 && self.cache_len() > 0);
        Ok(rotations)
    }
}

fn check_alignment(memory: &'static str, bytes: &[u8], element: ElementType) -> Result<(), RowsError> {
    let (address, expected) = (bytes.as_ptr().addr(), element.align());
    // The address of empty memory is not used.
    if bytes.is_empty() || address.is_multiple_of(expected) {
        Ok(())
    } else {
        Err(RowsError::Misaligned { memory, address, expected })
    }
}

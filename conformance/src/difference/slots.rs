//! Which tokens of a call have a slot. The call may be one that must be refused, so indices may be anything.

use kvcache_schema::{CacheMode, ElementType};

use super::location::Owner;
use crate::tensor::Tensor;

/// The index inputs of a call in dynamic batching.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Indices<'a> {
    pub(crate) seqstarts: &'a Tensor,
    pub(crate) kvstarts: &'a Tensor,
    pub(crate) cachestarts: &'a Tensor,
}

/// The elements of an int64 tensor; none, if it is of another type.
pub(crate) fn integers(tensor: &Tensor) -> Vec<i64> {
    match tensor.element() {
        ElementType::Int64 => tensor.bytes().as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect(),
        _ => Vec::new(),
    }
}

/// The lengths between neighboring starts.
pub(crate) fn lengths(starts: &[i64]) -> impl Iterator<Item = i64> {
    starts.windows(2).map(|pair| pair[1].saturating_sub(pair[0]))
}

impl Indices<'_> {
    /// The tokens that have `slot`, by sequence.
    pub(crate) fn owners(&self, cache_mode: i64, page_size: i64, slot: usize) -> Vec<Owner> {
        let (Some(mode), Ok(slot)) = (CacheMode::from_code(cache_mode), i64::try_from(slot)) else {
            return Vec::new();
        };
        let cachestarts = integers(self.cachestarts);
        let (seqstarts, kvstarts) = (integers(self.seqstarts), integers(self.kvstarts));
        // Pages of a sequence, as long as its tokens go; without pages there is a single one.
        let (columns, page_size) = match mode {
            CacheMode::Offset => (1, i64::MAX),
            CacheMode::Paged => (self.cachestarts.shape().get(1).copied().unwrap_or_default(), page_size),
        };
        if columns == 0 || page_size < 1 {
            return Vec::new();
        }
        let rows = cachestarts.chunks_exact(columns);
        let sequences = rows.zip(lengths(&seqstarts).zip(lengths(&kvstarts))).enumerate();
        let owners = sequences.flat_map(|(sequence, (row, (seqlen, kvlen)))| {
            let positions = row.iter().zip(0i64..).filter_map(move |(&start, page)| {
                let position = page.checked_mul(page_size)?.checked_add(within(slot, start, page_size)?)?;
                (position < kvlen).then_some(position)
            });
            positions.map(move |position| Owner {
                sequence,
                position: position as usize,
                current: position >= kvlen.saturating_sub(seqlen),
            })
        });
        owners.collect()
    }
}

/// How far `slot` is behind `start`, if it is less than `len` behind.
fn within(slot: i64, start: i64, len: i64) -> Option<i64> {
    slot.checked_sub(start).filter(|distance| (0..len).contains(distance))
}

/// The token of a call of static batching that has a slot, if there is one.
pub(crate) fn static_owner(current_key: &Tensor, start_pos: &Tensor, row: usize, position: usize) -> Option<Owner> {
    let &[batch, seqlen, ..] = current_key.shape() else { return None };
    let start_pos = usize::try_from(*integers(start_pos).first()?).ok()?;
    let has_it = row < batch && position < start_pos.checked_add(seqlen)?;
    has_it.then_some(Owner { sequence: row, position, current: position >= start_pos })
}

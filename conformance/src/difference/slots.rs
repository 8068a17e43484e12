//! What an element of a tensor stands for, and which tokens of a call have a slot. The call may be one that must be
//! refused, so indices and shapes may be anything.

use kvcache_schema::{Axis, CacheLayout, CacheMode, StaticAxis, StaticCacheLayout};

use super::location::{CacheLocation, Inner, OutputLocation, Owner, Part, Slot};
use crate::oracle::indices;
use crate::tensor::Tensor;

/// The index inputs of a call in dynamic batching.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Indices<'a> {
    pub(crate) seqstarts: &'a Tensor,
    pub(crate) kvstarts: &'a Tensor,
    pub(crate) cachestarts: &'a Tensor,
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
        let cachestarts = indices(self.cachestarts);
        let (seqstarts, kvstarts) = (indices(self.seqstarts), indices(self.kvstarts));
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
    let start_pos = usize::try_from(*indices(start_pos).first()?).ok()?;
    let has_it = row < batch && position < start_pos.checked_add(seqlen)?;
    has_it.then_some(Owner { sequence: row, position, current: position >= start_pos })
}

/// The index along each axis of a row-major tensor; empty, if there is no such element.
pub(super) fn coordinates(shape: &[usize], index: usize) -> Vec<usize> {
    let mut rest = index;
    let mut coordinates: Vec<_> = shape
        .iter()
        .rev()
        .map_while(|&length| {
            let coordinate = rest.checked_rem(length)?;
            rest /= length;
            Some(coordinate)
        })
        .collect();
    coordinates.reverse();
    if rest == 0 && coordinates.len() == shape.len() { coordinates } else { Vec::new() }
}

/// What the element of a `cache` stands for, or the scale of a `scale` (`is_scale`); without owners.
pub(crate) fn cache(layout: i64, tensor: &Tensor, index: usize, is_scale: bool) -> Option<CacheLocation> {
    let along = along(CacheLayout::from_code(layout)?.axes(), tensor, index, is_scale)?;
    location([Axis::Layer, Axis::Kv, Axis::Head], Slot::Number(along.0(Axis::Token)?), along)
}

/// The same in static batching.
pub(crate) fn static_cache(layout: i64, tensor: &Tensor, index: usize, is_scale: bool) -> Option<CacheLocation> {
    let along = along(StaticCacheLayout::from_code(layout)?.axes(), tensor, index, is_scale)?;
    let slot = Slot::Place { row: along.0(StaticAxis::Batch)?, position: along.0(StaticAxis::Position)? };
    location([StaticAxis::Layer, StaticAxis::Kv, StaticAxis::Head], slot, along)
}

/// How far along each axis an element lies, and where in its head.
fn along<A: Copy + PartialEq, const N: usize>(
    axes: [A; N],
    tensor: &Tensor,
    index: usize,
    is_scale: bool,
) -> Option<(impl Fn(A) -> Option<usize>, Inner)> {
    let mut outer = coordinates(tensor.shape(), index);
    let inner = outer.pop().filter(|_| outer.len() == N)?;
    let along = move |axis| Some(outer[axes.iter().position(|&other| other == axis)?]);
    Some((along, if is_scale { Inner::Group(inner) } else { Inner::Element(inner) }))
}

fn location<A>(
    [layer, kv, head]: [A; 3],
    slot: Slot,
    (along, inner): (impl Fn(A) -> Option<usize>, Inner),
) -> Option<CacheLocation> {
    let part = [Part::Key, Part::Value].get(along(kv)?).copied()?;
    Some(CacheLocation { layer: along(layer)?, part, slot, head: along(head)?, inner, owners: Vec::new() })
}

/// What the element of an output stands for, whose innermost axes are heads and their elements and whose outer axes
/// are those of the token that `token` finds: its sequence and position. A cache head serves `repeat` heads.
pub(crate) fn output(
    tensor: &Tensor,
    index: usize,
    repeat: usize,
    token: impl FnOnce(&[usize]) -> Option<(usize, usize)>,
) -> Option<OutputLocation> {
    let coordinates = coordinates(tensor.shape(), index);
    let [outer @ .., head, element] = &coordinates[..] else { return None };
    let (sequence, position) = token(outer)?;
    let cache_head = head.checked_div(repeat)?;
    Some(OutputLocation { sequence, position, head: *head, cache_head, element: *element })
}

/// The sequence of a row of a packed tensor, and which of the sequence's rows it is.
pub(crate) fn of_token(starts: &[i64], row: usize) -> Option<(usize, usize)> {
    let row = i64::try_from(row).ok()?;
    let sequence = starts.windows(2).position(|pair| (pair[0]..pair[1]).contains(&row))?;
    Some((sequence, usize::try_from(row.checked_sub(starts[sequence])?).ok()?))
}

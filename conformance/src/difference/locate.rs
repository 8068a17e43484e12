//! From the index of an element to what it stands for. The tensors of a refused call may have any shape.

use kvcache_schema::{Axis, CacheLayout, StaticAxis, StaticCacheLayout};

use super::location::{CacheLocation, Inner, OutputLocation, Part, Slot};
use crate::tensor::Tensor;

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
    let layout = CacheLayout::from_code(layout)?;
    let [outer @ .., inner]: [usize; 5] = coordinates(tensor.shape(), index).try_into().ok()?;
    let along = |axis: Axis| Some(outer[layout.axes().iter().position(|&other| other == axis)?]);
    Some(CacheLocation {
        layer: along(Axis::Layer)?,
        part: part(along(Axis::Kv)?)?,
        slot: Slot::Number(along(Axis::Token)?),
        head: along(Axis::Head)?,
        inner: within_head(inner, is_scale),
        owners: Vec::new(),
    })
}

/// The same in static batching.
pub(crate) fn static_cache(layout: i64, tensor: &Tensor, index: usize, is_scale: bool) -> Option<CacheLocation> {
    let layout = StaticCacheLayout::from_code(layout)?;
    let [outer @ .., inner]: [usize; 6] = coordinates(tensor.shape(), index).try_into().ok()?;
    let along = |axis: StaticAxis| Some(outer[layout.axes().iter().position(|&other| other == axis)?]);
    Some(CacheLocation {
        layer: along(StaticAxis::Layer)?,
        part: part(along(StaticAxis::Kv)?)?,
        slot: Slot::Place { row: along(StaticAxis::Batch)?, position: along(StaticAxis::Position)? },
        head: along(StaticAxis::Head)?,
        inner: within_head(inner, is_scale),
        owners: Vec::new(),
    })
}

fn part(kv: usize) -> Option<Part> {
    [Part::Key, Part::Value].get(kv).copied()
}

fn within_head(inner: usize, is_scale: bool) -> Inner {
    if is_scale { Inner::Group(inner) } else { Inner::Element(inner) }
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

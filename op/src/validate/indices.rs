//! Checks the values of the index inputs: starts, positions, bounds and slots.

use kvcache_kernels::{Addressing, Indices};
use kvcache_schema::CacheMode;
use smallvec::SmallVec;

use super::stores::StoreInputs;
use crate::config::Config;
use crate::error::Error;
use crate::tensor::TensorRef;

/// Checks the values of tensors whose types, shapes and memory have been checked, all on the host, by B and MaxT.
pub(super) fn check<'a>(
    config: &Config,
    inputs: &StoreInputs<'_, 'a>,
    batch: usize,
    max_t: usize,
) -> Result<Indices<'a>, Error> {
    let seqstarts = values(&inputs.seqstarts.tensor);
    let kvstarts = inputs.kvstarts.map_or(&[][..], |kvstarts| values(&kvstarts.tensor));
    let start_pos = values(&inputs.start_pos.tensor);
    starts("seqstarts", seqstarts)?;
    starts("kvstarts", kvstarts)?;
    let got = seqstarts[batch];
    if let Some(expected) = inputs.current.map(|[key, _]| key.tensor.shape[0])
        && usize::try_from(got) != Ok(expected)
    {
        return Err(Error::StartsTotal { input: "seqstarts", of: "current_key", got, expected });
    }

    for b in 0..batch {
        let (seqlen, kvlen) = (seqstarts[b + 1] - seqstarts[b], kvstarts[b + 1] - kvstarts[b]);
        if start_pos[b] < 0 {
            return Err(Error::StartPosNegative { b: Some(b), got: start_pos[b] });
        }
        if kvlen - seqlen != start_pos[b] {
            return Err(Error::KvlenMismatch { b, kvlen, start_pos: start_pos[b], seqlen });
        }
    }
    bound("max_seqlen", values(&inputs.max_seqlen.tensor), seqstarts)?;
    bound("max_kvlen", values(&inputs.max_kvlen.tensor), kvstarts)?;

    let cachestarts = values(&inputs.cachestarts.tensor);
    let addressing = match config.mode {
        CacheMode::Offset => Addressing::Offset { cachestarts },
        CacheMode::Paged => Addressing::Paged { cachestarts, max_p: inputs.max_p(), page_size: config.page_size },
    };
    let indices = Indices { seqstarts, kvstarts, start_pos, addressing };
    slots(&indices, batch, max_t)?;
    write_conflicts(&indices, batch)?;
    Ok(indices)
}

/// Checks the indices of a call on a device that are on the host: `kvstarts`, if it is given, and the bounds. Gives the
/// last entry of `kvstarts`, 0 without it.
#[cfg(feature = "cuda")]
pub(super) fn check_on_host(config: &Config, inputs: &StoreInputs<'_, '_>) -> Result<usize, Error> {
    let kvstarts = inputs.kvstarts.map_or(&[][..], |kvstarts| values(&kvstarts.tensor));
    if !kvstarts.is_empty() {
        starts("kvstarts", kvstarts)?;
    }
    bound("max_seqlen", values(&inputs.max_seqlen.tensor), &[])?;
    bound("max_kvlen", values(&inputs.max_kvlen.tensor), kvstarts)?;
    if config.mode == CacheMode::Paged {
        for (b, pair) in kvstarts.windows(2).enumerate() {
            pages(b, (pair[1] - pair[0]) as usize, config.page_size, inputs.max_p())?;
        }
    }
    Ok(kvstarts.last().map_or(0, |&total| total as usize))
}

/// The values of an int64 tensor whose type, shape and memory have been checked.
pub(crate) fn values<'a>(tensor: &TensorRef<'a>) -> &'a [i64] {
    match tensor.shape.iter().product() {
        0 => &[],
        // SAFETY: a TensorRef is valid for reads of its shape for 'a; that it is int64, aligned, contiguous and of a
        // size that fits was checked by `memory`.
        len => unsafe { std::slice::from_raw_parts(tensor.data.cast(), len) },
    }
}

/// Checks that starts begin with 0 and never decrease.
pub(crate) fn starts(input: &'static str, starts: &[i64]) -> Result<(), Error> {
    if starts[0] != 0 {
        return Err(Error::StartsNotZero { input, got: starts[0] });
    }
    match starts.windows(2).position(|pair| pair[1] < pair[0]) {
        None => Ok(()),
        Some(b) => Err(Error::StartsDecrease { input, b, before: starts[b], got: starts[b + 1] }),
    }
}

/// Checks that the bound is no less than the longest sequence.
pub(crate) fn bound(input: &'static str, value: &[i64], starts: &[i64]) -> Result<(), Error> {
    let lengths = starts.windows(2).map(|pair| pair[1] - pair[0]).enumerate();
    let longest = lengths.max_by_key(|&(_, len)| len);
    let expected = longest.map_or(0, |(_, len)| len);
    if value[0] >= expected {
        return Ok(());
    }
    Err(Error::MaxTooSmall { input, got: value[0], expected, b: longest.map(|(b, _)| b) })
}

/// Checks that every token of the call has a slot in the cache.
fn slots(indices: &Indices<'_>, batch: usize, max_t: usize) -> Result<(), Error> {
    let inside = |start: i64, len: usize| {
        usize::try_from(start).is_ok_and(|start| start.checked_add(len).is_some_and(|end| end <= max_t))
    };
    for b in 0..batch {
        let kvlen = indices.sequence(b).all.len();
        match indices.addressing {
            Addressing::Offset { cachestarts } => {
                let start = cachestarts[b];
                if !inside(start, kvlen) {
                    return Err(Error::CacheRange { b, start, kvlen, max_t });
                }
            }
            Addressing::Paged { max_p, page_size, .. } => {
                pages(b, kvlen, page_size, max_p)?;
                for (page, (start, used)) in indices.addressing.entries(b, kvlen).enumerate() {
                    if !inside(start, used) {
                        return Err(Error::PageRange { b, page, start, used, max_t });
                    }
                }
            }
        }
    }
    Ok(())
}

/// Checks that the page table has enough columns for the tokens of a sequence.
fn pages(b: usize, kvlen: usize, page_size: usize, max_p: usize) -> Result<(), Error> {
    let needed = kvlen.div_ceil(page_size);
    if needed <= max_p { Ok(()) } else { Err(Error::TooManyPages { b, kvlen, page_size, needed, max_p }) }
}

/// Checks that no two current tokens have the same slot.
fn write_conflicts(indices: &Indices<'_>, batch: usize) -> Result<(), Error> {
    let mut writes: SmallVec<[(usize, usize, usize); 128]> = SmallVec::new();
    for b in 0..batch {
        let sequence = indices.sequence(b);
        let positions = sequence.start_pos..sequence.start_pos + sequence.current.len();
        writes.extend(indices.addressing.runs(b, positions).map(|run| (run.slot, run.len, b)));
    }
    writes.sort_unstable();
    match writes.windows(2).find(|pair| pair[1].0 < pair[0].0 + pair[0].1) {
        None => Ok(()),
        Some(pair) => Err(Error::WriteConflict { b: pair[0].2, other: pair[1].2, slot: pair[1].0 }),
    }
}

//! The index inputs of a call in dynamic batching, and the slots that its tokens have.

use kvcache_schema::{Attributes, CacheLayout};

use crate::case::StepInputs;
use crate::oracle::call::{Call, indices, number};
use crate::oracle::decisions::Slots;

/// The index inputs of a call, and what they depend on.
#[derive(Debug, Clone)]
pub(super) struct Batch {
    pub(super) seqstarts: Vec<i64>,
    pub(super) kvstarts: Vec<i64>,
    /// Row-major where it is a page table.
    pub(super) cachestarts: Vec<i64>,
    pub(super) start_pos: Vec<i64>,
    pub(super) max_seqlen: i64,
    pub(super) max_kvlen: i64,
    /// Whether `cache_mode` is 1.
    pub(super) paged: bool,
    /// The entries of a sequence in the page table (MaxP); 0 in offset mode.
    pub(super) max_p: usize,
    pub(super) page_size: i64,
    /// The slots of the cache (MaxT), as far as its shape says.
    pub(super) max_t: usize,
    /// The tokens of `current_key`.
    pub(super) tokens: usize,
}

impl Batch {
    /// The index inputs of a call, of whatever shapes they are.
    pub(super) fn new(call: &Call<'_, Attributes, StepInputs>) -> Self {
        let (inputs, paged) = (call.inputs, call.attributes.cache_mode == 1);
        let max_t = match (CacheLayout::from_code(call.attributes.cache_layout), call.cache.shape()) {
            (Some(layout), &[a, b, c, d, e]) => layout.dims([a, b, c, d, e]).max_t,
            _ => 0,
        };
        Self {
            seqstarts: indices(&inputs.seqstarts),
            kvstarts: indices(&inputs.kvstarts),
            cachestarts: indices(&inputs.cachestarts),
            start_pos: indices(&inputs.start_pos),
            max_seqlen: number(&inputs.max_seqlen),
            max_kvlen: number(&inputs.max_kvlen),
            paged,
            max_p: if paged { inputs.cachestarts.shape().get(1).copied().unwrap_or_default() } else { 0 },
            page_size: call.attributes.page_size,
            max_t,
            tokens: inputs.current_key.shape().first().copied().unwrap_or_default(),
        }
    }

    /// The number of sequences.
    pub(super) fn len(&self) -> usize {
        self.start_pos.len()
    }

    /// How many tokens a sequence stores.
    pub(super) fn seqlen(&self, b: usize) -> i64 {
        self.seqstarts[b + 1].wrapping_sub(self.seqstarts[b])
    }

    /// How many tokens a sequence has: those before this call, and those that it stores.
    pub(super) fn kvlen(&self, b: usize) -> i64 {
        self.kvstarts[b + 1].wrapping_sub(self.kvstarts[b])
    }

    /// The tokens of the longest sequence.
    pub(super) fn longest(&self) -> i64 {
        (0..self.len()).map(|b| self.kvlen(b)).max().unwrap_or(0)
    }

    /// The length of sequences if so many rows are cut into equal ones.
    pub(super) fn equal_length(&self, rows: i64) -> i64 {
        rows / self.len().max(1) as i64
    }

    /// The slots that a sequence uses of one of its pages.
    pub(super) fn slots_used(&self, b: usize, page: usize) -> i64 {
        let before = i128::from(self.page_size) * page as i128;
        (i128::from(self.kvlen(b)) - before).clamp(0, self.page_size.into()) as i64
    }

    /// Entry number `i` of `cachestarts`, in row-major order; where there is none, a slot outside of any cache.
    fn entry(&self, i: i64) -> i64 {
        usize::try_from(i).ok().and_then(|i| self.cachestarts.get(i).copied()).unwrap_or(i64::MIN / 2)
    }

    /// The entry of the page table for a page of a sequence; of a page that it does not have, a slot outside of any
    /// cache.
    fn page(&self, b: usize, page: i64) -> i64 {
        if (0..self.max_p as i64).contains(&page) { self.entry((b * self.max_p) as i64 + page) } else { i64::MIN / 2 }
    }

    /// The slot of the token at a position of a sequence.
    pub(super) fn slot(&self, b: usize, t: i64) -> i64 {
        match self.paged {
            true => self.page(b, t / self.page_size).saturating_add(t % self.page_size),
            false => self.cachestarts[b].saturating_add(t),
        }
    }

    /// The slot of the token at a position of a sequence, by other decisions.
    pub(super) fn slot_by(&self, slots: Slots, b: usize, t: i64) -> i64 {
        let (size, own) = (self.page_size, self.slot(b, t));
        if !self.paged {
            return match slots {
                Slots::FirstSequence | Slots::FirstCachestarts => self.slot(0, t),
                Slots::CachestartsIgnored => t,
                Slots::CachestartsAsKvstarts => self.kvstarts[b] + t,
                _ => own,
            };
        }
        let on = |page: i64| page.saturating_add(t % size);
        let of_size = |size: i64| self.page(b, t / size).saturating_add(t % size);
        let first = self.page(b, t / size);
        match slots {
            Slots::FirstSequence | Slots::PagesOfFirstSequence => self.slot(0, t),
            Slots::PagesTimesSize => on(first.saturating_mul(size)),
            Slots::TableTransposed => {
                on(self.entry((t / size).saturating_mul(self.len() as i64).saturating_add(b as i64)))
            }
            Slots::TableAsOffsets => self.entry(b as i64).saturating_add(t),
            Slots::FirstPageAlone => self.page(b, 0).saturating_add(t),
            Slots::PageAlone => first,
            Slots::PageSizeIgnored => of_size(128),
            Slots::PagesAlignedDown => on(first - first.rem_euclid(size)),
            Slots::PageSizeRoundedDown => of_size(1 << size.ilog2()),
            Slots::PageOffsetMasked => first.saturating_add(t & (size - 1)),
            _ => own,
        }
    }
}

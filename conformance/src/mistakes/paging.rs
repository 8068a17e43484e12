//! Mistakes of which slot a token of paged mode has.

use super::mistake::Mistake;
use crate::oracle::dynamic::Batch;

pub(super) const MISTAKES: &[Mistake] = &[
    Mistake::dynamic(
        "cache-mode.1",
        "page-index-for-slot",
        "Entries of the page table are multiplied by page_size: they are slots, not numbers of pages.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| match batch.paged {
                true => batch
                    .page(b, position / batch.page_size)
                    .saturating_mul(batch.page_size)
                    .saturating_add(position % batch.page_size),
                false => batch.slot(b, position),
            };
        },
    ),
    Mistake::dynamic(
        "cache-mode.1",
        "page-table-transposed",
        "The page table is read column by column: the pages of sequence b are row b.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| {
                let entry = (position / batch.page_size).saturating_mul(batch.len() as i64).saturating_add(b as i64);
                paged(batch, b, position, |batch| entry_of(batch, entry))
            };
        },
    ),
    Mistake::dynamic(
        "cache-mode.1",
        "pages-taken-as-contiguous",
        "All tokens of a sequence are counted on from its first page: token t is on page t / page_size.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| match batch.paged {
                true => batch.page(b, 0).saturating_add(position),
                false => batch.slot(b, position),
            };
        },
    ),
    Mistake::dynamic(
        "cache-mode.1",
        "page-offset-ignored",
        "Every token of a page has the page's first slot: add t % page_size.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| match batch.paged {
                true => batch.page(b, position / batch.page_size),
                false => batch.slot(b, position),
            };
        },
    ),
    Mistake::dynamic(
        "cache-mode.1",
        "last-page-not-counted",
        "A last page that is not full does not count, and its tokens go to the page before: a sequence has \
         ceil(kvlen / page_size) pages.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| {
                let last = (batch.kvlen(b) / batch.page_size - 1).max(0);
                paged(batch, b, position, |batch| batch.page(b, (position / batch.page_size).min(last)))
            };
        },
    ),
    Mistake::dynamic(
        "cache-mode.1",
        "page-of-next-token",
        "A token is looked up on the page of the token behind it: token t is on page t / page_size.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| {
                let page = position.saturating_add(1) / batch.page_size;
                paged(batch, b, position, |batch| batch.page(b, page))
            };
        },
    ),
    Mistake::dynamic(
        "cache-mode.1",
        "page-behind-its-own",
        "A token is looked up on the page behind its own: token t is on page t / page_size, counted from 0.",
        |behavior| {
            behavior.dynamic.slot =
                |batch, b, position| paged(batch, b, position, |batch| batch.page(b, position / batch.page_size + 1));
        },
    ),
    Mistake::dynamic(
        "cache-mode.1",
        "last-page-one-slot-further",
        "Tokens of a sequence's last page are one slot behind theirs.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| {
                let last = (batch.kvlen(b) - 1) / batch.page_size == position / batch.page_size;
                batch.slot(b, position).saturating_add((batch.paged && last).into())
            };
        },
    ),
    Mistake::dynamic(
        "cache-mode.1",
        "slots-one-further",
        "Tokens are one slot behind theirs: token 0 has the first slot of the first page.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| batch.slot(b, position).saturating_add(batch.paged.into());
        },
    ),
    Mistake::dynamic(
        "cache-mode.1",
        "page-table-read-as-offsets",
        "The page table is read as cachestarts of offset mode are, its entry b as the first slot of sequence b: look \
         at cache_mode.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| match batch.paged {
                true => entry_of(batch, b as i64).saturating_add(position),
                false => batch.slot(b, position),
            };
        },
    ),
    Mistake::dynamic(
        "cache-mode.1",
        "page-size-ignored",
        "page_size is not looked at, and its default 128 taken.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| match batch.paged {
                true => batch.page(b, position / 128).saturating_add(position % 128),
                false => batch.slot(b, position),
            };
        },
    ),
    Mistake::dynamic(
        "pages.unaligned",
        "pages-aligned-down",
        "The first slot of a page is rounded down to a multiple of page_size: a page may start at any slot.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| {
                paged(batch, b, position, |batch| {
                    let entry = batch.page(b, position / batch.page_size);
                    entry - entry.rem_euclid(batch.page_size)
                })
            };
        },
    ),
    Mistake::dynamic(
        "pages.unaligned",
        "pages-aligned-up",
        "The first slot of a page is rounded up to a multiple of page_size: a page may start at any slot.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| {
                paged(batch, b, position, |batch| {
                    let entry = batch.page(b, position / batch.page_size);
                    entry.saturating_add((-entry).rem_euclid(batch.page_size))
                })
            };
        },
    ),
    Mistake::dynamic(
        "pages.unaligned",
        "page-size-rounded-up",
        "page_size is rounded up to a power of two: it need be none.",
        |behavior| behavior.dynamic.slot = |batch, b, position| with_page_size(batch, b, position, next_power_of_two),
    ),
    Mistake::dynamic(
        "pages.unaligned",
        "page-size-rounded-down",
        "page_size is rounded down to a power of two, as by a shift and a mask: it need be none.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| with_page_size(batch, b, position, |size| 1 << size.ilog2());
        },
    ),
    Mistake::dynamic(
        "pages.unaligned",
        "page-offset-masked",
        "A token's place on its page is t & (page_size - 1): t % page_size is something else where page_size is no power \
         of two.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| match batch.paged {
                true => batch.page(b, position / batch.page_size).saturating_add(position & (batch.page_size - 1)),
                false => batch.slot(b, position),
            };
        },
    ),
    Mistake::dynamic(
        "cache-mode.1",
        "page-table-stride-of-max-kvlen",
        "A row of the page table is taken to have as many entries as max_kvlen tokens need: it has MaxP.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| {
                let stride = batch.max_kvlen.saturating_add(batch.page_size - 1) / batch.page_size;
                let entry = stride.saturating_mul(b as i64).saturating_add(position / batch.page_size);
                paged(batch, b, position, |batch| entry_of(batch, entry))
            };
        },
    ),
    Mistake::dynamic(
        "cache-mode.1",
        "current-tokens-on-one-page",
        "All current tokens of a sequence are stored behind its first one, past the end of that one's page: token t is \
         on page t / page_size.",
        |behavior| {
            behavior.dynamic.stored_slot = Some(|batch, b, position| {
                let first = if batch.paged { batch.start_pos[b] } else { position };
                batch.slot(b, first).saturating_add(position - first)
            });
        },
    ),
    Mistake::dynamic(
        "cache-mode.1",
        "page-of-current-token-without-past",
        "Current tokens are stored on the page i / page_size by their number i in the call: token t is on page t / \
         page_size, and start_pos counts.",
        |behavior| {
            behavior.dynamic.stored_slot = Some(|batch, b, position| {
                let page = (position - batch.start_pos[b]) / batch.page_size;
                paged(batch, b, position, |batch| batch.page(b, page))
            });
        },
    ),
    Mistake::dynamic(
        "cache-mode.1",
        "first-token-of-page-on-page-before",
        "The first token of a page is stored behind the last of the page before: token t is on page t / page_size, \
         also where t is a multiple.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| match batch.paged && position > 0 {
                true => batch.slot(b, position - 1).saturating_add(1),
                false => batch.slot(b, position),
            };
        },
    ),
    Mistake::dynamic(
        "cache-mode.1",
        "first-slot-of-page-before",
        "The first token of a page is at the start of the page before, whose number is (t - 1) / page_size: token t is on \
         page t / page_size.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| {
                paged(batch, b, position, |batch| batch.page(b, (position - 1).max(0) / batch.page_size))
            };
        },
    ),
    Mistake::dynamic(
        "cache-mode.1",
        "page-table-packed",
        "The rows of the page table are read one behind the other, each as long as its sequence has pages: a row has \
         MaxP entries.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| {
                let pages = |b: usize| batch.kvlen(b).saturating_add(batch.page_size - 1) / batch.page_size;
                let entry = (0..b).map(pages).sum::<i64>().saturating_add(position / batch.page_size);
                paged(batch, b, position, |batch| entry_of(batch, entry))
            };
        },
    ),
    Mistake::dynamic(
        "cache-mode.1",
        "pages-of-first-sequence",
        "Every sequence uses the first row of the page table.",
        |behavior| {
            behavior.dynamic.slot =
                |batch, b, position| if batch.paged { batch.slot(0, position) } else { batch.slot(b, position) };
        },
    ),
];

/// The slot on a page that begins with `first`, in paged mode.
fn paged(batch: &Batch, b: usize, position: i64, first: impl Fn(&Batch) -> i64) -> i64 {
    match batch.paged {
        true => first(batch).saturating_add(position % batch.page_size),
        false => batch.slot(b, position),
    }
}

/// The slot with pages of another size.
fn with_page_size(batch: &Batch, b: usize, position: i64, size: impl Fn(i64) -> i64) -> i64 {
    if !batch.paged {
        return batch.slot(b, position);
    }
    let size = size(batch.page_size);
    batch.page(b, position / size).saturating_add(position % size)
}

/// The least power of two that is not less.
fn next_power_of_two(size: i64) -> i64 {
    (size as u64).next_power_of_two().try_into().unwrap_or(i64::MAX)
}

/// Entry number `i` of cachestarts, in row-major order; where there is none, a slot outside of any cache.
fn entry_of(batch: &Batch, i: i64) -> i64 {
    usize::try_from(i).ok().and_then(|i| batch.cachestarts.get(i).copied()).unwrap_or(i64::MIN / 2)
}

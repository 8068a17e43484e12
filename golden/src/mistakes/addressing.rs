//! Mistakes of which token has which slot, and which row of the inputs and outputs.

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
        "cache-mode.1",
        "pages-of-first-sequence",
        "Every sequence uses the first row of the page table.",
        |behavior| {
            behavior.dynamic.slot =
                |batch, b, position| if batch.paged { batch.slot(0, position) } else { batch.slot(b, position) };
        },
    ),
    Mistake::dynamic(
        "cache-mode.0",
        "cachestarts-of-first-sequence",
        "Every sequence of offset mode begins at cachestarts[0].",
        |behavior| {
            behavior.dynamic.slot =
                |batch, b, position| if batch.paged { batch.slot(b, position) } else { batch.slot(0, position) };
        },
    ),
    Mistake::dynamic(
        "cache-mode.0",
        "cachestarts-ignored",
        "cachestarts is not added in offset mode: token t of every sequence has slot t.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| if batch.paged { batch.slot(b, position) } else { position };
        },
    ),
    Mistake::dynamic(
        "cache-mode.0",
        "cachestarts-taken-as-kvstarts",
        "Sequences of offset mode lie in the cache as they do in the outputs, at kvstarts: they begin at cachestarts.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| match batch.paged {
                true => batch.slot(b, position),
                false => batch.kvstarts[b] + position,
            };
        },
    ),
    Mistake::dynamic(
        "inputs.packed",
        "seqstarts-ignored",
        "Current tokens are cut into sequences of equal length: sequence b has rows seqstarts[b] to seqstarts[b+1].",
        |behavior| {
            behavior.dynamic.stored = |batch, _| batch.tokens as i64 / batch.len().max(1) as i64;
            behavior.dynamic.current_row = |batch, b| batch.tokens as i64 / batch.len().max(1) as i64 * b as i64;
        },
    ),
    Mistake::dynamic(
        "inputs.packed",
        "current-tokens-of-first-sequence",
        "Every sequence stores the tokens from row 0 on: those of sequence b begin at row seqstarts[b].",
        |behavior| behavior.dynamic.current_row = |_, _| 0,
    ),
    Mistake::dynamic(
        "inputs.packed",
        "current-tokens-at-kvstarts",
        "Current tokens are read at kvstarts: they begin at row seqstarts[b] of current_key and current_value.",
        |behavior| behavior.dynamic.current_row = |batch, b| batch.kvstarts[b],
    ),
    Mistake::dynamic(
        "outputs.packed",
        "kvstarts-ignored",
        "Outputs are written at seqstarts: those of sequence b begin at row kvstarts[b] of key and value.",
        |behavior| behavior.dynamic.output_row = |batch, b| batch.seqstarts[b],
    ),
    Mistake::dynamic(
        "outputs.packed",
        "kvstarts-ignored-equal-lengths",
        "Outputs are cut into sequences of equal length: those of sequence b begin at row kvstarts[b].",
        |behavior| {
            behavior.dynamic.output_row = |batch, b| batch.kvstarts[batch.len()] / batch.len().max(1) as i64 * b as i64;
        },
    ),
    Mistake::dynamic(
        "outputs.packed",
        "kvstarts-ignored-padded",
        "Each sequence has as many rows of the outputs as the longest: outputs are packed, those of sequence b begin \
         at row kvstarts[b].",
        |behavior| {
            behavior.dynamic.output_row = |batch, b| longest(batch) * b as i64;
            behavior.dynamic.output_rows = |batch| longest(batch) * batch.len() as i64;
        },
    ),
    Mistake::new(
        "outputs.packed",
        "past-not-returned",
        "Only current tokens are given back: key and value have the past ones, too.",
        |behavior| {
            behavior.dynamic.loaded = |batch, b| batch.start_pos[b]..batch.kvlen(b);
            behavior.dynamic.output_row = |batch, b| batch.seqstarts[b];
            behavior.dynamic.output_rows = |batch| batch.seqstarts[batch.len()];
            behavior.static_batching.loaded = |start_pos, seqlen| start_pos..start_pos + seqlen;
        },
    )
    .static_rule("loaded-positions"),
    Mistake::dynamic(
        "outputs.packed",
        "current-not-returned",
        "The rows of current tokens stay zero: key and value have the past tokens and the current ones.",
        |behavior| behavior.dynamic.loaded = |batch, b| 0..batch.start_pos[b],
    ),
    Mistake::dynamic(
        "outputs.packed",
        "last-token-not-returned",
        "The last token of each sequence is not loaded: key and value have kvstarts[b+1] - kvstarts[b] tokens of it.",
        |behavior| behavior.dynamic.loaded = |batch, b| 0..batch.kvlen(b) - 1,
    ),
    Mistake::dynamic(
        "starts.empty",
        "idle-sequences-not-returned",
        "A sequence that stores nothing is left out of the outputs: its past is loaded all the same.",
        |behavior| {
            behavior.dynamic.loaded = |batch, b| if batch.seqlen(b) == 0 { 0..0 } else { 0..batch.kvlen(b) };
        },
    ),
    Mistake::new(
        "inputs.packed",
        "start-pos-ignored",
        "Current tokens are stored from position 0 on, over the past: they begin at start_pos.",
        |behavior| {
            behavior.dynamic.position = |_, _| 0;
            behavior.static_batching.position = |_| 0;
        },
    )
    .static_rule("stored-positions"),
    Mistake::dynamic(
        "inputs.packed",
        "start-pos-of-first-sequence",
        "Every sequence stores from start_pos[0] on: it should be its own entry.",
        |behavior| behavior.dynamic.position = |batch, _| batch.start_pos[0],
    ),
    Mistake::dynamic(
        "bounds.max-seqlen",
        "max-seqlen-taken-as-length",
        "Each sequence stores max_seqlen tokens: that is a bound, sequence b has seqstarts[b+1] - seqstarts[b].",
        |behavior| behavior.dynamic.stored = |batch, _| batch.max_seqlen.min(batch.tokens as i64),
    ),
    Mistake::dynamic(
        "bounds.max-kvlen",
        "max-kvlen-taken-as-length",
        "max_kvlen tokens of each sequence are loaded: that is a bound, sequence b has kvstarts[b+1] - kvstarts[b].",
        |behavior| behavior.dynamic.loaded = |batch, _| 0..batch.max_kvlen.min(batch.max_t as i64),
    ),
];

/// The slot on a page that begins with `first`, in paged mode.
fn paged(batch: &Batch, b: usize, position: i64, first: impl Fn(&Batch) -> i64) -> i64 {
    match batch.paged {
        true => first(batch).saturating_add(position % batch.page_size),
        false => batch.slot(b, position),
    }
}

/// Entry number `i` of cachestarts, in row-major order; where there is none, a slot outside of any cache.
fn entry_of(batch: &Batch, i: i64) -> i64 {
    usize::try_from(i).ok().and_then(|i| batch.cachestarts.get(i).copied()).unwrap_or(i64::MIN / 2)
}

/// The tokens of the longest sequence.
fn longest(batch: &Batch) -> i64 {
    (0..batch.len()).map(|b| batch.kvlen(b)).max().unwrap_or(0)
}

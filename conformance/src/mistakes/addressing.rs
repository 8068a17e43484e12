//! Mistakes of which token has which slot in offset mode, and which row of the inputs and outputs.

use super::mistake::Mistake;
use crate::oracle::dynamic::Batch;

pub(super) const MISTAKES: &[Mistake] = &[
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
    first_tokens_loaded::<32>("first-32-tokens-loaded", "Only the first 32 tokens of a sequence are loaded: all are."),
    rest_of_tokens_not_loaded::<4>(
        "tokens-behind-4-not-loaded",
        "Tokens of a sequence behind its last multiple of 4 are not loaded: all are.",
    ),
    rest_of_tokens_not_loaded::<16>(
        "tokens-behind-16-not-loaded",
        "Tokens of a sequence behind its last multiple of 16 are not loaded: all are.",
    ),
    Mistake::dynamic(
        "outputs.packed",
        "partial-page-not-loaded",
        "Tokens of a last page that is not full are not loaded: all are.",
        |behavior| {
            behavior.dynamic.loaded = |batch, b| {
                let kvlen = batch.kvlen(b);
                0..if batch.paged { kvlen / batch.page_size * batch.page_size } else { kvlen }
            };
        },
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
        "first-current-token-to-sequence-before",
        "The first current token of a sequence is stored behind the last of the sequence before, as by a search for the \
         first start that is not less: its sequence is the last that starts at its row or before.",
        |behavior| {
            behavior.dynamic.stored_slot = Some(|batch, b, position| {
                let row = batch.seqstarts[b] + position - batch.start_pos[b];
                let b = batch
                    .seqstarts
                    .iter()
                    .take_while(|&&start| start < row)
                    .count()
                    .saturating_sub(1)
                    .min(batch.len() - 1);
                batch.slot(b, batch.start_pos[b] + row - batch.seqstarts[b])
            });
        },
    ),
    Mistake::dynamic(
        "inputs.packed",
        "start-pos-of-first-sequence",
        "Every sequence stores from start_pos[0] on: it should be its own entry.",
        |behavior| behavior.dynamic.position = |batch, _| batch.start_pos[0],
    ),
    Mistake::dynamic(
        "inputs.packed",
        "start-pos-one-further",
        "Current tokens are stored one position behind theirs: the first has position start_pos.",
        |behavior| behavior.dynamic.position = |batch, b| batch.start_pos[b] + 1,
    ),
    Mistake::dynamic(
        "inputs.packed",
        "start-pos-one-further-within-kvlen",
        "Current tokens are stored one position behind theirs, the last one in its own place: the first has position \
         start_pos.",
        |behavior| {
            behavior.dynamic.stored_slot =
                Some(|batch, b, position| batch.slot(b, (position + 1).min(batch.kvlen(b) - 1)));
        },
    ),
    Mistake::dynamic(
        "outputs.packed",
        "slots-of-first-sequence-in-loads",
        "All sequences are loaded from the slots of the first one: each has its own cachestarts, stores use them.",
        |behavior| {
            behavior.dynamic.slot = |batch, _, position| batch.slot(0, position);
            behavior.dynamic.stored_slot = Some(Batch::slot);
        },
    ),
    Mistake::dynamic(
        "inputs.packed",
        "slots-of-first-sequence-in-stores",
        "All sequences store to the slots of the first one: each has its own cachestarts, loads use them.",
        |behavior| behavior.dynamic.stored_slot = Some(|batch, _, position| batch.slot(0, position)),
    ),
    Mistake::dynamic(
        "outputs.packed",
        "past-of-first-sequence",
        "Past tokens of all sequences are loaded from the slots of the first one, as far as it has tokens, as where a \
         prefix is taken to be shared: each sequence has its own.",
        |behavior| {
            behavior.dynamic.slot = |batch, b, position| {
                let shared = position < batch.start_pos[b] && position < batch.kvlen(0);
                batch.slot(if shared { 0 } else { b }, position)
            };
            behavior.dynamic.stored_slot = Some(Batch::slot);
        },
    ),
    Mistake::dynamic(
        "untouched-slots",
        "rest-of-page-cleared",
        "Slots behind the last token of a sequence are cleared up to the end of its page: what is not stored to keeps its \
         bytes.",
        |behavior| {
            behavior.dynamic.cleared_last = |batch| {
                let rest = |b: usize| {
                    let end = batch.kvlen(b);
                    let page = end.saturating_add(batch.page_size - 1) / batch.page_size * batch.page_size;
                    let last = if end > 0 { batch.slot(b, end - 1) } else { 0 };
                    (1..=if batch.seqlen(b) > 0 { (page - end).min(batch.max_t as i64) } else { 0 })
                        .map(move |t| last.saturating_add(t))
                };
                (0..if batch.paged { batch.len() } else { 0 }).flat_map(rest).filter(inside(batch)).collect()
            };
        },
    ),
    Mistake::dynamic(
        "untouched-slots",
        "padding-stored",
        "max_seqlen rows of each sequence are stored, those behind its current tokens as zeros: what is not stored to \
         keeps its bytes.",
        |behavior| {
            behavior.dynamic.cleared_last = |batch| {
                let padding = |b: usize| {
                    let end = batch.start_pos[b].saturating_add(batch.max_seqlen.min(batch.max_t as i64));
                    (batch.kvlen(b)..end).map(move |position| batch.slot(b, position))
                };
                (0..batch.len()).flat_map(padding).filter(inside(batch)).collect()
            };
        },
    ),
    Mistake::dynamic(
        "untouched-slots",
        "layer-cleared-for-new-sequences",
        "All slots of the layer are cleared in cache where no sequence has past tokens: what is not stored to keeps its \
         bytes.",
        |behavior| {
            behavior.dynamic.cleared_first = |batch| {
                let is_new = !batch.is_empty() && batch.start_pos.iter().all(|&start_pos| start_pos == 0);
                (0..if is_new { batch.max_t as i64 } else { 0 }).collect()
            };
        },
    ),
    Mistake::dynamic(
        "inputs.packed",
        "start-pos-one-before",
        "Current tokens are stored one position before theirs: the first has position start_pos.",
        |behavior| behavior.dynamic.position = |batch, b| (batch.start_pos[b] - 1).max(0),
    ),
    Mistake::dynamic(
        "inputs.packed",
        "stored-behind-kvlen",
        "Current tokens are stored from kvlen on: that is their end, they begin at start_pos.",
        |behavior| behavior.dynamic.position = Batch::kvlen,
    ),
    Mistake::dynamic(
        "inputs.packed",
        "last-current-token-alone",
        "Only the last current token of each sequence is stored, as where one token of each is taken for granted.",
        |behavior| {
            behavior.dynamic.stored = |batch, b| batch.seqlen(b).min(1);
            behavior.dynamic.current_row = |batch, b| (batch.seqstarts[b + 1] - 1).max(batch.seqstarts[b]);
            behavior.dynamic.position = |batch, b| (batch.kvlen(b) - 1).max(batch.start_pos[b]);
        },
    ),
    Mistake::dynamic(
        "inputs.packed",
        "first-current-token-alone",
        "Only the first current token of each sequence is stored, as where one token of each is taken for granted.",
        |behavior| behavior.dynamic.stored = |batch, b| batch.seqlen(b).min(1),
    ),
    Mistake::dynamic(
        "inputs.packed",
        "last-current-token-missing",
        "The last current token of each sequence is not stored: there are seqstarts[b+1] - seqstarts[b] of them.",
        |behavior| behavior.dynamic.stored = |batch, b| batch.seqlen(b) - 1,
    ),
    first_tokens_stored::<16>(
        "first-16-current-tokens-stored",
        "Only the first 16 current tokens of a sequence are stored: all are.",
    ),
    first_tokens_stored::<32>(
        "first-32-current-tokens-stored",
        "Only the first 32 current tokens of a sequence are stored: all are.",
    ),
    Mistake::dynamic(
        "inputs.packed",
        "current-tokens-padded",
        "Sequence b is read from row b * max_seqlen on: current_key is packed, its rows begin at seqstarts[b].",
        |behavior| behavior.dynamic.current_row = |batch, b| batch.max_seqlen.saturating_mul(b as i64),
    ),
    Mistake::dynamic(
        "outputs.packed",
        "outputs-at-max-kvlen",
        "Sequence b is written from row b * max_kvlen on: outputs are packed, those of sequence b begin at row \
         kvstarts[b].",
        |behavior| behavior.dynamic.output_row = |batch, b| batch.max_kvlen.saturating_mul(b as i64),
    ),
    Mistake::dynamic(
        "outputs.packed",
        "outputs-of-all-at-first-row",
        "Every sequence is written from row 0 of the outputs on: those of sequence b begin at row kvstarts[b].",
        |behavior| behavior.dynamic.output_row = |_, _| 0,
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

/// Sequences of which the first `N` current tokens alone are stored.
const fn first_tokens_stored<const N: i64>(name: &'static str, about: &'static str) -> Mistake {
    Mistake::dynamic("inputs.packed", name, about, |behavior| {
        behavior.dynamic.stored = |batch, b| batch.seqlen(b).min(N);
    })
}

/// Sequences of which the first `N` tokens alone are loaded.
const fn first_tokens_loaded<const N: i64>(name: &'static str, about: &'static str) -> Mistake {
    Mistake::dynamic("outputs.packed", name, about, |behavior| {
        behavior.dynamic.loaded = |batch, b| 0..batch.kvlen(b).min(N);
    })
}

/// Sequences of which the tokens behind the last multiple of `N` are not loaded.
const fn rest_of_tokens_not_loaded<const N: i64>(name: &'static str, about: &'static str) -> Mistake {
    Mistake::dynamic("outputs.packed", name, about, |behavior| {
        behavior.dynamic.loaded = |batch, b| 0..batch.kvlen(b) / N * N;
    })
}

/// Whether the cache has a slot.
fn inside(batch: &Batch) -> impl Fn(&i64) -> bool + use<> {
    let max_t = batch.max_t as i64;
    move |slot| (0..max_t).contains(slot)
}

/// The tokens of the longest sequence.
fn longest(batch: &Batch) -> i64 {
    (0..batch.len()).map(|b| batch.kvlen(b)).max().unwrap_or(0)
}

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

/// The tokens of the longest sequence.
fn longest(batch: &Batch) -> i64 {
    (0..batch.len()).map(|b| batch.kvlen(b)).max().unwrap_or(0)
}

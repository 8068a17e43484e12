//! Illegal calls that are made, or refused too late: rules that are not checked, or not in all of their parts.

use super::accepted_inputs::{accepted, names};
use super::mistake::Mistake;
use super::refused::used_pages;
use crate::oracle::dynamic::Batch;
use crate::oracle::{Refusal, Verdict};

/// Illegal calls that are made or refused too late. A rule that is not checked at all comes behind its parts.
pub(super) const MISTAKES: &[Mistake] = &[
    Mistake::new(
        "refusal-leaves-memory",
        "state-changed-before-refusal",
        "cache or scale is changed before a call is refused: check everything before the first byte is written.",
        |behavior| behavior.verdict = |_| Verdict::RefusedLate,
    ),
    Mistake::new(
        "attributes.ranges",
        "idle-attributes-not-checked",
        "quant_group and page_size are not checked where they are not used: their ranges hold always.",
        |behavior| {
            behavior.dynamic.accepts = |batch, refusal| {
                let (quant, paged) = (batch.attributes.quant_bit != 0, batch.attributes.cache_mode != 0);
                refusal.kind == "attribute_out_of_range"
                    && (names(refusal, "quant_group") && !quant || names(refusal, "page_size") && !paged)
            };
            behavior.static_batching.accepts = |shape, refusal| names(refusal, "quant_group") && shape.quant_bit == 0;
        },
    ),
    Mistake::dynamic(
        "bounds.max-seqlen",
        "accepts-small-max-seqlen",
        "max_seqlen below the longest sequence is accepted.",
        |behavior| {
            behavior.verdict = |refusal| accepted(refusal.kind == "max_too_small" && refusal.is_of("max_seqlen"))
        },
    ),
    Mistake::dynamic(
        "bounds.max-kvlen",
        "accepts-small-max-kvlen",
        "max_kvlen below the longest sequence is accepted.",
        |behavior| behavior.verdict = |refusal| accepted(refusal.kind == "max_too_small" && refusal.is_of("max_kvlen")),
    ),
    Mistake::dynamic(
        "starts.rising",
        "accepts-any-seqstarts",
        "seqstarts that do not begin with 0, or decrease, are accepted.",
        |behavior| behavior.verdict = |refusal| accepted(is_rising(refusal) && refusal.is_of("seqstarts")),
    ),
    Mistake::dynamic(
        "starts.rising",
        "accepts-any-kvstarts",
        "kvstarts that do not begin with 0, or decrease, are accepted.",
        |behavior| behavior.verdict = |refusal| accepted(is_rising(refusal) && refusal.is_of("kvstarts")),
    ),
    Mistake::dynamic(
        "slots.offset",
        "range-of-slots-wraps",
        "The end of a sequence's or page's slots is computed without regard to overflow, and wraps around.",
        |behavior| {
            behavior.dynamic.accepts = |batch, refusal| {
                is_range(refusal)
                    && ranges(batch).all(|(first, len)| first >= 0 && first.wrapping_add(len) <= batch.max_t as i64)
            };
        },
    ),
    Mistake::dynamic(
        "slots.offset",
        "accepts-negative-slots",
        "Negative slots are accepted: only the end of the cache is checked.",
        |behavior| {
            behavior.dynamic.accepts = |batch, refusal| {
                is_range(refusal) && ranges(batch).all(|(first, len)| first.saturating_add(len) <= batch.max_t as i64)
            };
        },
    ),
    Mistake::dynamic(
        "slots.offset",
        "accepts-one-slot-too-many",
        "A sequence or page may end one slot behind the cache: its last slot is MaxT - 1.",
        |behavior| {
            behavior.dynamic.accepts = |batch, refusal| {
                let end = batch.max_t as i64 + 1;
                is_range(refusal) && ranges(batch).all(|(first, len)| first >= 0 && first.saturating_add(len) <= end)
            };
        },
    ),
    Mistake::dynamic(
        "slots.paged",
        "only-stored-slots-checked",
        "Only the slots of current tokens are checked: those of past tokens are loaded.",
        |behavior| {
            behavior.dynamic.accepts = |batch, refusal| {
                let inside = |slot: i64| (0..batch.max_t as i64).contains(&slot);
                is_range(refusal)
                    && (0..batch.len()).all(|b| {
                        let (first, end) = (batch.start_pos[b], batch.kvlen(b));
                        first >= end || inside(batch.slot(b, first)) && inside(batch.slot(b, end - 1))
                    })
            };
        },
    ),
    accepts::<0>(
        "attributes.ranges",
        "accepts-attribute-out-of-range",
        "Attributes outside of their ranges are accepted.",
    ),
    accepts::<1>(
        "types.illegal",
        "accepts-illegal-types",
        "Combinations of types that the table does not have are accepted.",
    ),
    accepts::<2>("scale.required", "accepts-missing-scale", "A quantized cache without a scale is accepted."),
    accepts::<3>("inputs.types", "accepts-type-mismatch", "Inputs of other types than they should have are accepted."),
    accepts::<4>("legacy-exports", "accepts-legacy-page-table", "A table of rank 1 in paged mode is accepted.")
        .only_dynamic(),
    accepts::<5>(
        "inputs.shapes",
        "accepts-rank-mismatch",
        "Inputs of another rank than they should have are accepted.",
    ),
    accepts::<6>("inputs.shapes", "accepts-shape-mismatch", "Inputs whose shapes do not agree are accepted."),
    accepts::<7>(
        "attributes.group-divides",
        "accepts-partial-group",
        "A head_dim that quant_group does not divide is accepted.",
    ),
    accepts::<8>("bounds.batch", "accepts-batch-too-large", "More sequences than MaxB are accepted.").only_static(),
    accepts::<9>(
        "starts.rising",
        "accepts-starts-not-zero",
        "seqstarts and kvstarts that do not begin with 0 are accepted.",
    )
    .only_dynamic(),
    accepts::<10>(
        "starts.rising",
        "accepts-starts-that-decrease",
        "seqstarts and kvstarts that decrease are accepted.",
    )
    .only_dynamic(),
    accepts::<11>(
        "starts.total",
        "accepts-wrong-total",
        "seqstarts that do not end with the tokens of current_key are accepted.",
    )
    .only_dynamic(),
    accepts::<12>("starts.start-pos", "accepts-negative-start-pos", "A negative start_pos is accepted.")
        .static_rule("bounds.positions"),
    accepts::<13>("starts.kvlen", "accepts-wrong-kvlen", "kvlens that are not start_pos + seqlen are accepted.")
        .only_dynamic(),
    accepts::<14>(
        "bounds.max-kvlen",
        "accepts-small-bounds",
        "max_seqlen and max_kvlen below the longest sequence are accepted.",
    )
    .only_dynamic(),
    accepts::<15>("slots.offset", "accepts-slots-outside", "Slots outside of the cache are accepted in offset mode.")
        .only_dynamic(),
    accepts::<16>(
        "slots.pages",
        "accepts-too-many-pages",
        "Sequences with more pages than the page table has columns are accepted.",
    )
    .only_dynamic(),
    accepts::<17>("slots.paged", "accepts-pages-outside", "Pages outside of the cache are accepted.").only_dynamic(),
    accepts::<18>("order.conflict", "accepts-write-conflict", "Two tokens that write the same slot are accepted.")
        .only_dynamic(),
    accepts::<19>("bounds.positions", "accepts-positions-outside", "Positions behind MaxS are accepted.").only_static(),
    accepts::<20>(
        "sizes.64-bit",
        "accepts-overflowing-size",
        "Outputs whose size does not fit in 64 bits are accepted.",
    ),
    Mistake::new(
        "refusal-leaves-memory",
        "accepts-everything",
        "No call is refused, whatever rule it breaks.",
        |behavior| behavior.verdict = |_| Verdict::Accepted,
    ),
];

/// A kind of error that no call is refused with.
const fn accepts<const KIND: usize>(rule: &'static str, name: &'static str, about: &'static str) -> Mistake {
    Mistake::new(rule, name, about, |behavior| {
        behavior.verdict = |refusal| accepted(refusal.kind == crate::oracle::KINDS[KIND]);
    })
}

/// Whether starts that do not begin with 0 or decrease are what is wrong.
fn is_rising(refusal: &Refusal) -> bool {
    ["starts_not_zero", "starts_decrease"].contains(&refusal.kind)
}

/// Whether slots outside of the cache are what is wrong.
fn is_range(refusal: &Refusal) -> bool {
    ["cache_range", "page_range"].contains(&refusal.kind)
}

/// The first slot and the length of each range of slots that is used.
fn ranges(batch: &Batch) -> impl Iterator<Item = (i64, i64)> {
    let offsets = (0..if batch.paged { 0 } else { batch.len() }).map(|b| (batch.cachestarts[b], batch.kvlen(b)));
    used_pages(batch).chain(offsets)
}

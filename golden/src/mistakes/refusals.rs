//! Mistakes of refusal: illegal calls that are made, legal ones that are not, and calls that are refused too late.

use super::mistake::Mistake;
use crate::oracle::dynamic::Batch;
use crate::oracle::{Refusal, Verdict};

/// Legal calls that are refused, and what changes which calls are legal.
pub(super) const REFUSED: &[Mistake] = &[
    Mistake::dynamic(
        "bounds.max-kvlen",
        "bounds-must-be-exact",
        "max_seqlen or max_kvlen above the longest sequence is refused: they are upper bounds.",
        |behavior| {
            behavior.dynamic.refuses = |batch| {
                batch.max_seqlen != longest(batch, Batch::seqlen) || batch.max_kvlen != longest(batch, Batch::kvlen)
            };
        },
    ),
    Mistake::dynamic(
        "inputs.shapes",
        "bounds-must-be-scalars",
        "max_seqlen or max_kvlen of shape [1] is refused: real exports have that.",
        |behavior| behavior.dynamic.refuses = |batch| batch.scalar_bounds != [true, true],
    ),
    Mistake::dynamic(
        "inputs.shapes",
        "bounds-must-be-vectors",
        "max_seqlen or max_kvlen as a scalar is refused: the specification has them so.",
        |behavior| behavior.dynamic.refuses = |batch| batch.scalar_bounds != [false, false],
    ),
    Mistake::of_static("inputs.shapes", "start-pos-must-be-scalar", "start_pos of shape [1] is refused.", |behavior| {
        behavior.static_batching.refuses = |shape| !shape.scalar_start_pos
    }),
    Mistake::of_static("inputs.shapes", "start-pos-must-be-vector", "start_pos as a scalar is refused.", |behavior| {
        behavior.static_batching.refuses = |shape| shape.scalar_start_pos
    }),
    Mistake::dynamic(
        "pages.filler",
        "filler-pages-checked",
        "Entries of the page table behind the last used one are checked: they are never read, -1 is a usual filler.",
        |behavior| {
            behavior.dynamic.refuses =
                |batch| batch.paged && batch.cachestarts.iter().any(|&first| first < 0 || first >= batch.max_t as i64);
        },
    ),
    Mistake::dynamic(
        "pages.unaligned",
        "pages-must-be-aligned",
        "A page that does not start at a multiple of page_size is refused: it may start at any slot.",
        |behavior| behavior.dynamic.refuses = |batch| used_pages(batch).any(|(first, _)| first % batch.page_size != 0),
    ),
    Mistake::dynamic(
        "slots.paged",
        "whole-page-must-fit",
        "A page that ends behind the cache is refused although the slots that are used lie inside.",
        |behavior| {
            behavior.dynamic.refuses =
                |batch| used_pages(batch).any(|(first, _)| first.saturating_add(batch.page_size) > batch.max_t as i64);
        },
    ),
    Mistake::dynamic(
        "order.shared-slots",
        "shared-slots-refused",
        "Sequences that read the same slots are refused: a shared prefix is legal, two writers of a slot are not.",
        |behavior| {
            behavior.dynamic.refuses = |batch| {
                let slots = |b: usize| (0..batch.kvlen(b)).map(move |t| (batch.slot(b, t), b));
                let mut slots: Vec<_> = (0..batch.len()).flat_map(slots).collect();
                slots.sort_unstable();
                slots.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1)
            };
        },
    ),
    layouts_refused::<0, 0>(
        "cache-layout.0",
        "layout-0-refused",
        "Legal calls of layout 0 are refused or fail: look at the order of its axes.",
    ),
    layouts_refused::<1, 1>(
        "cache-layout.1",
        "layout-1-refused",
        "Legal calls of layout 1 are refused or fail: look at the order of its axes.",
    ),
    layouts_refused::<2, 2>(
        "cache-layout.2",
        "layout-2-refused",
        "Legal calls of layout 2 are refused or fail: look at the order of its axes.",
    ),
    layouts_refused::<3, 3>(
        "cache-layout.3",
        "layout-3-refused",
        "Legal calls of layout 3 are refused or fail: look at the order of its axes.",
    ),
    layouts_refused::<0, 1>(
        "cache-layout.0",
        "layouts-0-and-1-refused",
        "Legal calls of layouts 0 and 1 are refused or fail, as where one's axes are taken for the other's.",
    ),
    layouts_refused::<0, 2>(
        "cache-layout.0",
        "layouts-0-and-2-refused",
        "Legal calls of layouts 0 and 2 are refused or fail, as where one's axes are taken for the other's.",
    ),
    layouts_refused::<0, 3>(
        "cache-layout.0",
        "layouts-0-and-3-refused",
        "Legal calls of layouts 0 and 3 are refused or fail, as where one's axes are taken for the other's.",
    ),
    layouts_refused::<1, 2>(
        "cache-layout.1",
        "layouts-1-and-2-refused",
        "Legal calls of layouts 1 and 2 are refused or fail, as where one's axes are taken for the other's.",
    ),
    layouts_refused::<1, 3>(
        "cache-layout.1",
        "layouts-1-and-3-refused",
        "Legal calls of layouts 1 and 3 are refused or fail, as where one's axes are taken for the other's.",
    ),
    layouts_refused::<2, 3>(
        "cache-layout.2",
        "layouts-2-and-3-refused",
        "Legal calls of layouts 2 and 3 are refused or fail, as where one's axes are taken for the other's.",
    ),
    Mistake::dynamic(
        "starts.empty",
        "empty-batch-refused",
        "A call without sequences is refused: its outputs are empty.",
        |behavior| behavior.dynamic.refuses = Batch::is_empty,
    ),
    Mistake::of_static(
        "bounds.empty",
        "empty-static-batch-refused",
        "A call without sequences is refused: its outputs are empty.",
        |behavior| behavior.static_batching.refuses = |shape| shape.batch == 0,
    ),
    Mistake::dynamic(
        "starts.empty",
        "idle-sequences-refused",
        "A sequence without current tokens is refused: it is legal, its past is loaded.",
        |behavior| behavior.dynamic.refuses = |batch| (0..batch.len()).any(|b| batch.seqlen(b) == 0),
    ),
    Mistake::new(
        "scale.unused",
        "unused-scale-refused",
        "A scale is refused where quant_bit is 0: it may be given and is left untouched.",
        |behavior| {
            behavior.dynamic.refuses = |batch| batch.has_scale && batch.attributes.quant_bit == 0;
            behavior.static_batching.refuses = |shape| shape.has_scale && shape.quant_bit == 0;
        },
    ),
    Mistake::new(
        "sizes.64-bit",
        "attributes-as-int32",
        "Attributes are cut to 32 bits: values beyond wrap around to legal ones.",
        |behavior| behavior.attribute = |value| i64::from(value as i32),
    ),
    Mistake::new(
        "sizes.64-bit",
        "indices-as-int32",
        "Indices are cut to 32 bits: values beyond wrap around.",
        |behavior| behavior.index = |index| i64::from(index as i32),
    ),
];

/// Illegal calls that are made or refused too late. A rule that is not checked at all comes behind its parts.
pub(super) const ACCEPTED: &[Mistake] = &[
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
    Mistake::new("inputs.shapes", "accepts-any-shape-of-cache", "The shape of cache is not checked.", |behavior| {
        behavior.verdict = |refusal| accepted(refusal.kind == "shape_mismatch" && refusal.is_of("cache"))
    }),
    Mistake::new("inputs.shapes", "accepts-any-shape-of-scale", "The shape of scale is not checked.", |behavior| {
        behavior.verdict = |refusal| accepted(refusal.kind == "shape_mismatch" && refusal.is_of("scale"))
    }),
    Mistake::new(
        "inputs.shapes",
        "accepts-any-shape-of-current-value",
        "The shape of current_value is not checked.",
        |behavior| {
            behavior.verdict = |refusal| accepted(refusal.kind == "shape_mismatch" && refusal.is_of("current_value"));
        },
    ),
    Mistake::new(
        "inputs.types",
        "accepts-any-type-of-current-value",
        "The type of current_value is not checked: it is that of current_key.",
        |behavior| {
            behavior.verdict = |refusal| accepted(refusal.kind == "type_mismatch" && refusal.is_of("current_value"));
        },
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

fn accepted(accepted: bool) -> Verdict {
    if accepted { Verdict::Accepted } else { Verdict::Refused }
}

/// Whether starts that do not begin with 0 or decrease are what is wrong.
fn is_rising(refusal: &Refusal) -> bool {
    ["starts_not_zero", "starts_decrease"].contains(&refusal.kind)
}

/// Whether slots outside of the cache are what is wrong.
fn is_range(refusal: &Refusal) -> bool {
    ["cache_range", "page_range"].contains(&refusal.kind)
}

/// Whether it is this attribute that is out of range.
fn names(refusal: &Refusal, attribute: &str) -> bool {
    refusal.is_of("attribute") && refusal.message.split(' ').nth(1) == Some(attribute)
}

/// The length of the longest sequence.
fn longest(batch: &Batch, len: impl Fn(&Batch, usize) -> i64) -> i64 {
    (0..batch.len()).map(|b| len(batch, b)).max().unwrap_or(0)
}

/// In paged mode, the first slot and the used slots of each page that is used.
fn used_pages(batch: &Batch) -> impl Iterator<Item = (i64, i64)> {
    let pages = move |b: usize| (0..batch.max_p).map(move |p| (batch.page(b, p as i64), batch.slots_used(b, p)));
    (0..if batch.paged { batch.len() } else { 0 }).flat_map(pages).filter(|&(_, used)| used > 0)
}

/// The first slot and the length of each range of slots that is used.
fn ranges(batch: &Batch) -> impl Iterator<Item = (i64, i64)> {
    let offsets = (0..if batch.paged { 0 } else { batch.len() }).map(|b| (batch.cachestarts[b], batch.kvlen(b)));
    used_pages(batch).chain(offsets)
}

/// Legal calls of a layout, or of two, that are refused.
const fn layouts_refused<const A: i64, const B: i64>(
    rule: &'static str,
    name: &'static str,
    about: &'static str,
) -> Mistake {
    Mistake::dynamic(rule, name, about, |behavior| {
        behavior.dynamic.refuses = |batch| [A, B].contains(&batch.attributes.cache_layout);
    })
}

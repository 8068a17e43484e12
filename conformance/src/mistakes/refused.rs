//! Legal calls that are refused, and what changes which calls are legal.

use super::mistake::Mistake;
use crate::oracle::dynamic::Batch;

/// Legal calls that are refused, and what changes which calls are legal.
pub(super) const MISTAKES: &[Mistake] = &[
    Mistake::dynamic(
        "bounds.max-seqlen",
        "max-seqlen-must-be-exact",
        "max_seqlen above the longest sequence is refused: it is an upper bound.",
        |behavior| {
            behavior.dynamic.refuses = |batch| batch.max_seqlen != longest(batch, Batch::seqlen);
        },
    ),
    Mistake::dynamic(
        "bounds.max-kvlen",
        "max-kvlen-must-be-exact",
        "max_kvlen above the longest sequence is refused: it is an upper bound.",
        |behavior| {
            behavior.dynamic.refuses = |batch| batch.max_kvlen != longest(batch, Batch::kvlen);
        },
    ),
    Mistake::dynamic(
        "bounds.max-kvlen",
        "max-kvlen-must-fit-in-cache",
        "max_kvlen above MaxT is refused: it is an upper bound, and need not be reached.",
        |behavior| {
            behavior.dynamic.refuses = |batch| batch.max_kvlen > batch.max_t as i64;
        },
    ),
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
    bound_refused::<0, false>(
        "max-seqlen-must-be-scalar",
        "max_seqlen of shape [1] is refused: real exports have that.",
    ),
    bound_refused::<1, false>("max-kvlen-must-be-scalar", "max_kvlen of shape [1] is refused: real exports have that."),
    bound_refused::<0, true>(
        "max-seqlen-must-be-vector",
        "max_seqlen as a scalar is refused: the specification has it so.",
    ),
    bound_refused::<1, true>(
        "max-kvlen-must-be-vector",
        "max_kvlen as a scalar is refused: the specification has it so.",
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
    Mistake::dynamic(
        "pages.unaligned",
        "pages-must-be-in-order",
        "Pages that do not come in the order of their slots are refused: they may come in any order.",
        |behavior| {
            behavior.dynamic.refuses = |batch| {
                (0..batch.len()).any(|b| {
                    let pages: Vec<_> = pages_of(batch, b).map(|(first, _)| first).collect();
                    !pages.is_sorted()
                })
            };
        },
    ),
    Mistake::dynamic(
        "pages.unaligned",
        "page-size-must-be-power-of-two",
        "A page_size that is no power of two is refused: every one from 1 on is legal.",
        |behavior| behavior.dynamic.refuses = |batch| batch.page_size & (batch.page_size - 1) != 0,
    ),
    Mistake::dynamic(
        "pages.unaligned",
        "page-must-fit-in-cache",
        "A page_size above MaxT is refused: only the slots that are used have to be in the cache.",
        |behavior| behavior.dynamic.refuses = |batch| batch.paged && batch.page_size > batch.max_t as i64,
    ),
    Mistake::dynamic(
        "cache-mode.1",
        "one-page-too-many-needed",
        "A sequence that fills its last page is refused where the page table has no further column: it has \
         ceil(kvlen / page_size) pages.",
        |behavior| {
            behavior.dynamic.refuses = |batch| {
                batch.paged && (0..batch.len()).any(|b| batch.kvlen(b) / batch.page_size + 1 > batch.max_p as i64)
            };
        },
    ),
    Mistake::dynamic(
        "slots.offset",
        "last-slot-refused",
        "A sequence that ends with the last slot of the cache is refused: cachestarts[b] + kvlen[b] may be MaxT.",
        |behavior| {
            behavior.dynamic.refuses = |batch| {
                !batch.paged
                    && (0..batch.len())
                        .any(|b| batch.cachestarts[b].saturating_add(batch.kvlen(b)) >= batch.max_t as i64)
            };
        },
    ),
    Mistake::dynamic(
        "starts.empty",
        "sequences-without-tokens-refused",
        "A sequence without any tokens is refused: it is legal, and has no rows in the outputs.",
        |behavior| behavior.dynamic.refuses = |batch| (0..batch.len()).any(|b| batch.kvlen(b) == 0),
    ),
    Mistake::dynamic(
        "starts.empty",
        "call-without-current-tokens-refused",
        "A call without any current token is refused: the past of its sequences is loaded all the same.",
        |behavior| behavior.dynamic.refuses = |batch| batch.tokens == 0,
    ),
    Mistake::of_static(
        "bounds.empty",
        "call-without-current-tokens-refused-static",
        "A call without current tokens is refused: the past of its sequences is loaded all the same.",
        |behavior| behavior.static_batching.refuses = |shape| shape.seqlen == 0,
    ),
    Mistake::new(
        "attributes.group-divides",
        "idle-quant-group-must-divide",
        "A head_dim that is no multiple of quant_group is refused where quant_bit is 0: quant_group has no effect \
         there.",
        |behavior| {
            behavior.dynamic.refuses =
                |batch| batch.attributes.quant_bit == 0 && batch.head_dim as i64 % batch.attributes.quant_group != 0;
            behavior.static_batching.refuses =
                |shape| shape.quant_bit == 0 && shape.head_dim as i64 % shape.quant_group != 0;
        },
    ),
    Mistake::new(
        "inputs.packed",
        "head-dim-must-be-multiple-of-8",
        "A head_dim that is no multiple of 8 is refused: every size is legal.",
        |behavior| {
            behavior.dynamic.refuses = |batch| batch.head_dim % 8 != 0;
            behavior.static_batching.refuses = |shape| shape.head_dim % 8 != 0;
            behavior.attention.refuses = |ragged| ragged.head_dim % 8 != 0;
        },
    )
    .static_rule("stored-positions")
    .attention_rule("scores"),
    Mistake::dynamic(
        "quantizing.groups",
        "quant-group-below-8-refused",
        "A quant_group below 8 is refused: every one that divides head_dim is legal.",
        |behavior| {
            behavior.dynamic.refuses = |batch| batch.attributes.quant_bit != 0 && batch.attributes.quant_group < 8;
        },
    ),
    Mistake::dynamic(
        "quantizing.groups",
        "quant-group-must-be-power-of-two",
        "A quant_group that is no power of two is refused: every one that divides head_dim is legal.",
        |behavior| {
            behavior.dynamic.refuses = |batch| {
                let quant_group = batch.attributes.quant_group;
                batch.attributes.quant_bit != 0 && quant_group & (quant_group - 1) != 0
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
        "types.legal",
        "legal-calls-refused",
        "Legal calls are refused or fail: what the first of them says may tell why.",
        |behavior| {
            behavior.dynamic.refuses = |_| true;
            behavior.static_batching.refuses = |_| true;
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

/// The length of the longest sequence.
fn longest(batch: &Batch, len: impl Fn(&Batch, usize) -> i64) -> i64 {
    (0..batch.len()).map(|b| len(batch, b)).max().unwrap_or(0)
}

/// In paged mode, the first slot and the used slots of each page that is used.
pub(super) fn used_pages(batch: &Batch) -> impl Iterator<Item = (i64, i64)> {
    (0..if batch.paged { batch.len() } else { 0 }).flat_map(|b| pages_of(batch, b))
}

/// The same of one sequence.
pub(super) fn pages_of(batch: &Batch, b: usize) -> impl Iterator<Item = (i64, i64)> {
    (0..batch.max_p).map(move |p| (batch.page(b, p as i64), batch.slots_used(b, p))).filter(|&(_, used)| used > 0)
}

/// One of `max_seqlen` (0) and `max_kvlen` (1) that is refused as a scalar, or as an array of one number.
const fn bound_refused<const BOUND: usize, const SCALAR: bool>(name: &'static str, about: &'static str) -> Mistake {
    Mistake::dynamic("inputs.shapes", name, about, |behavior| {
        behavior.dynamic.refuses = |batch| batch.scalar_bounds[BOUND] == SCALAR;
    })
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

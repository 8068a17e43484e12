//! Illegal calls that are made because one attribute, or one property of one input, is not checked.

use super::mistake::Mistake;
use crate::oracle::{Refusal, Verdict};

const ATTRIBUTES: [&str; 8] =
    ["num_layer", "layer_idx", "quant_bit", "quant_group", "num_repeat", "cache_mode", "cache_layout", "page_size"];

const INPUTS: [&str; 9] =
    ["cache", "scale", "current_value", "seqstarts", "kvstarts", "cachestarts", "start_pos", "max_seqlen", "max_kvlen"];

/// What of an input is not checked, by the kind of error.
const PROPERTIES: [&str; 3] = ["shape_mismatch", "rank_mismatch", "type_mismatch"];

const SHAPE: usize = 0;
const RANK: usize = 1;
const TYPE: usize = 2;

pub(super) const MISTAKES: &[Mistake] = &[
    attribute::<0>("accepts-any-num-layer", "num_layer is not checked: it is at least 1."),
    attribute::<1>("accepts-any-layer-idx", "layer_idx is not checked: it is from 0 to num_layer - 1."),
    attribute::<2>("accepts-any-quant-bit", "quant_bit is not checked: it is 0, 4 or 8."),
    attribute::<3>(
        "accepts-any-quant-group",
        "quant_group is not checked: it is at least 1, and even where quant_bit is 4.",
    ),
    attribute::<4>("accepts-any-num-repeat", "num_repeat is not checked: it is at least 1."),
    attribute::<5>("accepts-any-cache-mode", "cache_mode is not checked: it is 0 or 1.").only_dynamic(),
    attribute::<6>("accepts-any-cache-layout", "cache_layout is not checked: only the codes of the table are legal."),
    attribute::<7>("accepts-any-page-size", "page_size is not checked: it is at least 1.").only_dynamic(),
    Mistake::new(
        "attributes.ranges",
        "accepts-odd-quant-group",
        "An odd quant_group is accepted where quant_bit is 4: it has to be even.",
        |behavior| {
            behavior.verdict = |refusal| {
                accepted(refusal.kind == "attribute_out_of_range" && refusal.message.ends_with("where quant_bit is 4"))
            };
        },
    ),
    input::<0, SHAPE>("inputs.shapes", "accepts-any-shape-of-cache", "The shape of cache is not checked."),
    input::<1, SHAPE>("inputs.shapes", "accepts-any-shape-of-scale", "The shape of scale is not checked."),
    input::<2, SHAPE>(
        "inputs.shapes",
        "accepts-any-shape-of-current-value",
        "The shape of current_value is not checked: it is that of current_key.",
    ),
    input::<3, SHAPE>("inputs.shapes", "accepts-any-length-of-seqstarts", "The length of seqstarts is not checked.")
        .only_dynamic(),
    input::<4, SHAPE>(
        "inputs.shapes",
        "accepts-any-length-of-kvstarts",
        "The length of kvstarts is not checked: it is that of seqstarts.",
    )
    .only_dynamic(),
    input::<5, SHAPE>(
        "inputs.shapes",
        "accepts-any-length-of-cachestarts",
        "The first axis of cachestarts is not checked: there is an entry, or a row, for each sequence.",
    )
    .only_dynamic(),
    input::<6, SHAPE>("inputs.shapes", "accepts-any-length-of-start-pos", "The length of start_pos is not checked."),
    input::<7, SHAPE>(
        "inputs.shapes",
        "accepts-any-length-of-max-seqlen",
        "max_seqlen of several elements is accepted: it is a scalar or of shape [1].",
    )
    .only_dynamic(),
    input::<8, SHAPE>(
        "inputs.shapes",
        "accepts-any-length-of-max-kvlen",
        "max_kvlen of several elements is accepted: it is a scalar or of shape [1].",
    )
    .only_dynamic(),
    input::<0, RANK>("inputs.shapes", "accepts-any-rank-of-cache", "The rank of cache is not checked."),
    input::<1, RANK>("inputs.shapes", "accepts-any-rank-of-scale", "The rank of scale is not checked."),
    input::<2, RANK>("inputs.shapes", "accepts-any-rank-of-current-value", "The rank of current_value is not checked."),
    input::<3, RANK>("inputs.shapes", "accepts-any-rank-of-seqstarts", "The rank of seqstarts is not checked.")
        .only_dynamic(),
    input::<4, RANK>("inputs.shapes", "accepts-any-rank-of-kvstarts", "The rank of kvstarts is not checked.")
        .only_dynamic(),
    input::<5, RANK>("inputs.shapes", "accepts-any-rank-of-cachestarts", "The rank of cachestarts is not checked.")
        .only_dynamic(),
    input::<6, RANK>("inputs.shapes", "accepts-any-rank-of-start-pos", "The rank of start_pos is not checked."),
    input::<7, RANK>("inputs.shapes", "accepts-any-rank-of-max-seqlen", "The rank of max_seqlen is not checked.")
        .only_dynamic(),
    input::<8, RANK>("inputs.shapes", "accepts-any-rank-of-max-kvlen", "The rank of max_kvlen is not checked.")
        .only_dynamic(),
    input::<2, TYPE>(
        "inputs.types",
        "accepts-any-type-of-current-value",
        "The type of current_value is not checked: it is that of current_key.",
    ),
    input::<3, TYPE>("inputs.types", "accepts-any-type-of-seqstarts", "The type of seqstarts is not checked.")
        .only_dynamic(),
    input::<4, TYPE>("inputs.types", "accepts-any-type-of-kvstarts", "The type of kvstarts is not checked.")
        .only_dynamic(),
    input::<5, TYPE>("inputs.types", "accepts-any-type-of-cachestarts", "The type of cachestarts is not checked.")
        .only_dynamic(),
    input::<6, TYPE>("inputs.types", "accepts-any-type-of-start-pos", "The type of start_pos is not checked."),
    input::<7, TYPE>("inputs.types", "accepts-any-type-of-max-seqlen", "The type of max_seqlen is not checked.")
        .only_dynamic(),
    input::<8, TYPE>("inputs.types", "accepts-any-type-of-max-kvlen", "The type of max_kvlen is not checked.")
        .only_dynamic(),
    Mistake::dynamic(
        "inputs.types",
        "accepts-any-type-of-indices",
        "The types of seqstarts, kvstarts, cachestarts, start_pos, max_seqlen and max_kvlen are not checked: they are \
         int64.",
        |behavior| {
            behavior.verdict =
                |refusal| accepted(refusal.kind == "type_mismatch" && refusal.message.ends_with("int64"));
        },
    ),
];

/// An attribute whose range is not checked.
const fn attribute<const ATTRIBUTE: usize>(name: &'static str, about: &'static str) -> Mistake {
    Mistake::new("attributes.ranges", name, about, |behavior| {
        behavior.verdict = |refusal| accepted(names(refusal, ATTRIBUTES[ATTRIBUTE]));
    })
}

/// An input of which a property is not checked.
const fn input<const INPUT: usize, const PROPERTY: usize>(
    rule: &'static str,
    name: &'static str,
    about: &'static str,
) -> Mistake {
    Mistake::new(rule, name, about, |behavior| {
        behavior.verdict = |refusal| accepted(refusal.kind == PROPERTIES[PROPERTY] && refusal.is_of(INPUTS[INPUT]));
    })
}

/// Whether it is this attribute that is out of range.
pub(super) fn names(refusal: &Refusal, attribute: &str) -> bool {
    refusal.kind == "attribute_out_of_range" && refusal.message.split(' ').nth(1) == Some(attribute)
}

pub(super) fn accepted(accepted: bool) -> Verdict {
    if accepted { Verdict::Accepted } else { Verdict::Refused }
}

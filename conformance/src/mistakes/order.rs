//! Mistakes of order, and of what is kept: which stores and loads a call makes, and what they read.

use super::mistake::Mistake;
use crate::oracle::{CurrentTokens, Pass, Sources};

pub(super) const MISTAKES: &[Mistake] = &[
    Mistake::dynamic(
        "order.shared-slots",
        "sequence-by-sequence",
        "Each sequence is stored and loaded before the next: store those of all first, they may share slots.",
        |behavior| behavior.order = |batch| (0..batch).flat_map(|b| [Pass::Store(b), Pass::Load(b)]).collect(),
    ),
    Mistake::new(
        "order.stores-first",
        "loads-before-stores",
        "Tokens are loaded before the call's own are stored: store first.",
        |behavior| behavior.sources = Sources { cache: false, scale: false },
    ),
    Mistake::new(
        "order.stores-first",
        "scale-stale-in-loads",
        "Loads use the scales of before the call: load them after the stores.",
        |behavior| behavior.sources = Sources { cache: true, scale: false },
    ),
    Mistake::new(
        "dequantizing.rounded-to-t3",
        "codes-not-dequantized",
        "Codes are given back as they are: multiply them with their scales.",
        |behavior| behavior.arithmetic.value = |_, code, _| code.into(),
    ),
    Mistake::new(
        "scale.rounded-to-t3",
        "scale-stale",
        "Codes are stored, but their scales are not: current tokens keep the scales of what was in their slots.",
        |behavior| behavior.arithmetic.stored_scale = |_, steps| steps.old_scale,
    ),
    Mistake::new(
        "quantizing.step-of-t1",
        "scale-stale-in-codes",
        "Codes are made with the scale of what was in their slot before: make them with the group's own step.",
        |behavior| behavior.arithmetic.divisor = |_, steps| steps.old_scale,
    ),
    Mistake::new(
        "scale.rounded-to-t3",
        "scale-not-written",
        "scale is as it was after the call, though the outputs are right: write it where the next call finds it.",
        |behavior| behavior.keeps = Sources { cache: true, scale: false },
    ),
    Mistake::new(
        "order.stores-first",
        "cache-not-written",
        "cache and scale are as they were after the call, though the outputs are right: write them in place, not a \
         copy.",
        |behavior| behavior.keeps = Sources { cache: false, scale: false },
    ),
    Mistake::new(
        "order.stores-first",
        "outputs-from-inputs",
        "Current tokens are given back as they came in: load them from the cache, with its precision.",
        |behavior| behavior.current_tokens = CurrentTokens::Inputs,
    ),
    Mistake::new(
        "untouched-slots",
        "cache-cleared",
        "cache and scale are cleared before tokens are stored: what is not stored to keeps its bytes.",
        |behavior| behavior.clears = true,
    )
    .static_rule("untouched-positions"),
    Mistake::new("inputs.packed", "only-first-sequence", "Only the first sequence is stored and loaded.", |behavior| {
        behavior.order = |batch| [Pass::Store(0), Pass::Load(0)].into_iter().filter(|_| batch > 0).collect();
    })
    .static_rule("stored-positions"),
    Mistake::new(
        "inputs.packed",
        "only-first-sequence-stored",
        "The current tokens of the first sequence alone are stored: those of all are.",
        |behavior| {
            behavior.order = |batch| (0..batch.min(1)).map(Pass::Store).chain((0..batch).map(Pass::Load)).collect();
        },
    )
    .static_rule("stored-positions"),
    Mistake::new(
        "inputs.packed",
        "last-sequence-missing",
        "The last sequence is neither stored nor loaded: a batch has one sequence less than seqstarts has entries.",
        |behavior| {
            behavior.order = |batch| {
                let but_last = 0..batch.saturating_sub(1);
                but_last.clone().map(Pass::Store).chain(but_last.map(Pass::Load)).collect()
            };
        },
    )
    .static_rule("stored-positions"),
];

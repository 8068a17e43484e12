//! The decisions of the specification, one function or value each.

use crate::oracle::arithmetic::Arithmetic;
use crate::oracle::attention::decisions::Attention;
use crate::oracle::dynamic::Dynamic;
use crate::oracle::plan::Place;
use crate::oracle::refusal::Refusal;
use crate::oracle::static_batching::StaticBatching;

/// What the oracle does. [`Behavior::default`] is the specification; a mistake changes one field of it.
#[derive(Debug, Clone)]
pub struct Behavior {
    /// The arithmetic of a group.
    pub arithmetic: Arithmetic,
    /// Where dynamic batching has tokens, and what it accepts beyond the rules or refuses against them.
    pub dynamic: Dynamic,
    /// The same of static batching.
    pub static_batching: StaticBatching,
    /// How the attention operators attend.
    pub attention: Attention,

    /// What becomes of an attribute that is read: 64 bits stay 64 bits.
    pub attribute: fn(i64) -> i64,
    /// What becomes of an index that is read: 64 bits stay 64 bits.
    pub index: fn(i64) -> i64,

    /// The stores and loads of a call, in order: all stores, then all loads.
    pub order: fn(batch: usize) -> Vec<Pass>,
    /// The layers that a token is stored to, of `num_layer`: `layer_idx`.
    pub layers_stored: fn(layer_idx: usize, num_layer: usize) -> Vec<usize>,
    /// The layer that tokens are loaded from: `layer_idx`.
    pub layer_loaded: fn(layer_idx: usize) -> usize,
    /// Where keys (0) and values (1) lie along the axis of length two.
    pub kv: [usize; 2],
    /// The same in `scale`, where scales are stored.
    pub scale_kv: [usize; 2],
    /// The same where they are loaded.
    pub loaded_scale_kv: [usize; 2],
    /// Of which of keys and values the steps are that codes are made with: key (0), value (1).
    pub step_source: [usize; 2],
    /// Whether the scales of keys (0) and of values (1) are stored: both.
    pub stores_scale: [bool; 2],
    /// Of which of keys and values the stored scales are: key (0), value (1).
    pub scale_source: [usize; 2],
    /// Of which head the scales are that are stored for a head: its own.
    pub scale_source_head: fn(h: usize) -> usize,
    /// Which head's scales a head is loaded with: its own.
    pub loaded_scale_head: fn(h: usize) -> usize,
    /// Where the scales of a current token are stored: in its own slot. `first` is that of its sequence's first one.
    pub scale_place: fn(own: Place, first: Place) -> Place,
    /// Whose scales a token is loaded with: its own. `first` is where the first token of its sequence is.
    pub loaded_scale_place: fn(own: Place, first: Place) -> Place,
    /// The row of `current_key` and `current_value` whose scales are stored for a row: its own. `first` is that of its
    /// sequence's first one.
    pub scale_source_row: fn(own: usize, first: usize) -> usize,
    /// The layer that scales are stored for: that of the tokens.
    pub scale_layer: fn(layer: usize) -> usize,
    /// The layer whose scales tokens are loaded with: their own.
    pub loaded_scale_layer: fn(layer: usize) -> usize,
    /// What is stored as key and as value: `current_key` (0), `current_value` (1), nothing.
    pub stored: [Option<usize>; 2],
    /// How many elements of a head are stored, from the first: all. The others keep their bytes.
    pub stored_elements: fn(head_dim: usize) -> usize,
    /// The same of loads. The others stay zero.
    pub loaded_elements: fn(head_dim: usize) -> usize,
    /// Where a token's head lies in `current_key` (0) or `current_value` (1), in heads: token after token.
    pub current_head: fn(key_or_value: usize, row: usize, h: usize, rows: usize, num_heads: usize) -> usize,
    /// The same of `key` and `value` alike.
    pub output_head: fn(row: usize, h: usize, rows: usize, num_heads: usize) -> usize,
    /// Which of the two goes where: `key` gets what is loaded as key (0), `value` as value (1).
    pub outputs: [usize; 2],
    /// The cache head of an output head of `key` (0) or `value` (1); without one the output head stays zero.
    pub cache_head: fn(key_or_value: usize, output_head: usize, num_heads: usize, num_repeat: usize) -> Option<usize>,
    /// How many heads the outputs have.
    pub output_heads: fn(num_heads: usize, num_repeat: usize) -> usize,
    /// Whether elements are repeated, each beside its repetitions, in the place of heads: never.
    pub repeats_elements: bool,
    /// Where the outputs of current tokens come from: the cache, like those of past tokens.
    pub current_tokens: CurrentTokens,
    /// What loads read: cache and scale as the call's stores left them.
    pub sources: Sources,
    /// Whether cache and scale are cleared before the call stores to them: never.
    pub clears: bool,
    /// Which of cache and scale are kept after the call: both.
    pub keeps: Sources,

    /// What a head outside of the cache is. A legal call has none, but a wrongly addressed one may.
    pub outside: Outside,
    /// What is done with a call that breaks a rule: it is refused.
    pub verdict: fn(&Refusal) -> Verdict,
}

/// A part of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// Stores the current tokens of a sequence.
    Store(usize),
    /// Loads all tokens of a sequence.
    Load(usize),
}

/// Where the outputs of current tokens come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CurrentTokens {
    /// The cache.
    Cache,
    /// The inputs, whose precision the cache does not have.
    Inputs,
    /// The cache's codes, multiplied by the step before it was rounded to T3.
    UnroundedScale,
    /// The same, and the product is not rounded to T3 either.
    UnroundedProduct,
}

/// For cache and for scale, whether it is that of after a call's stores; else it is that of before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "described above")]
pub struct Sources {
    pub cache: bool,
    pub scale: bool,
}

/// What an access outside of the cache does, which differs by language and by luck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outside {
    /// The call ends there, with an error or a crash.
    Fails,
    /// It reaches whatever lies at that distance in the tensor; outside of the tensor the call ends.
    Flat,
    /// A negative slot counts from the last, as in Python; beyond the last the call ends.
    FromEnd,
    /// The slots follow each other in a ring.
    Wrapped,
    /// The nearest slot takes its place.
    Clamped,
    /// Nothing is stored, and zeros are loaded.
    Skipped,
}

/// What is done with an illegal call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is refused, and nothing is changed.
    Refused,
    /// It is refused, but after cache or scale has been changed.
    RefusedLate,
    /// It is made. What an illegal call does is not defined.
    Accepted,
}

impl Default for Behavior {
    fn default() -> Self {
        Self {
            arithmetic: Arithmetic::default(),
            dynamic: Dynamic::default(),
            static_batching: StaticBatching::default(),
            attention: Attention::default(),
            attribute: |value| value,
            index: |index| index,
            order: |batch| (0..batch).map(Pass::Store).chain((0..batch).map(Pass::Load)).collect(),
            layers_stored: |layer_idx, _| vec![layer_idx],
            layer_loaded: |layer_idx| layer_idx,
            kv: [0, 1],
            scale_kv: [0, 1],
            loaded_scale_kv: [0, 1],
            step_source: [0, 1],
            stores_scale: [true, true],
            scale_source: [0, 1],
            scale_source_head: |h| h,
            loaded_scale_head: |h| h,
            scale_place: |own, _| own,
            loaded_scale_place: |own, _| own,
            scale_source_row: |own, _| own,
            scale_layer: |layer| layer,
            loaded_scale_layer: |layer| layer,
            stored: [Some(0), Some(1)],
            stored_elements: |head_dim| head_dim,
            loaded_elements: |head_dim| head_dim,
            current_head: |_, row, h, _, num_heads| row * num_heads + h,
            output_head: |row, h, _, num_heads| row * num_heads + h,
            outputs: [0, 1],
            cache_head: |_, output_head, _, num_repeat| Some(output_head / num_repeat),
            output_heads: |num_heads, num_repeat| num_heads * num_repeat,
            repeats_elements: false,
            current_tokens: CurrentTokens::Cache,
            sources: Sources { cache: true, scale: true },
            clears: false,
            keeps: Sources { cache: true, scale: true },
            outside: Outside::Fails,
            verdict: |_| Verdict::Refused,
        }
    }
}

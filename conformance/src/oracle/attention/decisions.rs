//! The decisions of attention, as those of the cache are: the first value is the specification's.

use serde::Deserialize;

use crate::oracle::decisions::{Elements, decisions};

/// How the oracle attends.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "their types say what they decide")]
pub struct Attention {
    /// The number of those decisions that have one, like "the first n".
    pub n: usize,
    pub queries: Queries,
    pub keys: Keys,
    pub key_head: KeyHead,
    /// The elements of a head that inner products are taken over.
    pub product_elements: Elements,
    /// The elements of a head that the output has. The others are zeros.
    pub value_elements: Elements,
    pub factor: Factor,
    pub causal_sequences: CausalSequences,
    pub sees: Sees,
    pub alibi_sequences: AlibiSequences,
    pub slopes: Slopes,
    pub bias: Bias,
    pub mask: Mask,
    pub score: Score,
    pub softmax: Softmax,
    /// Whether the value of a key with score -inf is multiplied with its weight.
    pub adds_hidden_values: bool,
    pub without_keys: WithoutKeys,
    /// Whether heads come before tokens in the memory of the output.
    pub output_heads_first: bool,
    pub output_shape: OutputShape,
    /// Whether the output is float32, whatever T1 is.
    pub output_of_float32: bool,
}

decisions! {
    /// The rows of `query`, and of `attn_output`, that are a sequence's.
    Queries { Own, LastOfDecoding, LastSequenceMissing }
    /// The keys that a sequence's queries are scored with.
    Keys { Own, LastMissing, PastAlone, CurrentAlone, FirstSequence, AllSequences, Padded, WholeBlocks }
    /// The key head of a query head.
    KeyHead { Grouped, Interleaved, Own, First }
    /// What an inner product is divided by: the square root of head_dim.
    Factor { RootOfHeadDim, One, HeadDim, AllHeads, PaddedHeadDim }
    /// The sequences that have the causal mask: those of is_causal with several queries, but for the first
    /// decoding_batches.
    CausalSequences { Decided, None, All, OfOneQueryToo, DecodingIgnored, WithoutMask }
    /// Whether, with the causal mask, a query sees the key at a position.
    Sees { UpToOwn, BeforeOwn, NextToo, AtStart, NotPast, OffsetOfBounds, OffsetNotNegative }
    /// The sequences that have ALiBi's mask: all, with is_alibi.
    AlibiSequences { Flagged, None, WithCausal, NotDecoding, WithoutMask }
    /// ALiBi's slopes: those of the largest power of two, then every second one of its double.
    Slopes { Right, AnyNumber, Continued, NotEverySecond, NextPower, FromOne }
    /// What ALiBi adds: the slope times the distance.
    Bias { Right, Sign, NotCausal, Symmetric, AtStart }
    /// The element of `attn_mask` for a query and a key.
    Mask {
        Right, Ignored, NotWithAlibi, FirstPlane, PlaneOfKeyHead, ColumnsFromZero, ColumnsAtSeqstarts, RowsFromZero,
        FirstRow, BlockAtCorner, StrideOfKeys, StrideOfMaxKvlen,
    }
    /// How a score is made of an inner product and masks.
    Score {
        Right, MaskOnlyHides, MaskDoesNotHide, MaskMultiplied, NonzeroSees, NonzeroHides, MaskBeforeScaling,
        AlibiBeforeScaling, Added, Capped, MasksFinite, MasksMinusN,
    }
    /// The weights of scores: their softmax over the keys. Streaming ones go over blocks of n keys.
    Softmax {
        Right, WithoutMaximum, BaseTwo, TimesLog2e, NotNormalized, PlusOne, ValuesNotRescaled, SumNotRescaled,
        NothingRescaled,
    }
    /// What becomes of a query that sees no key: zeros.
    WithoutKeys { Zeros, NanOfHidden, Nan }
    /// The shape of the output.
    OutputShape { Right, HeadsFirst, Merged }
}

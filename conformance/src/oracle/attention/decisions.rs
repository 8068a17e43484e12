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
    pub inputs: Inputs,
    pub queries: Queries,
    pub keys: Keys,
    pub key_head: KeyHead,
    /// The value head of a query head, where it is not that of its key.
    pub value_head: Option<KeyHead>,
    /// The elements of a head that inner products are taken over.
    pub product_elements: Elements,
    /// The elements of a head that the output has. The others are zeros.
    pub value_elements: Elements,
    pub factor: Factor,
    pub causal_sequences: CausalSequences,
    pub sees: Sees,
    /// Whether a query sees the last n keys up to its own alone.
    pub window: bool,
    pub alibi_sequences: AlibiSequences,
    pub slopes: Slopes,
    pub bias: Bias,
    pub mask: Mask,
    pub score: Score,
    pub softmax: Softmax,
    /// Whether the value of a key with score -inf is multiplied with its weight.
    pub adds_hidden_values: bool,
    pub without_keys: WithoutKeys,
    pub sums: Sums,
    pub output_heads: OutputHeads,
    pub output_shape: OutputShape,
    pub output: Output,
}

decisions! {
    /// What queries, keys and values are rounded to when they are read.
    Inputs { T1, Float16 }
    /// The rows of `query`, and of `attn_output`, that are a sequence's.
    Queries { Own, LastOfDecoding, FirstOfDecoding, FirstSequence, LastSequenceMissing, EqualLengths, AtKvstarts }
    /// The keys that a sequence's queries are scored with.
    Keys {
        Own, LastMissing, OneMore, PastAlone, CurrentAlone, FirstSequence, AtSeqstarts, EqualLengths, AllSequences, Padded, WholeBlocks,
    }
    /// The key head of a query head.
    KeyHead { Grouped, Interleaved, Own, ByNumberOfKeyHeads, First }
    /// What an inner product is divided by: the square root of head_dim.
    Factor { RootOfHeadDim, One, HeadDim, Inverse, AllHeads, AllKeyHeads, PaddedHeadDim, RootOfN }
    /// The sequences that have the causal mask: those of is_causal with several queries, but for the first
    /// decoding_batches.
    CausalSequences {
        Decided, None, All, OfOneQueryToo, DecodingIgnored, OneMore, OneLess, DecodingAsFlag,
        WithoutMask,
    }
    /// Whether, with the causal mask, a query sees the key at a position.
    Sees {
        UpToOwn, BeforeOwn, NextToo, AtStart, OnlyWithoutPast, NotPast, OffsetOfBounds, OffsetOfMaxKvlen,
        OffsetOfMaxSeqlen, OffsetNotNegative, PackedRows, OwnSequenceAlone,
    }
    /// The sequences that have ALiBi's mask: all, with is_alibi.
    AlibiSequences { Flagged, None, WithCausal, NotDecoding, WithoutMask }
    /// ALiBi's slopes: those of the largest power of two, then every second one of its double.
    Slopes {
        Right, AnyNumber, Continued, NotEverySecond, NextPower, FromOne, Reversed,
        OfKeyHeads, ByKeyHead, Float16,
    }
    /// What ALiBi adds: the slope times the distance.
    Bias {
        Right, NoDistance, Sign, NotCausal, TimesLog2e, Squared, Float16, Symmetric, AtStart,
        OffsetOfBounds, OffsetOfMaxKvlen,
    }
    /// The element of `attn_mask` for a query and a key.
    Mask {
        Right, Ignored, NotWithAlibi, NotWithCausal, NotForDecoding, FirstPlane, PlaneOfKeyHead, PlanesTiled,
        PlanesInMiddle, ColumnsFromZero, ColumnsAtSeqstarts, ColumnAfter, ColumnBefore, RowsFromZero,
        RowsAtKvstarts, FirstRow, BlockAtCorner, StrideOfKeys, StrideOfOwnKeys, StrideOfMaxKvlen,
        OwnSequence, PackedBlocks, Transposed, PlanesOfKeys,
    }
    /// How a score is made of an inner product and masks.
    Score {
        Right, MaskOnlyHides, MaskNanZero, MaskNanHides, MaskDoesNotHide, MaskMultiplied, NonzeroSees, NonzeroHides,
        HidesBelow, NeverPositive, MaskLn2, MasksLn2, MaskSubtracted, MaskBeforeScaling,
        MasksBeforeScaling, AlibiBeforeScaling, MaskTwice, Added, Clipped, Capped, NoProduct, CausalFinite,
        CausalMinusN, MasksFinite, MasksMinusN,
    }
    /// The weights of scores: their softmax over the keys. Streaming ones go over blocks of n keys.
    Softmax {
        Right, WithoutMaximum, BaseTwo, TimesLog2e, OverQueries, OverHeads, NotNormalized, PlusOne, SummedInFloat16,
        Missing, Float16, ValuesNotRescaled, SumNotRescaled, NothingRescaled,
    }
    /// What becomes of a query that sees no key: zeros.
    WithoutKeys { Zeros, NanOfHidden, Nan }
    /// What sums are narrower than float32.
    Sums { Float32, ValuesOfFloat16, ProductsOfFloat16, AllOfFloat16, AllInFloat16 }
    /// Where a token's head lies in the output.
    OutputHeads { TokensFirst, HeadsFirst, ByGroup }
    /// The shape of the output.
    OutputShape { Right, HeadsFirst, Merged }
    /// The type of the output, and what becomes of its elements: T1.
    Output { T1, Float32, Saturated, Truncated, ThroughFloat16 }
}

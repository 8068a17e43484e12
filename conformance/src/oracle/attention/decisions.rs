//! The decisions of attention, as those of the cache are: the first value is the specification's.

use crate::oracle::decisions::{Elements, decisions};

decisions! {
    /// How the oracle attends.
    Attention {
        [
            /// The number of those decisions that have one, like "the first n".
            n: usize,
            /// Whether the value of a key with score -inf is multiplied with its weight.
            adds_hidden_values: bool,
            /// Whether heads come before tokens in the memory of the output.
            output_heads_first: bool,
            /// Whether the output is float32, whatever T1 is.
            output_of_float32: bool,
            /// The elements of a head that inner products are taken over.
            product_elements: Elements,
            /// The elements of a head that the output has. The others are zeros.
            value_elements: Elements,
        ]

        /// The rows of `query`, and of `attn_output`, that are a sequence's.
        queries: Queries { Own, LastOfDecoding, LastSequenceMissing }
        /// The keys that a sequence's queries are scored with.
        keys: Keys { Own, LastMissing, PastAlone, CurrentAlone, FirstSequence, AllSequences, Padded, WholeBlocks }
        /// The key head of a query head.
        key_head: KeyHead { Grouped, Interleaved, Own, First }
        /// What an inner product is divided by: the square root of head_dim.
        factor: Factor { RootOfHeadDim, One, HeadDim, AllHeads, PaddedHeadDim }
        /// The sequences that have the causal mask: those of is_causal with several queries, but for the first
        /// decoding_batches.
        causal_sequences: CausalSequences { Decided, None, All, OfOneQueryToo, DecodingIgnored, WithoutMask }
        /// Whether, with the causal mask, a query sees the key at a position.
        sees: Sees { UpToOwn, BeforeOwn, NextToo, AtStart, NotPast, OffsetOfBounds, OffsetNotNegative }
        /// The sequences that have ALiBi's mask: all, with is_alibi.
        alibi_sequences: AlibiSequences { Flagged, None, WithCausal, NotDecoding, WithoutMask }
        /// ALiBi's slopes: those of the largest power of two, then every second one of its double.
        slopes: Slopes { Right, AnyNumber, Continued, NotEverySecond, NextPower, FromOne }
        /// What ALiBi adds: the slope times the distance.
        bias: Bias { Right, Sign, NotCausal, Symmetric, AtStart }
        /// The element of `attn_mask` for a query and a key.
        mask: Mask {
            Right, Ignored, NotWithAlibi, FirstPlane, PlaneOfKeyHead, ColumnsFromZero, ColumnsAtSeqstarts, RowsFromZero,
            FirstRow, BlockAtCorner, StrideOfKeys, StrideOfMaxKvlen,
        }
        /// How a score is made of an inner product and masks.
        score: Score {
            Right, MaskOnlyHides, MaskDoesNotHide, MaskMultiplied, NonzeroSees, NonzeroHides, MaskBeforeScaling,
            AlibiBeforeScaling, Added, Capped, MasksFinite, MasksMinusN,
        }
        /// The weights of scores: their softmax over the keys. Streaming ones go over blocks of n keys.
        softmax: Softmax {
            Right, WithoutMaximum, BaseTwo, TimesLog2e, NotNormalized, PlusOne, ValuesNotRescaled, SumNotRescaled,
            NothingRescaled,
        }
        /// What becomes of a query that sees no key: zeros.
        without_keys: WithoutKeys { Zeros, NanOfHidden, Nan }
        /// The shape of the output.
        output_shape: OutputShape { Right, HeadsFirst, Merged }
    }
}

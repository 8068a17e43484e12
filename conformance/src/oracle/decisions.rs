//! The decisions of the specification as plain data. The first value of each is the specification's; the others are
//! what implementations do in its place. What a value does is where it is used, beside the right one.

use serde::Deserialize;

/// What the oracle does. [`Behavior::default`] is the specification; a [mistake](crate::mistakes) is another value of
/// one or two decisions.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "their types say what they decide")]
pub struct Behavior {
    /// The number of those decisions that have one, like "the first n".
    pub n: usize,

    pub rounding: Rounding,
    pub quotient: Quotient,
    pub divisor: Divisor,
    /// What amax / qmax, the least scale and quotients are rounded to.
    pub step_width: Width,
    pub least_width: Width,
    pub quotient_width: Width,
    pub least: Least,
    pub step: Step,
    pub qmax: Qmax,
    pub clamp: Clamp,
    pub special: SpecialCode,
    pub amax: Amax,
    pub shares: Shares,
    /// The group of an element where it is stored, and where it is loaded.
    pub group: GroupOf,
    pub loaded_group: GroupOf,
    pub stored_scale: StoredScale,
    pub value: ValueOf,
    pub conversion: Conversion,
    /// Values of one type are copied as numbers, not as bytes.
    pub copies_numbers: bool,
    /// What becomes of a value of `current_key` or `current_value`, and of one of `key` or `value`.
    pub current: Change,
    pub output: Change,
    pub nibbles: Nibbles,
    pub loaded_nibbles: Nibbles,
    pub nibble_store: NibbleStore,
    pub code_bits: CodeBits,
    pub loaded_code_bits: CodeBits,

    pub layout: Layout,
    pub scale_layout: Layout,
    pub stored_layers: Layers,
    pub loaded_layer: Layers,
    pub key_value_axis: KeyValueAxis,
    pub stored: StoredParts,
    pub outputs: Outputs,
    pub scales: Scales,
    pub stored_elements: Elements,
    pub loaded_elements: Elements,
    pub current_heads: HeadAxes,
    pub output_heads: HeadAxes,
    pub repeats: Repeats,

    pub slots: Slots,
    /// The slots of stores, where they are others than those of loads.
    pub stored_slots: Option<Slots>,
    pub stored_tokens: StoredTokens,
    pub current_rows: CurrentRows,
    pub position: Position,
    pub loaded_tokens: LoadedTokens,
    pub output_rows: OutputRows,
    pub order: Order,
    pub loads_from: LoadsFrom,
    pub current_tokens: CurrentTokens,
    pub keeps: Keeps,

    /// What a head outside of the cache is.
    #[serde(skip)]
    pub outside: Outside,
}

/// Declares decisions: the first value is the specification's. In YAML they are in kebab case.
macro_rules! decisions {
    ($($(#[$doc:meta])* $Name:ident { $First:ident $(, $Other:ident)* $(,)? })*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
        #[serde(rename_all = "kebab-case")]
        #[allow(missing_docs, reason = "the table of mistakes has a sentence on each")]
        pub enum $Name { #[default] $First, $($Other),* }
    )* };
}
pub(crate) use decisions;

decisions! {
    /// How a quotient becomes an integer.
    Rounding {
        TiesToEven, HalfAway, HalfAwayByAddition, HalfUp, HalfUpInFloat32, HalfTowardZero, HalfDown, Truncation, Down, Up,
    }
    /// How `x` is divided.
    Quotient { Division, Reciprocal, ReciprocalInFloat32, QmaxOverAmax, QmaxBeforeAmax }
    /// What it is divided by.
    Divisor { Step, StoredScale, OldScale }
    /// The type that a number is rounded to.
    Width { T1, Float16, Float32, Float64 }
    /// The least scale: 1e-5.
    Least { Floor, Missing, MissingButForZeros, Added, OfAmax, ForZerosAlone, SwallowsNan, PowerOfTen }
    /// The step between codes: amax / qmax.
    Step { Quotient, Reciprocal, FullRange, PowerOfTwo, Amax }
    /// The largest code.
    Qmax { Symmetric, EightOfInt4, PowerOfTwo, Always127 }
    /// What codes are clamped to.
    Clamp { Symmetric, LowestToo, Qmax }
    /// The code of a quotient that is NaN, or of an infinity.
    SpecialCode { Zero, NanLowest, NanClampedLow, NanClampedHigh, InfinityLargest }
    /// The largest magnitude of a group; NaN if one of its values is.
    Amax {
        Largest, Signed, Mean, RootMeanSquare, HalfRange, First, LastMissing,
        WholeMultiples, NanSkipped, FiniteAlone, InfinitySkipped,
    }
    /// Which values have the same scale: those of a group of one head of one token, of the key or of the value.
    Shares { Group, Head, Heads, Token, KeyAndValue, Tokens, Tensor, TokensBefore, GroupsBefore }
    /// The group of an element of a head: neighbors share one.
    GroupOf { Neighbors, Strided, OfEight, First }
    /// What is stored as scale: the step, rounded to T3.
    StoredScale { Step, Truncated, ThroughFloat16, Saturated, DenormalsFlushed, Amax, Reciprocal, Old }
    /// The value of a code: the product with its scale, rounded to T3 and then to T1.
    ValueOf {
        Product, NotRoundedToT3, ScaleOfT1, OfFloat16, ThroughFloat16, Code, Divided, LeastScale, ScaleOverQmax,
        LowestClamped,
    }
    /// How float32 becomes float16, and what of denormals: to nearest, ties to even.
    Conversion { Nearest, Truncated, HalfAway, Saturated, Float16Flushed, Float32Flushed }
    /// What becomes of a value that is moved: nothing.
    Change {
        Nothing, NanZeroed, InfinityReplaced, NonFiniteReplaced, NonFiniteZeroed, NanCanonical, DenormalsZeroed,
        NegativeZeroLost, ThroughFloat16,
    }
    /// Which nibble an element of int4 is in: the low one comes first.
    Nibbles { LowFirst, HighFirst, InHalves }
    /// What a nibble that is stored does to the other one of its byte: nothing.
    NibbleStore { Alone, HighLost, LowLost, LowSigned, Joined }
    /// The bits of a code: two's complement.
    CodeBits { TwosComplement, Unsigned, HighUnsigned, LowUnsigned, Plus8, SignAndMagnitude, Plus128, UnsignedBytes }

    /// The layout of `cache` or `scale`: that of the attribute. Swapped ones are those of the two digits of n.
    Layout { OfAttribute, First, Swapped }
    /// The layers that are stored to, or loaded from: layer_idx.
    Layers { Own, First, Before, All }
    /// Where keys and values are along the axis of length 2.
    KeyValueAxis { InOrder, Swapped, AllFirst }
    /// What is stored as key and as value.
    StoredParts { Both, KeysAlone, KeyTwice, Neither }
    /// What is given back as key and as value.
    Outputs { InOrder, Swapped, KeyTwice }
    /// Whose scales are stored, and loaded, where: each group of each token's own, beside it.
    Scales {
        Own, FirstHeadStored, FirstHeadLoaded, NextSlotLoaded, FirstTokenLoaded, FirstLayer, FirstLayerLoaded,
        KeyForValue, KeyLoadedForValue, ValuesNotStored, ValueOverKey,
    }
    /// The elements of a head that are moved: all.
    Elements { All, First, WholeMultiples }
    /// The order of the axes of tokens and heads: tokens first.
    HeadAxes { TokensFirst, HeadsFirst, HeadsFirstOfKeys, HeadsFirstOfValues }
    /// The repetitions of a cache head in the outputs: side by side.
    Repeats {
        Beside, FirstAlone, LastMissing, Interleaved, InterleavedKeys, InterleavedValues,
        OfElements, Ignored,
    }

    /// The slot of a token: by cache_mode, cachestarts and page_size.
    Slots {
        ByMode, FirstSequence, FirstCachestarts, CachestartsIgnored, CachestartsAsKvstarts, PagesTimesSize,
        TableTransposed, TableAsOffsets, PagesOfFirstSequence, FirstPageAlone, PageAlone, PageSizeIgnored,
        PagesAlignedDown, PageSizeRoundedDown, PageOffsetMasked,
    }
    /// How many current tokens of a sequence are stored: all.
    StoredTokens { All, EqualLengths, First, LastAlone, LastMissing, MaxSeqlen }
    /// The first row of a sequence in current_key and current_value.
    CurrentRows { Seqstarts, Zero, Kvstarts, Padded }
    /// The position of a sequence's first current token: start_pos.
    Position { StartPos, Zero, OfFirstSequence, OneFurther }
    /// The tokens of a sequence that are loaded: all.
    LoadedTokens { All, First, WholeMultiples, CurrentAlone, PastAlone, LastMissing, FullPages, NotOfIdle, MaxKvlen }
    /// The first row of a sequence in key and value.
    OutputRows { Kvstarts, Seqstarts, Padded, Zero }
    /// The stores and loads of a call, in order: all stores, then all loads.
    Order { StoresFirst, BySequence, FirstSequence, LastMissing }
    /// What loads read: cache and scale as the call's stores left them.
    LoadsFrom { After, Before, ScaleBefore }
    /// Where the outputs of current tokens come from.
    CurrentTokens { Cache, Inputs, UnroundedScale, UnroundedProduct }
    /// What is kept after the call: cache and scale.
    Keeps { Both, CacheAlone, Neither }

    /// What an access outside of the cache does, which differs by language and by luck: the call ends; it reaches what
    /// lies there in the tensor; a negative slot counts from the last; the nearest slot takes its place; nothing is
    /// stored, and zeros are loaded.
    Outside { Fails, Flat, FromEnd, Clamped, Skipped }
}

impl KeyValueAxis {
    /// Where the key (0) or the value (1) is.
    pub(super) const fn of(self, key_or_value: usize) -> usize {
        match self {
            Self::InOrder => key_or_value,
            Self::Swapped => 1 - key_or_value,
            Self::AllFirst => 0,
        }
    }
}

impl StoredParts {
    /// Which of `current_key` (0) and `current_value` (1) is stored as key (0) or value (1).
    pub(super) const fn source(self, key_or_value: usize) -> Option<usize> {
        match (self, key_or_value) {
            (Self::Neither, _) | (Self::KeysAlone, 1) => None,
            (Self::KeyTwice, _) => Some(0),
            (Self::Both | Self::KeysAlone, own) => Some(own),
        }
    }
}

impl Outputs {
    /// Which of key (0) and value (1) is the output `key` (0) or `value` (1).
    pub(super) const fn source(self, output: usize) -> usize {
        match self {
            Self::InOrder => output,
            Self::Swapped => 1 - output,
            Self::KeyTwice => 0,
        }
    }
}

impl Elements {
    /// How many of the elements, from the first.
    pub(super) fn count(self, all: usize, n: usize) -> usize {
        match self {
            Self::All => all,
            Self::First => all.min(n),
            Self::WholeMultiples => all / n * n,
        }
    }
}

impl Layers {
    /// The layers.
    pub(super) fn of(self, layer_idx: usize, num_layer: usize) -> std::ops::Range<usize> {
        let first = match self {
            Self::Own => layer_idx,
            Self::First => 0,
            Self::Before => layer_idx.saturating_sub(1),
            Self::All => return 0..num_layer,
        };
        first..first + 1
    }
}

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
    /// Codes are made with the scale after it was rounded to T3.
    pub divides_by_scale: bool,
    /// What amax / qmax, the least scale and quotients are rounded to.
    pub step_width: Width,
    pub least_width: Width,
    pub quotient_width: Width,
    pub least: Least,
    pub step: Step,
    pub qmax: Qmax,
    pub clamp: Clamp,
    pub nan_code: NanCode,
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
    pub stored_layer: Layer,
    pub loaded_layer: Layer,
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
    pub stored_tokens: StoredTokens,
    pub current_rows: CurrentRows,
    pub position: Position,
    pub loaded_tokens: LoadedTokens,
    pub output_rows: OutputRows,
    pub order: Order,
    pub loads_from: LoadsFrom,
    /// The outputs of current tokens are copied from the inputs.
    pub current_from_inputs: bool,
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
    Rounding { TiesToEven, HalfAway, HalfAwayByAddition, HalfUp, Truncation, Down }
    /// How `x` is divided.
    Quotient { Division, Reciprocal, QmaxOverAmax }
    /// The type that a number is rounded to.
    Width { T1, Float16, Float32, Float64 }
    /// The least scale: 1e-5.
    Least { Floor, Missing, Added, OfAmax, ForZerosAlone, SwallowsNan }
    /// The step between codes: amax / qmax.
    Step { Quotient, Reciprocal, FullRange }
    /// The largest code.
    Qmax { Symmetric, PowerOfTwo, Always127 }
    /// What codes are clamped to.
    Clamp { Symmetric, LowestToo, Qmax }
    /// The code of a quotient that is NaN.
    NanCode { Zero, Lowest, ClampedLow, ClampedHigh }
    /// The largest magnitude of a group; NaN if one of its values is.
    Amax { Largest, Signed, WholeMultiples, NanSkipped, FiniteAlone }
    /// Which values have the same scale: those of a group of one head of one token, of the key or of the value.
    Shares { Group, Head, Token, KeyAndValue }
    /// The group of an element of a head: neighbors share one.
    GroupOf { Neighbors, Strided, OfEight, First }
    /// What is stored as scale: the step, rounded to T3.
    StoredScale { Step, Truncated, ThroughFloat16, Saturated, Old }
    /// The value of a code: the product with its scale, rounded to T3 and then to T1.
    ValueOf { Product, NotRoundedToT3, ScaleOfT1, OfFloat16, Code, Divided }
    /// How float32 becomes float16, and what of denormals: to nearest, ties to even.
    Conversion { Nearest, Truncated, Saturated, Float16Flushed, Float32Flushed }
    /// What becomes of a value that is moved: nothing.
    Change { Nothing, NanZeroed, InfinityReplaced, DenormalsZeroed, NegativeZeroLost }
    /// Which nibble an element of int4 is in: the low one comes first.
    Nibbles { LowFirst, HighFirst, InHalves }
    /// What a nibble that is stored does to the other one of its byte: nothing.
    NibbleStore { Alone, Joined }
    /// The bits of a code: two's complement.
    CodeBits { TwosComplement, Unsigned, Offset }

    /// The layout of `cache` or `scale`: that of the attribute. Swapped ones are those of the two digits of n.
    Layout { OfAttribute, First, Swapped }
    /// The layer that is stored to, or loaded from: layer_idx.
    Layer { Own, First, Before }
    /// Where keys and values are along the axis of length 2.
    KeyValueAxis { InOrder, Swapped, AllFirst }
    /// What is stored as key and as value.
    StoredParts { Both, KeysAlone, KeyTwice, Neither }
    /// What is given back as key and as value.
    Outputs { InOrder, Swapped, KeyTwice }
    /// The scales that codes are loaded with, and where they are stored: each group of each token's own, beside it.
    Scales { Own, FirstLayer, FirstHeadLoaded, KeyLoadedForValue }
    /// The elements of a head that are moved: all.
    Elements { All, First, WholeMultiples }
    /// The order of the axes of tokens and heads: tokens first.
    HeadAxes { TokensFirst, HeadsFirst }
    /// The repetitions of a cache head in the outputs: side by side.
    Repeats { Beside, FirstAlone, Interleaved, Ignored }

    /// The slot of a token: by cache_mode, cachestarts and page_size.
    Slots {
        ByMode, FirstCachestarts, CachestartsIgnored, PagesTimesSize, TableTransposed, PagesOfFirstSequence,
        FirstPageAlone, PageSizeIgnored, PagesAlignedDown,
    }
    /// How many current tokens of a sequence are stored: all.
    StoredTokens { All, EqualLengths, First, LastMissing, MaxSeqlen }
    /// The first row of a sequence in current_key and current_value.
    CurrentRows { Seqstarts, Zero, Kvstarts }
    /// The position of a sequence's first current token: start_pos.
    Position { StartPos, Zero, OfFirstSequence, OneFurther }
    /// The tokens of a sequence that are loaded: all.
    LoadedTokens { All, First, CurrentAlone, PastAlone, LastMissing, FullPages, MaxKvlen }
    /// The first row of a sequence in key and value.
    OutputRows { Kvstarts, Seqstarts, Padded }
    /// The stores and loads of a call, in order: all stores, then all loads.
    Order { StoresFirst, BySequence, LastMissing }
    /// What loads read: cache and scale as the call's stores left them.
    LoadsFrom { After, Before, ScaleBefore }
    /// What is kept after the call: cache and scale.
    Keeps { Both, CacheAlone, Neither }

    /// What an access outside of the cache does, which differs by language and by luck: the call ends; it reaches what
    /// lies there in the tensor; a negative slot counts from the last; nothing is stored, and zeros are loaded.
    Outside { Fails, Flat, FromEnd, Skipped }
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

impl Layer {
    /// The layer.
    pub(super) const fn of(self, layer_idx: i64) -> usize {
        match self {
            Self::Own => layer_idx as usize,
            Self::First => 0,
            Self::Before => (layer_idx as usize).saturating_sub(1),
        }
    }
}

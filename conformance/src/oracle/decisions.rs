//! The decisions of the specification as plain data. The first value of each is the specification's; the others are
//! what implementations do in its place. What a value does is where it is used, beside the right one.

/// Declares decisions, each by its names, its type and the values: the first is the specification's. In YAML values are
/// in kebab case.
macro_rules! decisions {
    ($(#[$about:meta])* $All:ident {
        [$($(#[$note:meta])* $plain:ident: $Type:ty,)*]
        $($(#[$doc:meta])* $($name:ident),+: $Name:ident { $First:ident $(, $Other:ident)* $(,)? })*
    }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Default, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        #[allow(missing_docs, reason = "their types say what they decide")]
        pub struct $All {
            $($(#[$note])* pub $plain: $Type,)*
            $($(pub $name: $Name,)+)*
        }
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
            #[serde(rename_all = "kebab-case")]
            #[allow(missing_docs, reason = "the table of mistakes has a sentence on each")]
            pub enum $Name { #[default] $First, $($Other),* }
        )*
    };
}
pub(crate) use decisions;

decisions! {
    /// What the oracle does. [`Behavior::default`] is the specification; a [mistake](crate::mistakes) is another value
    /// of one or two decisions.
    Behavior {
        [
            /// Codes are made with the scale after it was rounded to T3.
            divides_by_scale: bool,
            /// The outputs of current tokens are copied from the inputs.
            current_from_inputs: bool,
            /// Nothing is stored.
            stores_nothing: bool,
        ]

        /// How a quotient becomes an integer.
        rounding: Rounding { TiesToEven, HalfAway, HalfAwayByAddition, HalfUp, Truncation }
        /// How `x` is divided.
        quotient: Quotient { Division, Reciprocal, QmaxOverAmax }
        /// The type that a number is rounded to.
        step_width, least_width, quotient_width: Width { T1, Float32, Float64 }
        /// The least scale: 1e-5.
        least: Least { Floor, Missing, Added, OfAmax, ForZerosAlone, SwallowsNan }
        /// The step between codes: amax / qmax.
        step: Step { Quotient, Reciprocal, FullRange }
        /// The largest code.
        qmax: Qmax { Symmetric, PowerOfTwo }
        /// What codes are clamped to.
        clamp: Clamp { Symmetric, LowestToo, Qmax }
        /// The code of a quotient that is NaN.
        nan_code: NanCode { Zero, Lowest, ClampedLow, ClampedHigh }
        /// The largest magnitude of a group; NaN if one of its values is.
        amax: Amax { Largest, NanSkipped, FiniteAlone }
        /// Which values have the same scale: those of a group of one head of one token, of the key or of the value.
        shares: Shares { Group, Head, Token }
        /// The group of an element of a head: neighbors share one.
        group, loaded_group: GroupOf { Neighbors, Strided, First }
        /// What is stored as scale: the step, rounded to T3.
        stored_scale: StoredScale { Step, ThroughFloat16, Old }
        /// The value of a code: the product with its scale, rounded to T3 and then to T1.
        value: ValueOf { Product, NotRoundedToT3, ScaleOfT1 }
        /// How float32 becomes float16, and what of denormals: to nearest, ties to even.
        conversion: Conversion { Nearest, Float16Flushed, Float32Flushed }
        /// Which nibble an element of int4 is in: the low one comes first.
        nibbles, loaded_nibbles: Nibbles { LowFirst, HighFirst, InHalves }
        /// The bits of a code: two's complement.
        code_bits, loaded_code_bits: CodeBits { TwosComplement, Unsigned, Offset }

        /// The layout of `cache` or `scale`: that of the attribute.
        layout, scale_layout: Layout { OfAttribute, First }
        /// The layer that is stored to, or loaded from: layer_idx.
        stored_layer, loaded_layer: Layer { Own, First }
        /// What is given back as key and as value.
        outputs: Outputs { InOrder, Swapped }
        /// The scales that codes are loaded with, and where they are stored: each group of each token's own, beside it.
        scales: Scales { Own, FirstLayer }
        /// The order of the axes of tokens and heads: tokens first.
        current_heads, output_heads: HeadAxes { TokensFirst, HeadsFirst }
        /// The repetitions of a cache head in the outputs: side by side.
        repeats: Repeats { Beside, Interleaved }

        /// The slot of a token: by cache_mode, cachestarts and page_size.
        slots: Slots { ByMode, PagesTimesSize, FirstPageAlone, PagesAlignedDown }
        /// How many current tokens of a sequence are stored: all.
        stored_tokens: StoredTokens { All, EqualLengths, MaxSeqlen }
        /// The position of a sequence's first current token: start_pos.
        position: Position { StartPos, Zero, OfFirstSequence }
        /// The tokens of a sequence that are loaded: all.
        loaded_tokens: LoadedTokens { All, CurrentAlone, MaxKvlen }
        /// The first row of a sequence in key and value.
        output_rows: OutputRows { Kvstarts, Seqstarts, Padded }
        /// The stores and loads of a call, in order: all stores, then all loads.
        order: Order { StoresFirst, BySequence }
        /// What loads read: cache and scale as the call's stores left them.
        loads_from: LoadsFrom { After, Before }
        /// What is kept after the call: cache and scale.
        keeps: Keeps { Both, Neither }

        /// What an access outside of the cache does, which differs by language and by luck: the call ends; it reaches
        /// what lies there in the tensor; a negative slot counts from the last; nothing is stored, and zeros are
        /// loaded.
        outside: Outside { Fails, Flat, FromEnd, Skipped }
    }
}

impl Outputs {
    /// Which of key (0) and value (1) is the output `key` (0) or `value` (1).
    pub(super) const fn source(self, output: usize) -> usize {
        match self {
            Self::InOrder => output,
            Self::Swapped => 1 - output,
        }
    }
}

impl Layer {
    /// The layer.
    pub(super) const fn of(self, layer_idx: i64) -> usize {
        match self {
            Self::Own => layer_idx as usize,
            Self::First => 0,
        }
    }
}

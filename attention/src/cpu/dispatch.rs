//! The functions of a call, by instruction set and types.

use kvcache_kernels::{Quant, float_type, scale_type};
use kvcache_schema::{ElementType, QuantBit};
#[cfg(target_arch = "aarch64")]
use kvcache_simd::Neon;
#[cfg(target_arch = "x86_64")]
use kvcache_simd::{Avx2, Avx512, Simd};
use kvcache_simd::{Float, InstructionSet, Portable};

use super::generic::merge::{Accumulator, Finish, Merge, OutputRow, QueryElements, ReadQuery};
use super::generic::panel::{Pack, PackCodes, PackKeys};
use super::generic::pv_panels::{PackRows, PackValues, PvPanels, WeightedPanels};
use super::generic::pv_rows::{PvRows, WeightedRows};
use super::generic::qk_codes::{CodeScores, QkCodes, Widen, WidenCodes, Word};
use super::generic::qk_panels::{PARTS, PanelScores, QkPanels};
use super::generic::qk_rows::{QkRows, RowScores};
use super::generic::read_rows::{ReadInto, ReadRows, ReadScales};
use super::generic::scales::{ScaleWeights, Scaled, Transpose, TransposeScales};
use super::generic::softcap::{Products, SoftCap};
use super::generic::softmax::{Masked, ScoreBlock, Softmax};
use super::generic::softmax_rows::{ScoreRows, SoftmaxRows};
use super::generic::stored::IntCodes;
use super::generic::tiles::Tiles;
#[cfg(target_arch = "x86_64")]
use super::x86_64::codes::{Codes, LANES};

/// Packs keys.
pub(crate) type PackFunction = for<'a> unsafe fn(&Pack<'a>);

/// Reads rows as float32.
pub(crate) type ReadFunction = for<'a> unsafe fn(&ReadInto<'a>);

/// QK scores of few queries.
pub(crate) type QkRowsFunction = for<'a> unsafe fn(&RowScores<'a>);

/// Adds PV products.
pub(crate) type PvRowsFunction = for<'a> unsafe fn(&WeightedRows<'a>);

/// Packs rows of values.
pub(crate) type PackValuesFunction = for<'a> unsafe fn(&PackRows<'a>);

/// The functions of one call. They may be called where the instruction set is supported.
#[derive(Clone, Copy)]
pub(crate) struct Functions {
    /// Float32 values in a register.
    pub(crate) lanes: usize,
    pub(crate) read_query: unsafe fn(&QueryElements),
    pub(crate) pack_keys: PackFunction,
    pub(crate) read_rows: ReadFunction,
    pub(crate) qk_panels: unsafe fn(&PanelScores),
    /// QK scores of few queries over rows of keys; none where a panel, in which each element is converted once, is
    /// faster, and where rows are not whole registers.
    pub(crate) qk_rows: Option<QkRowsFunction>,
    pub(crate) soft_cap: unsafe fn(&Products),
    pub(crate) softmax: for<'a> unsafe fn(&ScoreBlock<'a>) -> Masked,
    pub(crate) softmax_rows: for<'a> unsafe fn(&ScoreRows<'a>) -> bool,
    /// PV products over rows of values as they are; none where each element is better converted once, and where rows
    /// are not whole registers.
    pub(crate) pv_rows_in_place: Option<PvRowsFunction>,
    /// PV products over rows of float32 that are [read](Self::read_rows).
    pub(crate) pv_rows: PvRowsFunction,
    /// Packs rows of values as they are; none where rows are not whole registers.
    pub(crate) pack_values_in_place: Option<PackValuesFunction>,
    pub(crate) pack_values: PackValuesFunction,
    pub(crate) pv_panels: for<'a> unsafe fn(&WeightedPanels<'a>),
    pub(crate) merge: unsafe fn(&[Accumulator; 2]),
    pub(crate) finish: unsafe fn(&OutputRow) -> f32,
}

/// The functions of an instruction set for a call's T1, the floats that its rows are read as, `head_dim`, and its
/// quantization.
pub(crate) fn functions(
    instructions: InstructionSet,
    types: [ElementType; 2],
    head_dim: usize,
    quant: Option<Quant>,
) -> (Functions, Option<QuantFunctions>) {
    match instructions {
        #[cfg(target_arch = "aarch64")]
        InstructionSet::Neon => for_types::<Neon>(types, head_dim, quant),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => for_types::<Avx2>(types, head_dim, quant),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 | InstructionSet::Avx512Fp16 => for_types::<Avx512<false>>(types, head_dim, quant),
        _ => for_types::<Portable>(types, head_dim, quant),
    }
}

/// The functions for a quantized cache.
pub(crate) struct QuantFunctions {
    /// Reads rows of scales.
    pub(crate) read_scales: ReadFunction,
    /// None where codes are no integers.
    pub(crate) integers: Option<IntegerFunctions>,
}

/// Functions over integer codes, whose scales enter sums.
#[derive(Clone, Copy)]
pub(crate) struct IntegerFunctions {
    /// Packs keys as words, of which QK scores are computed for few queries; for many, they become float32 first.
    pub(crate) pack_keys: PackFunction,
    pub(crate) qk_words: for<'a> unsafe fn(&CodeScores<'a>),
    pub(crate) widen: unsafe fn(&Widen),
    pub(crate) qk_floats: for<'a> unsafe fn(&CodeScores<'a>),
    pub(crate) pv_rows: PvRowsFunction,
    pub(crate) pack_values: PackValuesFunction,
    pub(crate) transpose_scales: for<'a> unsafe fn(&Transpose<'a>),
    pub(crate) scale_weights: unsafe fn(&Scaled),
}

fn for_integers<S: Tiles, const BITS: usize>() -> IntegerFunctions {
    IntegerFunctions {
        pack_keys: S::outlined::<PackCodes<BITS>>(),
        qk_words: S::outlined::<QkCodes<Word<BITS>>>(),
        widen: S::outlined::<WidenCodes<BITS>>(),
        qk_floats: S::outlined::<QkCodes<f32>>(),
        pv_rows: S::outlined::<PvRows<IntCodes<BITS>>>(),
        pack_values: S::outlined::<PackValues<IntCodes<BITS>>>(),
        transpose_scales: S::outlined::<TransposeScales>(),
        scale_weights: S::outlined::<ScaleWeights>(),
    }
}

/// Functions for few queries, over codes that are dequantized in registers.
#[derive(Clone, Copy)]
pub(crate) struct CodeFunctions {
    /// None where keys are integer codes.
    pub(crate) qk_rows: Option<QkRowsFunction>,
    pub(crate) pv_rows: PvRowsFunction,
    /// Codes that share a scale, as a power of two, and whether they are whole registers.
    pub(crate) group_bits: u32,
    pub(crate) is_wide: bool,
}

/// The functions of an instruction set for rows of `len` codes in groups of `group`. None where registers would have
/// parts of groups or be parts of rows, and where registers have 8 lanes: loading rows converts each code once for four
/// queries, too.
pub(crate) fn code_functions(
    instructions: InstructionSet,
    bits: QuantBit,
    len: usize,
    group: usize,
) -> Option<CodeFunctions> {
    #[cfg(target_arch = "x86_64")]
    if matches!(instructions, InstructionSet::Avx512 | InstructionSet::Avx512Fp16)
        && len.is_multiple_of(LANES)
        && (group == len || group.is_power_of_two())
    {
        // A row of one group has scale 0.
        let group_bits = if group == len { usize::BITS - 1 } else { group.ilog2() };
        let is_wide = group >= LANES;
        let (qk_rows, pv_rows) = match (bits, is_wide) {
            (QuantBit::Float8, true) => float8::<true>(),
            (QuantBit::Float8, false) => float8::<false>(),
            (QuantBit::Eight, false) => (None, Avx512::<false>::outlined::<PvRows<Codes<8, false, false>>>()),
            (QuantBit::Four, false) => (None, Avx512::<false>::outlined::<PvRows<Codes<4, false, false>>>()),
            (QuantBit::Eight | QuantBit::Four, true) => return None,
        };
        return Some(CodeFunctions { qk_rows, pv_rows, group_bits, is_wide });
    }
    let _ = (instructions, bits, len, group);
    None
}

/// The functions for float8.
#[cfg(target_arch = "x86_64")]
fn float8<const WIDE: bool>() -> (Option<QkRowsFunction>, PvRowsFunction) {
    let qk_rows = Avx512::<false>::outlined::<QkRows<Codes<8, true, WIDE>>>();
    (Some(qk_rows), Avx512::<false>::outlined::<PvRows<Codes<8, true, WIDE>>>())
}

fn for_types<S: Tiles>(
    [t1, floats]: [ElementType; 2],
    head_dim: usize,
    quant: Option<Quant>,
) -> (Functions, Option<QuantFunctions>) {
    let quantized = |Quant { bits, t3, .. }: Quant| QuantFunctions {
        read_scales: scale_type!(t3, T3 => S::outlined::<ReadScales<T3>>()),
        integers: match bits {
            QuantBit::Eight => Some(for_integers::<S, 8>()),
            QuantBit::Four => Some(for_integers::<S, 4>()),
            QuantBit::Float8 => None,
        },
    };
    let functions = float_type!(t1, T1 => float_type!(floats, E => for_floats::<S, T1, E>(head_dim)));
    (functions, quant.map(quantized))
}

fn for_floats<S: Tiles, T1: Float, E: Float>(head_dim: usize) -> Functions {
    let (converts, whole) = (size_of::<E>() == size_of::<f32>() || S::CONVERTS_F16, head_dim.is_multiple_of(S::LANES));
    Functions {
        lanes: S::LANES,
        read_query: S::outlined::<ReadQuery<T1>>(),
        pack_keys: S::outlined::<PackKeys<E>>(),
        read_rows: S::outlined::<ReadRows<E>>(),
        qk_panels: S::outlined::<QkPanels>(),
        qk_rows: (converts && head_dim.is_multiple_of(PARTS)).then_some(S::outlined::<QkRows<E>>()),
        soft_cap: S::outlined::<SoftCap>(),
        softmax: S::outlined::<Softmax<T1>>(),
        softmax_rows: S::outlined::<SoftmaxRows>(),
        pv_rows_in_place: (converts && whole).then_some(S::outlined::<PvRows<E>>()),
        pv_rows: S::outlined::<PvRows<f32>>(),
        pack_values_in_place: whole.then_some(S::outlined::<PackValues<E>>()),
        pack_values: S::outlined::<PackValues<f32>>(),
        pv_panels: S::outlined::<PvPanels>(),
        merge: S::outlined::<Merge>(),
        finish: S::outlined::<Finish<T1>>(),
    }
}

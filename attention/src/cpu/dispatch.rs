//! Which functions a call gets: those of an instruction set, for the call's types.

use half::f16;
use kvcache_schema::ElementType::{self, Float16, Float32};
#[cfg(target_arch = "aarch64")]
use kvcache_simd::Neon;
#[cfg(target_arch = "x86_64")]
use kvcache_simd::{Avx2, Avx512};
use kvcache_simd::{Float, InstructionSet, Portable};

use super::generic::fold::{Finish, Fold, ReadQuery, Result, Row, Sums};
use super::generic::panel::{Pack, PackFloats, PackHalves};
use super::generic::read_rows::{Read, ReadRows};
use super::generic::score_rows::{RowProducts, ScoreRows};
use super::generic::scores::{Products, Scores};
use super::generic::softmax::{Block, Hidden, Softmax};
use super::generic::softmax_rows::{ManyRows, SoftmaxRows};
#[cfg(target_arch = "x86_64")]
use super::generic::stored::Stored;
use super::generic::tiles::Tiles;
use super::generic::weigh::{Values, Weigh};
use super::generic::weigh_rows::{PackRows, PackValues, ValuePanels, WeighRows};
#[cfg(target_arch = "x86_64")]
use super::x86_64::codes::{LANES, ScaledInt8, WideInt8};

/// Packs keys.
pub(crate) type PackFunction = for<'a> unsafe fn(&Pack<'a>);

/// Reads rows as float32.
pub(crate) type ReadFunction = for<'a> unsafe fn(&Read<'a>);

/// Multiplies few queries with keys.
pub(crate) type ScoreRowsFunction = for<'a> unsafe fn(&RowProducts<'a>);

/// Weighs values.
pub(crate) type WeighFunction = for<'a> unsafe fn(&Values<'a>);

/// The functions of one call. They may be called where the instruction set is supported.
#[derive(Clone, Copy)]
pub(crate) struct Functions {
    /// Float32 values in a register.
    pub(crate) lanes: usize,
    pub(crate) read_query: unsafe fn(&Row),
    pub(crate) pack: PackFunction,
    pub(crate) read: ReadFunction,
    pub(crate) scores: unsafe fn(&Products),
    /// Scores of few queries without a panel, for keys of whole registers; none where a panel is faster, in which each
    /// element is converted once.
    pub(crate) score_rows: Option<ScoreRowsFunction>,
    pub(crate) softmax: for<'a> unsafe fn(&Block<'a>) -> Hidden,
    pub(crate) softmax_rows: for<'a> unsafe fn(&ManyRows<'a>) -> bool,
    /// Weighs values that are [`read`](Self::read), and those that are where they are.
    pub(crate) weigh: WeighFunction,
    pub(crate) weigh_in_place: WeighFunction,
    pub(crate) pack_values: for<'a> unsafe fn(&PackRows<'a>),
    pub(crate) weigh_rows: for<'a> unsafe fn(&ValuePanels<'a>),
    pub(crate) fold: unsafe fn(&[Sums; 2]),
    pub(crate) finish: unsafe fn(&Result),
}

/// The functions of an instruction set for a call's T1 and the floats that its rows are read as.
pub(crate) fn functions(instructions: InstructionSet, t1: ElementType, floats: ElementType) -> Functions {
    match instructions {
        #[cfg(target_arch = "aarch64")]
        InstructionSet::Neon => for_types::<Neon>(t1, floats),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => for_types::<Avx2>(t1, floats),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 | InstructionSet::Avx512Fp16 => for_types::<Avx512<false>>(t1, floats),
        _ => for_types::<Portable>(t1, floats),
    }
}

/// Functions for few queries, over codes that are dequantized in registers.
#[derive(Clone, Copy)]
pub(crate) struct CodeFunctions {
    pub(crate) score_rows: ScoreRowsFunction,
    pub(crate) weigh: WeighFunction,
    /// Codes that share a scale, as a power of two.
    pub(crate) group_bits: u32,
}

/// Those of an instruction set for T1, T2 and T3, for rows of `len` codes in groups of `group`; none where it is better
/// to load rows, as it is where a byte has two codes, or AVX512-FP16 multiplies float16.
pub(crate) fn code_functions(
    instructions: InstructionSet,
    types: (ElementType, ElementType, Option<ElementType>),
    len: usize,
    group: usize,
) -> Option<CodeFunctions> {
    // A register has whole groups or a part of one, and registers that are read together have their scales in one.
    #[cfg(target_arch = "x86_64")]
    if len.is_multiple_of(LANES) && group.is_power_of_two() && group >= 8 {
        use ElementType::Int8;
        let group_bits = group.ilog2();
        return match (instructions, types) {
            (InstructionSet::Avx512 | InstructionSet::Avx512Fp16, (Float32, Int8, Some(Float32))) => {
                Some(match group {
                    LANES.. => in_registers::<Avx512<false>, WideInt8>(group_bits),
                    _ => in_registers::<Avx512<false>, ScaledInt8<false>>(group_bits),
                })
            }
            (InstructionSet::Avx512, (_, Int8, Some(Float16))) => {
                Some(in_registers::<Avx512<false>, ScaledInt8<true>>(group_bits))
            }
            _ => None,
        };
    }
    let _ = (instructions, types, len, group);
    None
}

/// Those for codes V.
#[cfg(target_arch = "x86_64")]
fn in_registers<S: Tiles, V: Stored<S>>(group_bits: u32) -> CodeFunctions {
    let score_rows = S::outlined::<ScoreRows<V>>();
    CodeFunctions { score_rows, weigh: S::outlined::<Weigh<V>>(), group_bits }
}

/// The functions that read keys and values.
#[derive(Clone, Copy)]
struct Readers {
    pack: PackFunction,
    score_rows: Option<ScoreRowsFunction>,
    read: ReadFunction,
    weigh: WeighFunction,
}

/// The one match on a call's types.
fn for_types<S: Tiles>(t1: ElementType, floats: ElementType) -> Functions {
    let readers = match floats {
        Float32 => Readers {
            pack: S::outlined::<PackFloats>(),
            score_rows: Some(S::outlined::<ScoreRows<f32>>()),
            read: S::outlined::<ReadRows<f32>>(),
            weigh: S::outlined::<Weigh<f32>>(),
        },
        Float16 => Readers {
            pack: S::outlined::<PackHalves>(),
            score_rows: S::CONVERTS_F16.then_some(S::outlined::<ScoreRows<f16>>()),
            read: S::outlined::<ReadRows<f16>>(),
            weigh: S::outlined::<Weigh<f16>>(),
        },
        floats => unreachable!("{floats} is no float"),
    };
    match t1 {
        Float16 => for_t1::<S, f16>(readers),
        _ => for_t1::<S, f32>(readers),
    }
}

fn for_t1<S: Tiles, T1: Float>(Readers { pack, score_rows, read, weigh }: Readers) -> Functions {
    Functions {
        lanes: S::LANES,
        read_query: S::outlined::<ReadQuery<T1>>(),
        pack,
        read,
        scores: S::outlined::<Scores>(),
        score_rows,
        softmax: S::outlined::<Softmax<T1>>(),
        softmax_rows: S::outlined::<SoftmaxRows>(),
        weigh: S::outlined::<Weigh<f32>>(),
        weigh_in_place: weigh,
        pack_values: S::outlined::<PackValues>(),
        weigh_rows: S::outlined::<WeighRows>(),
        fold: S::outlined::<Fold>(),
        finish: S::outlined::<Finish<T1>>(),
    }
}

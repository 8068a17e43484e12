//! Which functions a call gets: those of an instruction set, for the call's types.

use half::f16;
use kvcache_kernels::InstructionSet;
use kvcache_schema::ElementType::{self, Float16, Float32, Int4 as I4, Int8 as I8};

use super::generic::elements::{Codes, Float, Int4, Int8};
use super::generic::fold::{Finish, Fold, ReadQuery};
use super::generic::outline::{Outline, Outlined};
use super::generic::panel::{Pack, PackCodes, PackFloats, PackHalves};
use super::generic::read_rows::{Read, ReadCodes, ReadFloats};
use super::generic::score_rows::{RowProducts, ScoreRows};
use super::generic::scores::Scores;
use super::generic::softmax::Softmax;
use super::generic::softmax_rows::SoftmaxRows;
use super::generic::values::{StoredCodes, StoredFloats};
use super::generic::weigh::{Values, Weigh};
use super::generic::weigh_rows::{PackValues, WeighRows};
use super::portable::Portable;
#[cfg(target_arch = "x86_64")]
use super::x86_64::{avx2::Avx2, avx512::Avx512};

/// Packs keys of a call's types.
pub(crate) type PackFunction = for<'a> unsafe fn(&Pack<'a>);

/// Reads rows of a call's types as float32.
pub(crate) type ReadFunction = for<'a> unsafe fn(&Read<'a>);

/// Multiplies few queries with keys of a call's types.
pub(crate) type ScoreRowsFunction = for<'a> unsafe fn(&RowProducts<'a>);

/// Weighs values of a call's types.
pub(crate) type WeighFunction = for<'a> unsafe fn(&Values<'a>);

/// The functions of one call. They may be called where the instruction set is supported.
#[derive(Clone, Copy)]
pub(crate) struct Functions {
    /// Float32 values in a register.
    pub(crate) lanes: usize,
    pub(crate) read_query: Outlined<ReadQuery<f32>>,
    pub(crate) pack: PackFunction,
    pub(crate) read: ReadFunction,
    pub(crate) scores: Outlined<Scores>,
    /// Scores of few queries without a panel, for keys of whole registers; none where a panel is faster, in which each
    /// element is converted and dequantized once.
    pub(crate) score_rows: Option<ScoreRowsFunction>,
    pub(crate) softmax: Outlined<Softmax<f32>>,
    pub(crate) softmax_rows: Outlined<SoftmaxRows>,
    /// Weighs values that are [`read`](Self::read), and those that are where they are.
    pub(crate) weigh: WeighFunction,
    pub(crate) weigh_in_place: WeighFunction,
    pub(crate) pack_values: Outlined<PackValues>,
    pub(crate) weigh_rows: Outlined<WeighRows>,
    pub(crate) fold: Outlined<Fold>,
    pub(crate) finish: Outlined<Finish<f32>>,
}

/// The types of a call's keys and values: T1, T2, T3.
pub(crate) type Types = (ElementType, ElementType, Option<ElementType>);

/// The functions of an instruction set for these types.
pub(crate) fn functions(instructions: InstructionSet, types: Types) -> Functions {
    match instructions {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => for_types::<Avx2>(types),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 | InstructionSet::Avx512Fp16 => for_types::<Avx512>(types),
        _ => for_types::<Portable>(types),
    }
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
fn for_types<S: Outline>(types: Types) -> Functions {
    let (t1, t2, t3) = types;
    let readers = match (t1, t2, t3) {
        (Float32, Float32, _) => floats::<S, false>(),
        (Float16, Float32, _) => floats::<S, true>(),
        (_, Float16, _) => Readers {
            pack: S::outlined::<PackHalves>(),
            score_rows: S::CONVERTS_F16.then_some(S::outlined::<ScoreRows<StoredFloats<f16, false>>>()),
            read: S::outlined::<ReadFloats<f16, false>>(),
            weigh: S::outlined::<Weigh<StoredFloats<f16, false>>>(),
        },
        (Float32, I8, Some(Float32)) => int8::<S, f32, false>(),
        (Float16, I8, Some(Float32)) => int8::<S, f32, true>(),
        (_, I8, Some(Float16)) => int8::<S, f16, true>(),
        (Float32, I4, Some(Float32)) => codes::<S, Int4, f32, false>(),
        (Float16, I4, Some(Float32)) => codes::<S, Int4, f32, true>(),
        (_, I4, Some(Float16)) => codes::<S, Int4, f16, true>(),
        types => unreachable!("a problem has a legal combination of types, not {types:?}"),
    };
    match t1 {
        Float16 => for_t1::<S, f16>(readers),
        _ => for_t1::<S, f32>(readers),
    }
}

fn floats<S: Outline, const ROUND: bool>() -> Readers {
    Readers {
        pack: S::outlined::<PackFloats<ROUND>>(),
        score_rows: (S::CONVERTS_F16 || !ROUND).then_some(S::outlined::<ScoreRows<StoredFloats<f32, ROUND>>>()),
        read: S::outlined::<ReadFloats<f32, ROUND>>(),
        weigh: S::outlined::<Weigh<StoredFloats<f32, ROUND>>>(),
    }
}

/// Int8 is multiplied where it is; int4 takes more instructions there than in a panel, of which a word is read for eight
/// codes at once.
fn int8<S: Outline, T: Float, const ROUND: bool>() -> Readers {
    let score_rows = S::outlined::<ScoreRows<StoredCodes<Int8, T, ROUND>>>();
    Readers { score_rows: Some(score_rows), ..codes::<S, Int8, T, ROUND>() }
}

fn codes<S: Outline, Q: Codes, T: Float, const ROUND: bool>() -> Readers {
    Readers {
        pack: S::outlined::<PackCodes<Q, T, ROUND>>(),
        score_rows: None,
        read: S::outlined::<ReadCodes<Q, T, ROUND>>(),
        weigh: S::outlined::<Weigh<StoredCodes<Q, T, ROUND>>>(),
    }
}

fn for_t1<S: Outline, T1: Float>(Readers { pack, score_rows, read, weigh }: Readers) -> Functions {
    Functions {
        lanes: S::LANES,
        read_query: S::outlined::<ReadQuery<T1>>(),
        pack,
        read,
        scores: S::outlined::<Scores>(),
        score_rows,
        softmax: S::outlined::<Softmax<T1>>(),
        softmax_rows: S::outlined::<SoftmaxRows>(),
        weigh: S::outlined::<Weigh<StoredFloats<f32, false>>>(),
        weigh_in_place: weigh,
        pack_values: S::outlined::<PackValues>(),
        weigh_rows: S::outlined::<WeighRows>(),
        fold: S::outlined::<Fold>(),
        finish: S::outlined::<Finish<T1>>(),
    }
}

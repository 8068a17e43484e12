//! The row functions of a call: of the machine's widest instruction set, for the call's types and groups.

use std::marker::PhantomData;

use half::f16;
use kvcache_schema::{ElementType, QuantBit};
#[cfg(target_arch = "aarch64")]
use kvcache_simd::Neon;
#[cfg(target_arch = "x86_64")]
use kvcache_simd::{Avx2, Avx512};
use kvcache_simd::{Float, InstructionSet, MOST_LANES, Simd};

use super::block::{CopyFunction, HadamardFunction, RotateFunction, RowsFunction};
use super::code_type::{CodeType, Float8, Int4, Int8};
use super::generic::convert::Convert;
use super::generic::copy::{CopyRows, StreamAny, StreamRows};
use super::generic::dequantize::LoadQuantized;
use super::generic::hadamard::Hadamard;
use super::generic::quant_simd::{LONG, ODD, QuantSimd};
use super::generic::quantize::{StoreQuantized, StoreStatic};
use super::portable::{self, RotateHeads};
use crate::{float_type, scale_type};

/// A row function that writes plain stores, and one that writes non-temporal stores.
#[derive(Clone, Copy)]
pub(crate) struct Variants<F> {
    pub(crate) plain: F,
    pub(crate) stream: F,
}

impl<F: Copy> Variants<F> {
    /// One function for both.
    pub(crate) fn same(function: F) -> Self {
        Self { plain: function, stream: function }
    }
}

/// How a cache holds values of another type.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheFormat {
    /// As floats.
    Float,
    /// As codes, with a scale for each group.
    Quantized,
    /// As codes, by scales that are only read. A row has one.
    StaticScales,
}

/// The functions between values and a cache of another type.
#[derive(Clone, Copy)]
pub(crate) struct Conversion {
    pub(crate) format: CacheFormat,
    /// Values to the cache.
    pub(crate) store: Variants<RowsFunction>,
    /// The cache to values.
    pub(crate) load: Variants<RowsFunction>,
    /// `load.stream` by non-temporal stores of 16 bytes, to addresses that are multiples of 16; none where joining
    /// lines in a staging buffer takes less time.
    pub(crate) load_narrow: Option<RowsFunction>,
}

/// The row functions of a call.
#[derive(Clone, Copy)]
pub(crate) struct RowFunctions {
    /// Copies of bytes; streaming, to whole lines.
    pub(crate) copy: Variants<CopyFunction>,
    /// `copy.stream` by non-temporal stores of 16 bytes, to addresses that are multiples of 16.
    pub(crate) copy_narrow: CopyFunction,
    /// Copies of bytes, one of each row, to any address, by non-temporal stores where there are any.
    pub(crate) stream_any: CopyFunction,
    /// The conversion of values on their way; none where the cache holds them as they are.
    pub(crate) conversion: Option<Conversion>,
    /// Rotates heads of float32.
    pub(crate) rotate: RotateFunction,
    /// Multiplies heads of T1 by a Hadamard matrix, where T1 is a float type; else heads of float32.
    pub(crate) hadamard: HadamardFunction,
    /// Whether the instruction set has non-temporal stores.
    pub(crate) streams: bool,
    /// Orders what a thread has streamed before whatever it writes next.
    pub(crate) fence: fn(),
}

/// The row functions of an instruction set for these types (T1, T2, T3) and groups of that many elements.
///
/// Its functions may be called if the instruction set is supported.
pub(crate) fn row_functions(
    instructions: InstructionSet,
    types: (ElementType, ElementType, Option<ElementType>),
    group: usize,
) -> RowFunctions {
    match instructions {
        #[cfg(target_arch = "aarch64")]
        InstructionSet::Neon => for_types::<Vector<Neon>>(types, group),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => for_types::<Vector<Avx2>>(types, group),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => for_types::<Vector<Avx512<false>>>(types, group),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512Fp16 => for_types::<Vector<Avx512<true>>>(types, group),
        _ => for_types::<Portable>(types, group),
    }
}

/// The row functions of a cache of float8 with static scales of T3, a row being a head.
pub(crate) fn static_scale_functions(
    instructions: InstructionSet,
    (t1, t2, t3): (ElementType, ElementType, ElementType),
    head_dim: usize,
) -> RowFunctions {
    let functions = row_functions(instructions, (t1, t2, Some(t3)), head_dim);
    let store: RowsFunction = float_type!(t1, V => scale_type!(t3, T => match instructions {
        #[cfg(target_arch = "aarch64")]
        InstructionSet::Neon => Neon::outlined::<StoreStatic<V, T>>(),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => <Avx2>::outlined::<StoreStatic<V, T>>(),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 | InstructionSet::Avx512Fp16 => Avx512::<false>::outlined::<StoreStatic<V, T>>(),
        _ => portable::store_static::<V, T>,
    }));
    let statically =
        |by_groups| Conversion { format: CacheFormat::StaticScales, store: Variants::same(store), ..by_groups };
    RowFunctions { conversion: functions.conversion.map(statically), ..functions }
}

/// The row functions for a call's types.
fn for_types<I: Implementation>(
    (t1, t2, t3): (ElementType, ElementType, Option<ElementType>),
    group: usize,
) -> RowFunctions {
    use ElementType::{Float16, Float32};
    let conversion = match (t1, t2, t3) {
        _ if t1 == t2 => return I::copies(),
        (Float16, Float32, None) => I::converted::<f16, f32>(),
        // Any float as float32: keys are rotated, and attended to, so.
        (Float32, _, None) => float_type!(t2, C => I::converted::<f32, C>()),
        (_, _, None) => unreachable!("{t1} in a cache of {t2}"),
        (_, ElementType::Int4, Some(t3)) => scale_type!(t3, T => codes_of::<I, Int4, T>(t1, group)),
        (_, ElementType::Float8E4M3Fn, Some(t3)) => {
            float_type!(t1, V => scale_type!(t3, T => I::quantized_any::<Float8, V, T>(group)))
        }
        (_, _, Some(t3)) => scale_type!(t3, T => codes_of::<I, Int8, T>(t1, group)),
    };
    RowFunctions { conversion: Some(conversion), hadamard: float_type!(t1, V => I::hadamard::<V>()), ..I::copies() }
}

/// The conversion of values of T1 to codes Q with scales T. The specification's types, which scales have too, get
/// functions for more lengths of groups.
fn codes_of<I: Implementation, Q: CodeType, T: Float>(t1: ElementType, group: usize) -> Conversion {
    match ElementType::T3.contains(&t1) {
        true => scale_type!(t1, V => I::quantized::<Q, V, T>(group)),
        false => float_type!(t1, V => I::quantized_any::<Q, V, T>(group)),
    }
}

/// Where row functions come from.
trait Implementation {
    /// The row functions of a cache that holds the values as they are.
    fn copies() -> RowFunctions;

    /// Multiplies heads of V by a Hadamard matrix.
    fn hadamard<V: Float>() -> HadamardFunction;

    /// The conversion of floats V in a cache of C.
    fn converted<V: Float, C: Float>() -> Conversion;

    /// The conversion of values V to codes Q with scales T.
    fn quantized<Q: CodeType, V: Float, T: Float>(group: usize) -> Conversion;

    /// [`quantized`](Self::quantized) with few lengths of groups that the compiler knows: less to compile.
    fn quantized_any<Q: CodeType, V: Float, T: Float>(group: usize) -> Conversion {
        Self::quantized::<Q, V, T>(group)
    }
}

/// Plain Rust: it has no non-temporal stores.
struct Portable;

impl Implementation for Portable {
    fn copies() -> RowFunctions {
        RowFunctions {
            copy: Variants::same(portable::copy as CopyFunction),
            copy_narrow: portable::copy,
            stream_any: portable::copy,
            conversion: None,
            rotate: portable::rotate,
            hadamard: Self::hadamard::<f32>(),
            streams: false,
            fence: || (),
        }
    }

    fn hadamard<V: Float>() -> HadamardFunction {
        kvcache_simd::Portable::outlined::<Hadamard<V>>()
    }

    fn converted<V: Float, C: Float>() -> Conversion {
        Conversion {
            format: CacheFormat::Float,
            store: Variants::same(portable::convert::<V, C, true> as RowsFunction),
            load: Variants::same(portable::convert::<C, V, false> as RowsFunction),
            load_narrow: None,
        }
    }

    fn quantized<Q: CodeType, V: Float, T: Float>(_: usize) -> Conversion {
        Conversion {
            format: CacheFormat::Quantized,
            store: Variants::same(portable::store_quantized::<Q, V, T> as RowsFunction),
            load: Variants::same(portable::load_quantized::<Q, V, T> as RowsFunction),
            load_narrow: None,
        }
    }
}

/// The generic row functions, compiled for an instruction set.
struct Vector<S>(PhantomData<S>);

impl<S: QuantSimd> Implementation for Vector<S> {
    fn copies() -> RowFunctions {
        RowFunctions {
            copy: Variants { plain: S::outlined::<CopyRows>(), stream: S::outlined::<StreamRows>() },
            copy_narrow: S::Narrow::outlined::<StreamRows>(),
            stream_any: S::outlined::<StreamAny>(),
            conversion: None,
            rotate: S::outlined::<RotateHeads>(),
            hadamard: Self::hadamard::<f32>(),
            streams: S::STREAMS,
            fence: S::fence,
        }
    }

    fn hadamard<V: Float>() -> HadamardFunction {
        S::outlined::<Hadamard<V>>()
    }

    fn converted<V: Float, C: Float>() -> Conversion {
        Conversion {
            format: CacheFormat::Float,
            store: Variants {
                plain: S::outlined::<Convert<V, C, true, false>>(),
                stream: S::outlined::<Convert<V, C, true, true>>(),
            },
            load: Variants {
                plain: S::outlined::<Convert<C, V, false, false>>(),
                stream: S::outlined::<Convert<C, V, false, true>>(),
            },
            load_narrow: Some(S::Narrow::outlined::<Convert<C, V, false, true>>()),
        }
    }

    fn quantized<Q: CodeType, V: Float, T: Float>(group: usize) -> Conversion {
        match group {
            1 => grouped::<S, Q, V, T, 1>(),
            2 => grouped::<S, Q, V, T, 2>(),
            4 => grouped::<S, Q, V, T, 4>(),
            16 => grouped::<S, Q, V, T, 16>(),
            32 => grouped::<S, Q, V, T, 32>(),
            64 => grouped::<S, Q, V, T, 64>(),
            128 => grouped::<S, Q, V, T, 128>(),
            _ => Self::quantized_any::<Q, V, T>(group),
        }
    }

    fn quantized_any<Q: CodeType, V: Float, T: Float>(group: usize) -> Conversion {
        match group {
            8 => grouped::<S, Q, V, T, 8>(),
            _ if group >= S::LANES => grouped::<S, Q, V, T, LONG>(),
            _ => grouped::<S, Q, V, T, ODD>(),
        }
    }
}

/// The functions for groups of `GROUP` elements, which the compiler knows if they are common.
fn grouped<S: QuantSimd, Q: CodeType, V: Float, T: Float, const GROUP: usize>() -> Conversion {
    Conversion {
        format: CacheFormat::Quantized,
        store: Variants::same(S::outlined::<StoreQuantized<Q, V, T, GROUP>>()),
        load: Variants {
            plain: S::outlined::<LoadQuantized<Q, V, T, GROUP, false>>(),
            stream: S::outlined::<LoadQuantized<Q, V, T, GROUP, true>>(),
        },
        // AVX-512 looks up codes of four bits much faster than AVX2.
        load_narrow: (S::LANES < MOST_LANES || Q::BITS != QuantBit::Four)
            .then(|| S::Narrow::outlined::<LoadQuantized<Q, V, T, GROUP, true>>()),
    }
}

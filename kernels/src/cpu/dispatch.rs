//! Which row functions a call gets: the machine's widest instruction set, for the call's types and groups.

use std::marker::PhantomData;
use std::sync::OnceLock;

use half::f16;
use kvcache_schema::ElementType::{self, Float16, Float32, Int4 as I4, Int8 as I8};

#[cfg(target_arch = "aarch64")]
use super::aarch64::neon::Neon;
use super::elements::{Int4, Int8};
use super::functions::{Conversion, CopyFunction, RotateFunction, RowFunctions, RowsFunction, Stores};
use super::generic::convert::{LoadConverted, StoreConverted};
use super::generic::copy::{CopyRows, StreamRows};
use super::generic::dequantize::LoadQuantized;
use super::generic::group::{GroupCodes, GroupFloats, LONG, ODD};
use super::generic::lanes::FloatLanes;
use super::generic::outline::Outline;
use super::generic::quantize::StoreQuantized;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::generic::rotate::RotateHeads;
use super::portable;
use super::tiling::Tuning;
#[cfg(target_arch = "x86_64")]
use super::x86_64::{avx2::Avx2, avx512::Avx512, vendor::is_amd};

/// An instruction set that the kernel is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InstructionSet {
    /// Plain Rust, on every machine.
    Portable,
    /// NEON, of aarch64.
    Neon,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL, with FMA and F16C.
    Avx512,
    /// The same with AVX512-FP16, native float16 arithmetic.
    Avx512Fp16,
}

impl InstructionSet {
    /// Every instruction set, the best one last.
    pub const ALL: [Self; 5] = [Self::Portable, Self::Neon, Self::Avx2, Self::Avx512, Self::Avx512Fp16];

    /// Whether this machine has the instructions.
    pub fn is_supported(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => Neon::is_supported(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Avx2::is_supported(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => Avx512::<false>::is_supported(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Fp16 => Avx512::<true>::is_supported(),
            _ => false,
        }
    }

    /// The best that this machine has; detected once.
    pub fn best() -> Self {
        static BEST: OnceLock<InstructionSet> = OnceLock::new();
        *BEST.get_or_init(|| Self::ALL.into_iter().rfind(|set| set.is_supported()).unwrap_or(Self::Portable))
    }

    /// The name of the kernel that uses it.
    pub(crate) fn kernel_name(self) -> &'static str {
        match self {
            Self::Portable => "cpu-portable",
            Self::Neon => "cpu-neon",
            Self::Avx2 => "cpu-avx2",
            Self::Avx512 => "cpu-avx512",
            Self::Avx512Fp16 => "cpu-avx512fp16",
        }
    }

    /// Its row functions for these types (T1, T2, T3) and groups of so many elements.
    ///
    /// Its functions may be called if [`is_supported`](Self::is_supported).
    pub(crate) fn row_functions(
        self,
        types: (ElementType, ElementType, Option<ElementType>),
        group: usize,
    ) -> RowFunctions {
        match self {
            #[cfg(target_arch = "aarch64")]
            Self::Neon => for_types::<Vector<Neon>>(types, group),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => for_types::<Vector<Avx2>>(types, group),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => for_types::<Vector<Avx512<false>>>(types, group),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Fp16 => for_types::<Vector<Avx512<true>>>(types, group),
            _ => for_types::<Portable>(types, group),
        }
    }

    /// Its function that rotates heads; it may be called if [`is_supported`](Self::is_supported).
    pub(crate) fn rotate_function(self) -> RotateFunction {
        match self {
            #[cfg(target_arch = "aarch64")]
            Self::Neon => Neon::outlined::<RotateHeads>(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Avx2::outlined::<RotateHeads>(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => Avx512::<false>::outlined::<RotateHeads>(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Fp16 => Avx512::<true>::outlined::<RotateHeads>(),
            _ => portable::rotate,
        }
    }
}

/// How large loads are cut on this machine, by the maker of its processor; detected once.
pub(crate) fn tuning() -> Tuning {
    static TUNING: OnceLock<Tuning> = OnceLock::new();
    *TUNING.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        if is_amd() {
            return Tuning::AMD;
        }
        Tuning::INTEL
    })
}

/// The one match on a call's types.
fn for_types<I: Implementation>(types: (ElementType, ElementType, Option<ElementType>), group: usize) -> RowFunctions {
    let conversion = match types {
        (Float32, Float32, None) | (Float16, Float16, None) | (I8, I8, None) => Conversion::None,
        (Float32, Float16, None) => I::converted::<f32, f16>(),
        (Float16, Float32, None) => I::converted::<f16, f32>(),
        (Float32, I8, Some(Float32)) => I::quantized::<Int8, f32, f32>(group),
        (Float32, I8, Some(Float16)) => I::quantized::<Int8, f32, f16>(group),
        (Float16, I8, Some(Float32)) => I::quantized::<Int8, f16, f32>(group),
        (Float16, I8, Some(Float16)) => I::quantized::<Int8, f16, f16>(group),
        (Float32, I4, Some(Float32)) => I::quantized::<Int4, f32, f32>(group),
        (Float32, I4, Some(Float16)) => I::quantized::<Int4, f32, f16>(group),
        (Float16, I4, Some(Float32)) => I::quantized::<Int4, f16, f32>(group),
        (Float16, I4, Some(Float16)) => I::quantized::<Int4, f16, f16>(group),
        types => unreachable!("a problem has a legal combination of types, not {types:?}"),
    };
    RowFunctions { conversion, ..I::copies() }
}

/// Where row functions come from.
trait Implementation {
    /// Those of a cache that holds the values as they are.
    fn copies() -> RowFunctions;

    /// Those of floats V in a cache of C.
    fn converted<V: FloatLanes, C: FloatLanes>() -> Conversion;

    /// Those of values V as codes Q with scales T.
    fn quantized<Q: GroupCodes, V: GroupFloats, T: GroupFloats>(group: usize) -> Conversion;
}

/// Plain Rust: it has no non-temporal stores.
struct Portable;

impl Implementation for Portable {
    fn copies() -> RowFunctions {
        let copy = Stores::same(portable::copy as CopyFunction);
        RowFunctions { copy, conversion: Conversion::None, streams: false, fence: || () }
    }

    fn converted<V: FloatLanes, C: FloatLanes>() -> Conversion {
        Conversion::Float {
            store: Stores::same(portable::store_converted::<V, C> as RowsFunction),
            load: Stores::same(portable::load_converted::<V, C> as RowsFunction),
        }
    }

    fn quantized<Q: GroupCodes, V: GroupFloats, T: GroupFloats>(_: usize) -> Conversion {
        Conversion::Quantized {
            store: portable::store_quantized::<Q, V, T>,
            load: Stores::same(portable::load_quantized::<Q, V, T> as RowsFunction),
        }
    }
}

/// The generic row functions, compiled for an instruction set.
struct Vector<S>(PhantomData<S>);

impl<S: Outline> Implementation for Vector<S> {
    fn copies() -> RowFunctions {
        let copy = Stores { plain: S::outlined::<CopyRows>(), stream: S::outlined::<StreamRows>() };
        RowFunctions { copy, conversion: Conversion::None, streams: S::STREAMS, fence: S::fence }
    }

    fn converted<V: FloatLanes, C: FloatLanes>() -> Conversion {
        Conversion::Float {
            store: Stores {
                plain: S::outlined::<StoreConverted<V, C, false>>(),
                stream: S::outlined::<StoreConverted<V, C, true>>(),
            },
            load: Stores {
                plain: S::outlined::<LoadConverted<V, C, false>>(),
                stream: S::outlined::<LoadConverted<V, C, true>>(),
            },
        }
    }

    fn quantized<Q: GroupCodes, V: GroupFloats, T: GroupFloats>(group: usize) -> Conversion {
        match group {
            1 => grouped::<S, Q, V, T, 1>(),
            2 => grouped::<S, Q, V, T, 2>(),
            4 => grouped::<S, Q, V, T, 4>(),
            8 => grouped::<S, Q, V, T, 8>(),
            16 => grouped::<S, Q, V, T, 16>(),
            32 => grouped::<S, Q, V, T, 32>(),
            64 => grouped::<S, Q, V, T, 64>(),
            128 => grouped::<S, Q, V, T, 128>(),
            _ if group >= S::LANES => grouped::<S, Q, V, T, LONG>(),
            _ => grouped::<S, Q, V, T, ODD>(),
        }
    }
}

/// The functions for groups of `GROUP` elements, which the compiler knows if they are common.
fn grouped<S: Outline, Q: GroupCodes, V: GroupFloats, T: GroupFloats, const GROUP: usize>() -> Conversion {
    Conversion::Quantized {
        store: S::outlined::<StoreQuantized<Q, V, T, GROUP>>(),
        load: Stores {
            plain: S::outlined::<LoadQuantized<Q, V, T, GROUP, false>>(),
            stream: S::outlined::<LoadQuantized<Q, V, T, GROUP, true>>(),
        },
    }
}

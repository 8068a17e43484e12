//! The variants of the functions that move rows, one for each instruction set, and the choice of one.

use std::sync::OnceLock;

use kvcache_schema::ElementType;

#[cfg(target_arch = "x86_64")]
use super::avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use super::avx512::Avx512;
use super::format::Format;
use super::portable::Portable;
use super::rows::Rows;
use super::simd::Simd;

/// An instruction set that the kernel is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InstructionSet {
    /// Plain Rust, on every machine.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL, with FMA and F16C.
    Avx512,
}

impl InstructionSet {
    /// Every instruction set, the widest last.
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512];

    /// Whether this machine has the instructions.
    pub fn is_supported(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Avx2::is_supported(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => Avx512::is_supported(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// The widest that this machine has; found out once.
    pub fn best() -> Self {
        static BEST: OnceLock<InstructionSet> = OnceLock::new();
        *BEST.get_or_init(|| Self::ALL.into_iter().rfind(|set| set.is_supported()).unwrap_or(Self::Portable))
    }

    /// The name of the kernel that uses it.
    pub(super) fn kernel_name(self) -> &'static str {
        match self {
            Self::Portable => "cpu-portable",
            Self::Avx2 => "cpu-avx2",
            Self::Avx512 => "cpu-avx512",
        }
    }

    /// Its functions for these types (T1, T2, T3).
    ///
    /// # Safety
    /// [`is_supported`](Self::is_supported).
    pub(super) unsafe fn rows(self, t1: ElementType, t2: ElementType, t3: Option<ElementType>) -> Rows {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Rows::of::<Avx2>(t1, t2, t3),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => Rows::of::<Avx512>(t1, t2, t3),
            _ => Rows::of::<Portable>(t1, t2, t3),
        }
    }
}

/// Functions that move blocks of any format.
pub(super) trait Variant {
    /// Those for a format.
    fn rows<F: Format>() -> Rows;
}

/// What is compiled by itself for an instruction set.
pub(super) trait Task {
    /// Does it.
    ///
    /// # Safety
    /// The instruction set is enabled; else the task's own conditions.
    unsafe fn run<S: Simd>(self);
}

/// An instruction set that runs tasks as functions of their own: there are many, and what one needs is not to be made ready for
/// the others.
pub(super) trait Apart: Simd {
    /// Runs a task.
    ///
    /// # Safety
    /// As for [`Task::run`].
    unsafe fn run<T: Task>(task: T);
}

/// Makes a `Simd` a `Variant` that runs tasks [`Apart`]: what it calls is compiled with its instructions enabled.
#[cfg(target_arch = "x86_64")]
macro_rules! simd_variant {
    ($simd:ident, $features:literal) => {
        impl Variant for $simd {
            fn rows<F: Format>() -> Rows {
                Rows { store: store::<F>, load: load::<F>, fence }
            }
        }

        #[target_feature(enable = $features)]
        unsafe fn store<F: Format>(block: &Block) {
            // SAFETY: the instructions are enabled here; the rest is the promise of a Move's caller.
            unsafe { block::store::<$simd, F>(block) }
        }

        #[target_feature(enable = $features)]
        unsafe fn load<F: Format>(block: &Block) {
            // SAFETY: the instructions are enabled here; the rest is the promise of a Move's caller.
            unsafe { block::load::<$simd, F>(block) }
        }

        #[target_feature(enable = $features)]
        #[inline(never)]
        unsafe fn run<T: Task>(task: T) {
            // SAFETY: the instructions are enabled here; the rest is the promise of Apart's caller.
            unsafe { task.run::<$simd>() }
        }

        impl Apart for $simd {
            #[inline(always)]
            unsafe fn run<T: Task>(task: T) {
                // SAFETY: the caller's promise.
                unsafe { run(task) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
pub(super) use simd_variant;

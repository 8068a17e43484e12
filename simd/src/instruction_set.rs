//! The instruction sets, which of them the machine has, and who made its processor.

use std::sync::OnceLock;

/// An instruction set that kernels are compiled for.
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
    /// AVX-512 with AVX512-FP16, native float16 arithmetic.
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
            Self::Neon => cfg!(target_endian = "little") && std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
                    && is_x86_feature_detected!("popcnt")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_supported()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Fp16 => Self::Avx512.is_supported() && is_x86_feature_detected!("avx512fp16"),
            _ => false,
        }
    }

    /// The best that this machine has; detected once.
    pub fn best() -> Self {
        static BEST: OnceLock<InstructionSet> = OnceLock::new();
        *BEST.get_or_init(|| Self::ALL.into_iter().rfind(|set| set.is_supported()).unwrap_or(Self::Portable))
    }

    /// The name of a kernel that uses it, as a user writes it.
    pub const fn kernel_name(self) -> &'static str {
        match self {
            Self::Portable => "cpu-portable",
            Self::Neon => "cpu-neon",
            Self::Avx2 => "cpu-avx2",
            Self::Avx512 => "cpu-avx512",
            Self::Avx512Fp16 => "cpu-avx512fp16",
        }
    }
}

/// Whether the processor is AMD's.
pub fn is_amd() -> bool {
    amd_family() > 0
}

/// The family of AMD's processor, 26 of Zen 5, or 0 of another's; asked once: a virtual machine takes long to answer.
pub fn amd_family() -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        static FAMILY: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| {
            // SAFETY: every x86-64 has the instruction and its leaves 0 and 1.
            #[allow(unused_unsafe, reason = "safe since Rust 1.95 at the latest, not in every version supported")]
            let [name, version] = [0, 1].map(|leaf| unsafe { std::arch::x86_64::__cpuid(leaf) });
            let is_amd = [name.ebx, name.edx, name.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD";
            if is_amd { (version.eax >> 8 & 0xf) + (version.eax >> 20 & 0xff) } else { 0 }
        });
        *FAMILY
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

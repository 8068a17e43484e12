//! The instruction sets, which of them the machine has, and who made its processor.

use std::sync::LazyLock;

/// An instruction set that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InstructionSet {
    /// Plain Rust, on every machine.
    Portable,
    /// NEON, of aarch64.
    Neon,
    /// NEON with dot products of int8.
    NeonDotprod,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX2 with AVX-VNNI, dot products of int8 and int16.
    AvxVnni,
    /// AVX-512 F, BW, DQ and VL, with FMA and F16C.
    Avx512,
    /// AVX-512 with AVX512-VNNI, dot products of int8 and int16.
    Avx512Vnni,
    /// AVX-512 with AVX512-VNNI and AVX512-FP16, native float16 arithmetic.
    Avx512Fp16,
}

impl InstructionSet {
    /// Every instruction set, the best one last.
    pub const ALL: [Self; 8] = [
        Self::Portable,
        Self::Neon,
        Self::NeonDotprod,
        Self::Avx2,
        Self::AvxVnni,
        Self::Avx512,
        Self::Avx512Vnni,
        Self::Avx512Fp16,
    ];

    /// The environment variable with the [name](Self::name) of the best set that [`best`](Self::best) may choose, in
    /// the order of [`ALL`](Self::ALL). The machine need not have that set. A name that does not exist limits nothing,
    /// which one line on standard error says.
    pub const VARIABLE: &str = "KVCACHE_INSTRUCTION_SET";

    /// Whether this machine has the instructions.
    pub fn is_supported(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => cfg!(target_endian = "little") && std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotprod => Self::Neon.is_supported() && std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
                    && is_x86_feature_detected!("popcnt")
            }
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Self::Avx2.is_supported() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_supported()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => Self::Avx512.is_supported() && is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Fp16 => Self::Avx512Vnni.is_supported() && is_x86_feature_detected!("avx512fp16"),
            _ => false,
        }
    }

    /// The best that this machine has, up to the [limit](Self::limit); chosen once.
    pub fn best() -> Self {
        static BEST: LazyLock<InstructionSet> = LazyLock::new(|| {
            let limit = InstructionSet::limit().unwrap_or_else(|name| {
                let names = InstructionSet::ALL.map(InstructionSet::name).join(", ");
                eprintln!("{} limits nothing: expected one of {names}, got {name:?}", InstructionSet::VARIABLE);
                None
            });
            InstructionSet::best_up_to(limit)
        });
        *BEST
    }

    /// The best that this machine has, up to a limit in the order of [`ALL`](Self::ALL).
    fn best_up_to(limit: Option<Self>) -> Self {
        let last = Self::ALL.into_iter().position(|set| Some(set) == limit).unwrap_or(Self::ALL.len() - 1);
        Self::ALL[..=last].iter().copied().rfind(|set| set.is_supported()).unwrap_or(Self::Portable)
    }

    /// The set that [`VARIABLE`](Self::VARIABLE) names; none where it is unset or empty.
    ///
    /// # Errors
    /// What it says, if no set has that name.
    pub fn limit() -> Result<Option<Self>, String> {
        match std::env::var_os(Self::VARIABLE) {
            Some(name) if !name.is_empty() => {
                let named = Self::ALL.into_iter().find(|set| name == set.name());
                named.map(Some).ok_or_else(|| name.to_string_lossy().into_owned())
            }
            _ => Ok(None),
        }
    }

    /// The set with the same float registers, to which this one adds products of integers alone: functions without such
    /// products are compiled for one of the two.
    pub const fn of_floats(self) -> Self {
        match self {
            Self::NeonDotprod => Self::Neon,
            Self::AvxVnni => Self::Avx2,
            Self::Avx512Vnni => Self::Avx512,
            other => other,
        }
    }

    /// Every set that is [its own](Self::of_floats), the best one last.
    pub fn all_of_floats() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|set| set.of_floats() == *set)
    }

    /// Its name in [`VARIABLE`](Self::VARIABLE).
    pub fn name(self) -> &'static str {
        &self.kernel_name()["cpu-".len()..]
    }

    /// The name of a kernel that uses it, as a user writes it.
    pub const fn kernel_name(self) -> &'static str {
        match self {
            Self::Portable => "cpu-portable",
            Self::Neon => "cpu-neon",
            Self::NeonDotprod => "cpu-neon-dotprod",
            Self::Avx2 => "cpu-avx2",
            Self::AvxVnni => "cpu-avx-vnni",
            Self::Avx512 => "cpu-avx512",
            Self::Avx512Vnni => "cpu-avx512-vnni",
            Self::Avx512Fp16 => "cpu-avx512-fp16",
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
        static FAMILY: LazyLock<u32> = LazyLock::new(|| {
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

#[cfg(test)]
mod tests {
    use super::InstructionSet as Set;

    #[test]
    fn a_limit_need_not_be_supported() {
        assert_eq!(Set::best_up_to(Some(Set::Portable)), Set::Portable);
        for limit in Set::ALL {
            let best = Set::best_up_to(Some(limit));
            let at = |set| Set::ALL.into_iter().position(|each| each == set);
            assert!(best.is_supported() && at(best) <= at(limit), "{limit:?}: {best:?}");
            assert_eq!(best == limit, limit.is_supported(), "{limit:?}: {best:?}");
        }
        assert_eq!(Set::best_up_to(None), Set::best_up_to(Set::ALL.last().copied()));
    }
}

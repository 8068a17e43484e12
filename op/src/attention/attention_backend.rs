//! The choice among the attention kernels.

use kvcache_attention::{AttentionCpu, AttentionKernel, AttentionReference};
use kvcache_kernels::InstructionSet;

/// An attention kernel. Each sums in an order of its own, which a token's sequence alone decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AttentionBackend {
    /// The scalar reference, which follows the specification step by step; slow.
    Reference,
    /// The fast CPU kernel.
    Cpu(AttentionCpu),
}

impl Default for AttentionBackend {
    /// The fast kernel with the widest instruction set of this machine.
    fn default() -> Self {
        Self::Cpu(AttentionCpu::default())
    }
}

impl AttentionBackend {
    /// Every backend that this machine can run: the reference, then the fast kernel with each instruction set.
    pub fn all() -> impl Iterator<Item = Self> {
        let cpus = InstructionSet::ALL.into_iter().filter_map(AttentionCpu::with_instructions);
        std::iter::once(Self::Reference).chain(cpus.map(Self::Cpu))
    }

    /// The backend's name, as a user writes it.
    pub fn name(&self) -> &'static str {
        self.kernel().name()
    }

    pub(crate) fn kernel(&self) -> &dyn AttentionKernel {
        match self {
            Self::Reference => &AttentionReference,
            Self::Cpu(cpu) => cpu,
        }
    }
}

//! The choice among the CPU kernels.

use kvcache_kernels::{Cpu, InstructionSet, Kernel, Reference};

/// A CPU kernel. All give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backend {
    /// The scalar reference, which follows the specification step by step; slow. The others must match it bit for bit.
    Reference,
    /// The fast CPU kernel.
    Cpu(Cpu),
}

impl Default for Backend {
    /// The fast kernel with the widest instruction set of this machine.
    fn default() -> Self {
        Self::Cpu(Cpu::default())
    }
}

impl Backend {
    /// Every backend that this machine can run: the reference, then the fast kernel with each instruction set.
    pub fn all() -> impl Iterator<Item = Self> {
        let cpus = InstructionSet::ALL.into_iter().filter_map(Cpu::with_instructions);
        std::iter::once(Self::Reference).chain(cpus.map(Self::Cpu))
    }

    /// The backend's name, as a user writes it.
    pub fn name(&self) -> &'static str {
        self.kernel().name()
    }

    pub(crate) fn kernel(&self) -> &dyn Kernel {
        match self {
            Self::Reference => &Reference,
            Self::Cpu(cpu) => cpu,
        }
    }
}

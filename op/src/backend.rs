//! The kernels that a caller can choose.

use kvcache_kernels::{Cpu, InstructionSet, Kernel, Reference};

/// A kernel. All give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Reads like the specification; slow. It judges the others.
    Reference,
    /// The fast CPU kernel.
    Cpu(Cpu),
}

impl Default for Backend {
    /// The CPU kernel with the widest instructions that this machine has.
    fn default() -> Self {
        Self::Cpu(Cpu::default())
    }
}

impl Backend {
    /// Every backend that this machine can run: the reference, then the CPU kernel with each set of instructions.
    pub fn all() -> impl Iterator<Item = Self> {
        let cpus = InstructionSet::ALL.into_iter().filter_map(Cpu::with_instructions);
        std::iter::once(Self::Reference).chain(cpus.map(Self::Cpu))
    }

    /// The backend's name, as a user writes it.
    pub fn name(&self) -> &'static str {
        self.kernel().name()
    }

    /// The kernel itself.
    pub(crate) fn kernel(&self) -> &dyn Kernel {
        match self {
            Self::Reference => &Reference,
            Self::Cpu(cpu) => cpu,
        }
    }
}

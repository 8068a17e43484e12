//! The kernels that a caller can choose.

use kvcache_kernels::{Cpu, Kernel, Reference};

/// A kernel. All give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Backend {
    /// Reads like the specification; slow. It judges the others.
    Reference,
    /// The fast CPU kernel.
    #[default]
    Cpu,
}

impl Backend {
    /// Every backend.
    pub const ALL: [Self; 2] = [Self::Reference, Self::Cpu];

    /// The backend's name, as a user writes it.
    pub fn name(self) -> &'static str {
        self.kernel().name()
    }

    /// The kernel itself.
    pub(crate) fn kernel(self) -> &'static dyn Kernel {
        match self {
            Self::Reference => &Reference,
            Self::Cpu => &Cpu,
        }
    }
}

//! The choice among the attention kernels.

use kvcache_attention::{AttentionKernel, AttentionReference};

/// An attention kernel. Each sums in an order of its own, which a token's sequence alone decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum AttentionBackend {
    /// The scalar reference, which follows the specification step by step; slow.
    #[default]
    Reference,
}

impl AttentionBackend {
    /// Every backend that this machine can run.
    pub fn all() -> impl Iterator<Item = Self> {
        std::iter::once(Self::Reference)
    }

    /// The backend's name, as a user writes it.
    pub fn name(&self) -> &'static str {
        self.kernel().name()
    }

    /// The kernel itself.
    pub(crate) fn kernel(&self) -> &dyn AttentionKernel {
        match self {
            Self::Reference => &AttentionReference,
        }
    }
}

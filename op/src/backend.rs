//! What runs a call on the host: the choice among the CPU kernels, and the threads of rayon.

use kvcache_attention::{AttentionCpu, AttentionKernel, AttentionReference};
#[cfg(feature = "rayon")]
use kvcache_kernels::Workers;
use kvcache_kernels::{Cpu, InstructionSet, Kernel, Reference};
use kvcache_matmul::{MatmulCpu, MatmulKernel, MatmulReference};
#[cfg(feature = "rayon")]
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};

/// A CPU kernel. All give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backend {
    /// The scalar reference, which follows the specification step by step; slow. The others must match it bit for bit.
    Reference,
    /// The fast CPU kernel.
    Cpu(Cpu),
}

impl Default for Backend {
    /// The fast kernel with the widest instruction set of this machine, up to `KVCACHE_INSTRUCTION_SET`.
    fn default() -> Self {
        Self::Cpu(Cpu::default())
    }
}

impl Backend {
    /// Every backend that this machine can run: the reference, then the fast kernel with each instruction set.
    pub fn all() -> impl Iterator<Item = Self> {
        let cpus = InstructionSet::all_of_floats().filter_map(Cpu::with_instructions);
        std::iter::once(Self::Reference).chain(cpus.map(Self::Cpu))
    }

    /// The backend's name, as a user writes it.
    pub fn name(&self) -> &'static str {
        self.kernel().name()
    }

    fn kernel(&self) -> &dyn Kernel {
        match self {
            Self::Reference => &Reference,
            Self::Cpu(cpu) => cpu,
        }
    }
}

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
    /// The fast kernel with the widest instruction set of this machine, up to `KVCACHE_INSTRUCTION_SET`.
    fn default() -> Self {
        Self::Cpu(AttentionCpu::default())
    }
}

impl AttentionBackend {
    /// Every backend that this machine can run: the reference, then the fast kernel with each instruction set.
    pub fn all() -> impl Iterator<Item = Self> {
        let cpus = InstructionSet::all_of_floats().filter_map(AttentionCpu::with_instructions);
        std::iter::once(Self::Reference).chain(cpus.map(Self::Cpu))
    }

    /// The backend's name, as a user writes it.
    pub fn name(&self) -> &'static str {
        self.kernel().name()
    }

    fn kernel(&self) -> &dyn AttentionKernel {
        match self {
            Self::Reference => &AttentionReference,
            Self::Cpu(cpu) => cpu,
        }
    }
}

/// A kernel of products with quantized matrices. All give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MatMulBackend {
    /// The scalar reference, which follows the definition step by step; slow. The others must match it bit for bit.
    Reference,
    /// The fast CPU kernel.
    Cpu(MatmulCpu),
}

impl Default for MatMulBackend {
    /// The fast kernel with the widest instruction set of this machine, up to `KVCACHE_INSTRUCTION_SET`.
    fn default() -> Self {
        Self::Cpu(MatmulCpu::default())
    }
}

impl MatMulBackend {
    /// Every backend that this machine can run: the reference, then the fast kernel with each instruction set.
    pub fn all() -> impl Iterator<Item = Self> {
        let cpus = InstructionSet::ALL.into_iter().filter_map(MatmulCpu::with_instructions);
        std::iter::once(Self::Reference).chain(cpus.map(Self::Cpu))
    }

    /// The backend's name, as a user writes it.
    pub fn name(&self) -> &'static str {
        self.kernel().name()
    }

    fn kernel(&self) -> &dyn MatmulKernel {
        match self {
            Self::Reference => &MatmulReference,
            Self::Cpu(cpu) => cpu,
        }
    }
}

/// The kernels of an operator, each where it needs one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Backends {
    /// Stores and loads.
    pub cache: Backend,
    /// Attends.
    pub attention: AttentionBackend,
    /// Multiplies with quantized matrices.
    pub matmul: MatMulBackend,
}

impl Backends {
    pub(crate) fn kernels(&self) -> Kernels<'_> {
        Kernels { cache: self.cache.kernel(), attention: self.attention.kernel(), matmul: self.matmul.kernel() }
    }
}

/// Kernels of any maker: [`Checked::run_on`](crate::Checked::run_on).
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "trait objects without one")]
pub struct Kernels<'k> {
    /// Stores and loads.
    pub cache: &'k dyn Kernel,
    /// Attends.
    pub attention: &'k dyn AttentionKernel,
    /// Multiplies with quantized matrices.
    pub matmul: &'k dyn MatmulKernel,
}

/// The threads of the rayon pool that the call is made in: the global one, or the pool of `ThreadPool::install`.
#[cfg(feature = "rayon")]
#[derive(Debug, Clone, Copy, Default)]
pub struct Rayon;

#[cfg(feature = "rayon")]
impl Workers for Rayon {
    fn threads(&self) -> usize {
        rayon::current_num_threads()
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..tasks).into_par_iter().with_max_len(1).for_each(task);
    }
}

//! Every kernel that this machine can run.

use kvcache_attention::{AttentionCpu, AttentionKernel, AttentionReference};
use kvcache_kernels::InstructionSet;

/// The reference, and the fast kernel on each instruction set.
pub fn kernels() -> Vec<Box<dyn AttentionKernel>> {
    let reference: Box<dyn AttentionKernel> = Box::new(AttentionReference);
    let cpu = InstructionSet::ALL.into_iter().filter_map(AttentionCpu::with_instructions);
    std::iter::once(reference).chain(cpu.map(|kernel| Box::new(kernel) as _)).collect()
}

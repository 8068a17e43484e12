//! The attention kernels by themselves: the output of a token depends on its own sequence alone, bit for bit. Golden
//! cases reach the kernels through the operators, in the tests of `kvcache-op`.

mod calls;
mod long_sequences;

use kvcache_attention::{AttentionCpu, AttentionKernel, AttentionReference};
use kvcache_kernels::InstructionSet;

/// The fast kernel on each instruction set of this machine.
fn fast() -> impl Iterator<Item = AttentionCpu> {
    InstructionSet::all_of_floats().filter_map(AttentionCpu::with_instructions)
}

/// The reference, and the fast kernels.
fn kernels() -> Vec<Box<dyn AttentionKernel>> {
    let reference: Box<dyn AttentionKernel> = Box::new(AttentionReference);
    std::iter::once(reference).chain(fast().map(|kernel| Box::new(kernel) as _)).collect()
}

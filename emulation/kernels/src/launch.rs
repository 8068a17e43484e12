//! One launch on the CPU.

use std::ffi::{CStr, c_char, c_void};

use kvcache_kernels::cuda::{BLOCK, Launch, Module, Parameters};
use thiserror::Error;

use crate::builds::Build;
use crate::device_memory::DeviceMemory;

/// What a launch may do with an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read it.
    Read,
    /// Write it, no byte from two threads.
    Write,
    /// Do atomic operations on it.
    Atomic,
}

/// Memory that a launch may use. No address outside of the operands may be touched.
#[derive(Debug, Clone, Copy)]
pub struct Operand<'a> {
    /// The memory.
    pub memory: &'a DeviceMemory,
    /// What the launch may do with it.
    pub access: Access,
}

/// The order in which the threads of a block run from one collective operation to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The first thread first.
    Forward,
    /// The last thread first.
    Backward,
    /// Any order, decided by a number.
    Random(u32),
}

/// What a launch did that a kernel must not do, in words.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{kernel}: {message}")]
pub struct Fault {
    /// The kernel.
    pub kernel: &'static str,
    /// The block, the thread and what it did.
    pub message: String,
}

/// As in `shim.hpp`.
#[repr(C)]
struct ShimOperand {
    data: *const u8,
    len: u64,
    access: u32,
    reserved: u32,
    writers: *mut u64,
}

/// As in `shim.hpp`.
#[repr(C)]
pub(crate) struct ShimLaunch {
    parameters: *const c_void,
    operands: *const ShimOperand,
    operand_count: u64,
    grid: u32,
    block: u32,
    seed: u64,
    patience: u64,
    message: *mut c_char,
    message_len: u64,
}

/// More collective operations than a block makes: it looks up the batch, and for each of at most all rounds it
/// shuffles.
fn patience(parameters: &Parameters) -> u64 {
    let units = parameters.rows as u64 * u64::from(parameters.units_per_token.value);
    1000 + 200 * units.div_ceil(u64::from(parameters.round))
}

/// Runs a launch with the kernels of `build`, which must be for the launch's types.
///
/// # Errors
/// [`Fault`].
pub fn launch(build: &Build, launch: &Launch, operands: &[Operand<'_>], order: Order) -> Result<(), Fault> {
    assert_eq!(build.types, launch.module.types);
    let Module { store_wide, store_narrow, load_wide, load_narrow, .. } = launch.module;
    let kernels = [store_wide, store_narrow, load_wide, load_narrow];
    let kernel = kernels.into_iter().position(|&kernel| kernel == launch.kernel);
    let kernel = kernel.unwrap_or_else(|| unreachable!("{} is in no module", launch.kernel));
    let mut writers: Vec<Vec<u64>> = operands
        .iter()
        .map(|operand| match operand.access {
            Access::Write if !operand.memory.is_sparse() => vec![0; operand.memory.bytes().len()],
            Access::Read | Access::Write | Access::Atomic => Vec::new(),
        })
        .collect();
    let shim_operands: Vec<_> = operands
        .iter()
        .zip(&mut writers)
        .map(|(operand, writers)| ShimOperand {
            data: operand.memory.data().as_ptr(),
            len: operand.memory.bytes().len() as u64,
            access: operand.access as u32,
            reserved: 0,
            writers: if writers.is_empty() { std::ptr::null_mut() } else { writers.as_mut_ptr() },
        })
        .collect();
    let mut message = [0u8; 256];
    let shim_launch = ShimLaunch {
        parameters: (&raw const launch.parameters).cast(),
        operands: shim_operands.as_ptr(),
        operand_count: shim_operands.len() as u64,
        grid: launch.grid,
        block: BLOCK,
        seed: match order {
            Order::Forward => 0,
            Order::Backward => 1,
            Order::Random(seed) => u64::from(seed) + 2,
        },
        patience: patience(&launch.parameters),
        message: message.as_mut_ptr().cast(),
        message_len: message.len() as u64,
    };
    // SAFETY: all pointers are to what lives here, of the lengths given; the kernels touch the operands alone, for the
    // shim checks each access before it is made. What they write is reached through raw pointers of DeviceMemory.
    let failed = unsafe { (build.launch)(kernel as u32, &raw const shim_launch) };
    if failed == 0 {
        return Ok(());
    }
    let message = CStr::from_bytes_until_nul(&message).unwrap_or_default().to_string_lossy().into_owned();
    Err(Fault { kernel: launch.kernel, message })
}

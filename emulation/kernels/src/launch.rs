//! Running one launch on the CPU, on emulated device memory.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::CStr;
use std::ptr::NonNull;

use kvcache_attention::cuda::AttentionParameters;
use kvcache_kernels::cuda::{BLOCK, IndexParameters, Launch, MoveParameters, Parameters, RotateParameters};
use thiserror::Error;

use crate::shim::{Build, ShimLaunch, ShimOperand};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Write it, each byte from one thread only.
    Write,
    Atomic,
}

/// Memory that a launch may access. An access outside of all operands is a fault.
#[derive(Debug, Clone, Copy)]
pub struct Operand<'a> {
    pub memory: &'a DeviceMemory,
    pub access: Access,
}

/// The order in which the threads of a block run, between one collective operation and the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Forward,
    Backward,
    Random(u32),
}

/// A violation of the rules for kernels, such as an access outside of all operands.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{kernel}: {message}")]
pub struct Fault {
    pub kernel: &'static str,
    pub message: String,
}

pub trait KernelParameters {
    /// An upper bound of a block's collective operations.
    fn max_collectives(&self) -> u64;
}

impl KernelParameters for Parameters {
    /// It scans the batch, and shuffles in each of at most all rounds.
    fn max_collectives(&self) -> u64 {
        let units = self.rows as u64 * u64::from(self.units_per_token.value);
        1000 + 200 * units.div_ceil(u64::from(self.round))
    }
}

impl KernelParameters for AttentionParameters {
    /// It scans the batch, and each warp shuffles for each row of a tile in each block of 64 keys.
    fn max_collectives(&self) -> u64 {
        let blocks = self.tokens.rows as u64 / 64 + 2;
        1000 + 1000 * (self.units + 1) * blocks
    }
}

impl KernelParameters for IndexParameters {
    fn max_collectives(&self) -> u64 {
        0
    }
}

impl KernelParameters for MoveParameters {
    fn max_collectives(&self) -> u64 {
        0
    }
}

impl KernelParameters for RotateParameters {
    /// Each warp joins its lanes three times for each head.
    fn max_collectives(&self) -> u64 {
        1000 + 3 * self.heads
    }
}

/// Runs a launch with the kernels of `build`, which must be for the launch's types.
///
/// # Errors
/// [`Fault`].
pub fn launch<P: KernelParameters>(
    build: &Build,
    launch: &Launch<P>,
    operands: &[Operand<'_>],
    order: Order,
) -> Result<(), Fault> {
    assert_eq!(build.types, launch.module.types);
    let kernel = launch.module.kernels.iter().position(|kernel| *kernel == launch.kernel);
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
        max_collectives: launch.parameters.max_collectives(),
        message: message.as_mut_ptr().cast(),
        message_len: message.len() as u64,
    };
    // SAFETY: every pointer is to a local or to an operand, of the length given beside it. The kernels access global
    // memory through the shim only, which checks that an access is inside of an operand; those that are written are
    // reached through the raw pointers of DeviceMemory.
    let failed = unsafe { (build.launch)(kernel as u32, &raw const shim_launch) };
    if failed == 0 {
        return Ok(());
    }
    let message = CStr::from_bytes_until_nul(&message).unwrap_or_default().to_string_lossy().into_owned();
    Err(Fault { kernel: launch.kernel, message })
}

const ALIGN: usize = 256;

/// An allocation of device memory, `shift` bytes behind an address that is a multiple of 256.
#[derive(Debug)]
pub struct DeviceMemory {
    allocation: NonNull<u8>,
    layout: Layout,
    shift: usize,
    len: usize,
}

impl DeviceMemory {
    /// Memory of `len` bytes, each of them 0xa5.
    pub fn new(len: usize, shift: usize) -> Self {
        let layout = Self::layout_of(shift + len, ALIGN);
        // SAFETY: the layout has at least one byte: see layout_of.
        let Some(allocation) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        // SAFETY: the allocation has `layout.size()` bytes.
        unsafe { allocation.write_bytes(0xa5, layout.size()) };
        Self { allocation, layout, shift, len }
    }

    /// Memory of `len` zeros, whose pages are only allocated when they are written. Launches do not check that each
    /// byte of it is written by one thread only.
    pub fn sparse(len: usize) -> Self {
        // The allocator's own alignment: with a larger one it would write the zeros itself.
        let layout = Self::layout_of(len, 16);
        // SAFETY: the layout has at least one byte: see layout_of.
        let Some(allocation) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        Self { allocation, layout, shift: 0, len }
    }

    pub(crate) fn is_sparse(&self) -> bool {
        self.layout.align() != ALIGN
    }

    pub fn of(bytes: &[u8], shift: usize) -> Self {
        let mut memory = Self::new(bytes.len(), shift);
        memory.bytes_mut().copy_from_slice(bytes);
        memory
    }

    pub fn address(&self) -> u64 {
        self.data().as_ptr().expose_provenance() as u64
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the allocation has `len` bytes behind the shift, which new and sparse have initialized.
        unsafe { std::slice::from_raw_parts(self.data().as_ptr(), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.data().as_ptr(), self.len) }
    }

    pub(crate) fn data(&self) -> NonNull<u8> {
        // SAFETY: the allocation has at least `shift + len` bytes.
        unsafe { self.allocation.add(self.shift) }
    }

    fn layout_of(len: usize, align: usize) -> Layout {
        match Layout::from_size_align(len.max(1), align) {
            Ok(layout) => layout,
            Err(error) => panic!("{len} bytes: {error}"),
        }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: `allocation` has been allocated with this layout.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) }
    }
}

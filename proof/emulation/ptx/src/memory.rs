//! Device memory, which is the host's, and which parts of it a launch may access.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::{self, NonNull};

/// How memory is accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Read,
    /// Through the read-only cache.
    ReadOnly,
    Write,
    Atomic,
}

/// What a launch may do with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Read it and write it.
    Write,
    Atomic,
    Any,
}

/// The memory that a launch may access. An access outside of all regions is a fault.
#[derive(Debug, Default)]
pub struct Memory {
    /// By address: the first byte, the bytes, and what may be done with them.
    regions: Vec<(u64, u64, Access)>,
}

impl Memory {
    pub fn new(regions: impl IntoIterator<Item = (u64, usize, Access)>) -> Self {
        let regions = regions.into_iter().filter(|(_, len, _)| *len > 0);
        let mut regions: Vec<_> = regions.map(|(start, len, access)| (start, len as u64, access)).collect();
        regions.sort_unstable_by_key(|&(start, ..)| start);
        regions.dedup_by_key(|&mut (start, ..)| start);
        Self { regions }
    }

    /// Whether the order of accesses to these bytes matters; a message if they may not be used so. `hint` is the region
    /// of an access before.
    pub(crate) fn check(&self, hint: &mut usize, address: u64, bytes: u64, how: Use) -> Result<bool, String> {
        let holds = |&(start, len, _): &(u64, u64, Access)| {
            address.checked_sub(start).is_some_and(|offset| offset < len && len - offset >= bytes)
        };
        if !self.regions.get(*hint).is_some_and(holds) {
            *hint = self.regions.partition_point(|&(start, ..)| start <= address).wrapping_sub(1);
        }
        let Some(&(_, _, access)) = self.regions.get(*hint).filter(|region| holds(region)) else {
            return Err(format!("{how:?} of {bytes} bytes at {address:#x}, outside of all memory"));
        };
        match (access, how) {
            (Access::Read, Use::Read | Use::ReadOnly) => Ok(false),
            (Access::Write, Use::Read | Use::Write) | (Access::Atomic, Use::Atomic) | (Access::Any, _) => Ok(true),
            _ => Err(format!("{how:?} of memory that is for {access:?}")),
        }
    }

    /// # Safety
    /// [`check`](Self::check) has found the bytes in a region, which is valid for reads.
    pub(crate) unsafe fn read(&self, address: u64, to: &mut [u8]) {
        let from = ptr::with_exposed_provenance::<u8>(address as usize);
        // SAFETY: see `# Safety`; `to` is a local of the caller.
        unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }

    /// # Safety
    /// [`check`](Self::check) has found the bytes in a region, which is valid for writes.
    pub(crate) unsafe fn write(&self, address: u64, from: &[u8]) {
        let to = ptr::with_exposed_provenance_mut::<u8>(address as usize);
        // SAFETY: see `# Safety`; `from` is a local of the caller.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }
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

    pub fn of(bytes: &[u8], shift: usize) -> Self {
        let mut memory = Self::new(bytes.len(), shift);
        memory.bytes_mut().copy_from_slice(bytes);
        memory
    }

    pub fn of_indices(indices: &[i64]) -> Self {
        Self::of(&indices.iter().flat_map(|index| index.to_ne_bytes()).collect::<Vec<_>>(), 0)
    }

    pub fn region(&self, access: Access) -> (u64, usize, Access) {
        (self.address(), self.len, access)
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

    fn data(&self) -> NonNull<u8> {
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

//! Emulated device memory, and the regions that a launch may read or write.

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
            (Access::Write, Use::Read | Use::ReadOnly | Use::Write)
            | (Access::Atomic, Use::Atomic)
            | (Access::Any, _) => Ok(true),
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

/// From so many bytes on, the pages of an allocation are made when they are written.
const SPARSE: usize = 1 << 30;

/// An allocation of device memory, at a multiple of 256 bytes.
#[derive(Debug)]
pub struct DeviceMemory {
    data: NonNull<u8>,
    layout: Layout,
    len: usize,
}

// SAFETY: the allocation is owned, and any thread may use it.
unsafe impl Send for DeviceMemory {}
// SAFETY: it is accessed through raw pointers only, or through `&mut self`.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// Memory of `len` bytes, each of them 0xa5; zeros, where these are a gigabyte or more.
    pub fn new(len: usize) -> Self {
        let sparse = len >= SPARSE;
        // Zeros that are not written cost no memory only at the allocator's own alignment.
        let align = if sparse { 16 } else { ALIGN };
        let layout = Layout::from_size_align(len.max(1), align).unwrap_or_else(|error| panic!("{len} bytes: {error}"));
        // SAFETY: the layout has at least one byte.
        let data = unsafe { if sparse { alloc_zeroed(layout) } else { alloc(layout) } };
        let Some(data) = NonNull::new(data) else { handle_alloc_error(layout) };
        if !sparse {
            // SAFETY: the allocation has `layout.size()` bytes.
            unsafe { data.write_bytes(0xa5, layout.size()) };
        }
        Self { data, layout, len }
    }

    pub fn of(bytes: &[u8]) -> Self {
        let mut memory = Self::new(bytes.len());
        memory.bytes_mut().copy_from_slice(bytes);
        memory
    }

    pub fn region(&self, access: Access) -> (u64, usize, Access) {
        (self.address(), self.len, access)
    }

    pub fn address(&self) -> u64 {
        self.data.as_ptr().expose_provenance() as u64
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the allocation has `len` bytes, which `new` has initialized.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: `data` has been allocated with this layout.
        unsafe { dealloc(self.data.as_ptr(), self.layout) }
    }
}

//! Emulated device memory.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

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

//! Memory between guard pages.

use std::io::Error;
use std::ops::Range;
use std::ptr::{NonNull, null_mut};

use kvcache_conformance::Tensor;
use kvcache_op::{ElementType, TensorMut, TensorRef};

/// The end of a tensor that touches a guard page; at its other end there is room to the next page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    Before,
    Behind,
}

const UNTOUCHED: u8 = 0xa5;

/// A tensor in such memory. Every access beyond the guarded end ends the process, whatever instruction makes it.
pub struct Guarded {
    element: ElementType,
    shape: Vec<usize>,
    /// The first of all pages, and the bytes of all.
    pages: NonNull<u8>,
    len: usize,
    /// The pages that can be accessed, and the tensor's bytes in them, counted from the first of all.
    room: Range<usize>,
    place: Range<usize>,
}

impl Guarded {
    pub fn new(tensor: &Tensor, guard: Guard) -> Self {
        // SAFETY: asks the system for a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("pages have a size");
        let bytes = tensor.bytes().len();
        let room = page..page + bytes.next_multiple_of(page);
        let place = match guard {
            Guard::Before => room.start..room.start + bytes,
            Guard::Behind => room.end - bytes..room.end,
        };
        let len = room.end + page;
        // SAFETY: new memory of the system's choice; of it, the room is made accessible.
        let pages = unsafe {
            let pages = libc::mmap(null_mut(), len, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
            assert!(pages != libc::MAP_FAILED, "{len} bytes: {}", Error::last_os_error());
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // Of no bytes there is nothing to be made accessible, which emulators refuse.
            let failed = !room.is_empty() && libc::mprotect(pages.byte_add(room.start), room.len(), access) != 0;
            assert!(!failed, "{len} bytes: {}", Error::last_os_error());
            NonNull::new(pages.cast()).expect("mapped memory is not at 0")
        };
        let mut guarded = Self { element: tensor.element(), shape: tensor.shape().to_vec(), pages, len, room, place };
        guarded.bytes_mut(guarded.room.clone()).fill(UNTOUCHED);
        guarded.bytes_mut(guarded.place.clone()).copy_from_slice(tensor.bytes());
        guarded
    }

    pub fn read(&self) -> TensorRef<'_> {
        // SAFETY: bytes of this type and shape, borrowed as long as the result lives. They begin or end with a page,
        // and are whole elements: both aligns them.
        unsafe { TensorRef::from_raw_parts(self.element, self.shape.as_slice(), self.data().as_ptr()) }
    }

    pub fn write(&mut self) -> TensorMut<'_> {
        // SAFETY: as for `read`, and borrowed mutably.
        unsafe { TensorMut::from_raw_parts(self.element, self.shape.as_slice(), self.data().as_ptr()) }
    }

    /// A copy of the tensor, around which nothing has been written.
    pub fn tensor(&self) -> Tensor {
        let around = [self.room.start..self.place.start, self.place.end..self.room.end];
        let untouched = around.into_iter().flat_map(|around| self.bytes(around)).all(|&byte| byte == UNTOUCHED);
        assert!(untouched, "written outside {:?}", self.shape);
        Tensor::new(self.element, self.shape.clone(), self.bytes(self.place.clone())).expect("the tensor's own bytes")
    }

    fn data(&self) -> NonNull<u8> {
        // SAFETY: inside the pages, or at the end of those that can be accessed.
        unsafe { self.pages.add(self.place.start) }
    }

    fn bytes(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: the range lies in the room, whose bytes are initialized from the beginning.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().add(range.start), range.len()) }
    }

    fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        // SAFETY: as for `bytes`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_ptr().add(range.start), range.len()) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nobody borrows any more.
        unsafe { libc::munmap(self.pages.as_ptr().cast(), self.len) };
    }
}

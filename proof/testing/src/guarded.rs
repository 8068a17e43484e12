//! Memory between guard pages, and the operators on such memory.

use std::io::Error;
use std::ops::Range;
use std::ptr::{NonNull, null_mut};

use kvcache_conformance::backends::{Backends, Memory, run_calls};
use kvcache_conformance::{CallResult, Case, Implementation, Tensor};
use kvcache_op::{ElementType, TensorMut, TensorRef, Workers};

/// Where a tensor lies between its guard pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// It begins behind the first one.
    Before,
    /// It begins an element further on, and so inside a cache line.
    PastLine,
    /// It begins 16 bytes further on, as numpy's large arrays do.
    PastVector,
    /// It ends before the other one.
    Behind,
}

impl Guard {
    pub const ALL: [Self; 4] = [Self::Before, Self::PastLine, Self::PastVector, Self::Behind];
}

const UNTOUCHED: u8 = 0xa5;

/// A tensor in such memory. Every access to a guard page ends the process, whatever instruction makes it.
#[derive(Debug)]
pub struct Guarded {
    guard: Guard,
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
        let past = match guard {
            Guard::PastLine => tensor.element().align(),
            Guard::PastVector => 16,
            Guard::Before | Guard::Behind => 0,
        };
        let room = page..page + (past + bytes).next_multiple_of(page);
        let place = match guard {
            Guard::Before | Guard::PastLine | Guard::PastVector => room.start + past..room.start + past + bytes,
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
        let (element, shape) = (tensor.element(), tensor.shape().to_vec());
        let mut guarded = Self { guard, element, shape, pages, len, room, place };
        guarded.room_mut(guarded.room.clone()).fill(UNTOUCHED);
        guarded.bytes_mut().copy_from_slice(tensor.bytes());
        guarded
    }

    /// Where its bytes begin.
    pub fn data(&self) -> NonNull<u8> {
        // SAFETY: inside the pages, or at the end of those that can be accessed.
        unsafe { self.pages.add(self.place.start) }
    }

    pub fn bytes(&self) -> &[u8] {
        self.room(self.place.clone())
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.room_mut(self.place.clone())
    }

    fn room(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: the range lies in the room, whose bytes are initialized from the beginning.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().add(range.start), range.len()) }
    }

    fn room_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        // SAFETY: as for `room`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_ptr().add(range.start), range.len()) }
    }
}

impl Memory for Guarded {
    fn read(&self) -> TensorRef<'_> {
        // SAFETY: bytes of this type and shape, borrowed as long as the result lives. They begin or end with a page,
        // or begin an element behind that, and are whole elements: all of this aligns them.
        unsafe { TensorRef::from_raw_parts(self.element, self.shape.as_slice(), self.data().as_ptr()) }
    }

    fn write(&mut self) -> TensorMut<'_> {
        // SAFETY: as for `read`, and borrowed mutably.
        unsafe { TensorMut::from_raw_parts(self.element, self.shape.as_slice(), self.data().as_ptr()) }
    }

    /// A copy of the tensor, around which nothing has been written.
    fn tensor(&self) -> Tensor {
        let around = [self.room.start..self.place.start, self.place.end..self.room.end];
        let untouched = around.into_iter().flat_map(|around| self.room(around)).all(|&byte| byte == UNTOUCHED);
        assert!(untouched, "written outside {:?}", self.shape);
        Tensor::new(self.element, self.shape.clone(), self.bytes()).expect("the tensor's own bytes")
    }
}

impl Clone for Guarded {
    fn clone(&self) -> Self {
        Self::new(&self.tensor(), self.guard)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nobody borrows any more.
        unsafe { libc::munmap(self.pages.as_ptr().cast(), self.len) };
    }
}

/// The operators, all of whose tensors are guarded.
#[derive(Debug, Clone, Copy)]
pub struct OnGuarded<W> {
    pub backends: Backends<W>,
    pub guard: Guard,
}

impl<W: Workers> Implementation for OnGuarded<W> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        Ok(run_calls(case, &self.backends, |tensor| Guarded::new(tensor, self.guard)))
    }
}

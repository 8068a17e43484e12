//! An allocator that counts. A test executable that asks it makes it its own:
//!
//! ```ignore
//! #[global_allocator]
//! static ALLOCATOR: Counting = Counting;
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering};

/// Bytes that are allocated now, by all threads.
static LIVE: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    /// Allocations that this thread has made, and their bytes.
    static ALLOCATED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// The system's allocator, counted.
pub struct Counting;

// SAFETY: all calls go to `System`, with the caller's arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        let (allocations, bytes) = ALLOCATED.get();
        ALLOCATED.set((allocations + 1, bytes + layout.size()));
        // SAFETY: the caller's layout, whose size is not 0.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: `data` is from `System`, of this layout.
        unsafe { System.dealloc(data, layout) }
    }
}

/// Bytes that are allocated now, by all threads.
///
/// # Panics
/// If the executable has not made [`Counting`] its allocator: nothing would be counted.
pub fn live_bytes() -> isize {
    drop(std::hint::black_box(Box::new(0)));
    assert!(allocated().0 > 0, "allocations are not counted");
    LIVE.load(Ordering::Relaxed)
}

/// Allocations that this thread has made, and their bytes.
pub fn allocated() -> (usize, usize) {
    ALLOCATED.get()
}

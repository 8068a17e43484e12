//! Memory that is kept from one call to the next.

use std::cell::RefCell;
use std::sync::Mutex;

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

/// Numbers in a cache line.
pub(super) const LINE: usize = 16;

/// Numbers that begin with a cache line.
#[derive(Default)]
pub(super) struct Numbers(Vec<Line>);

impl Numbers {
    /// At least `len` of them, of any values, if that many can be counted.
    pub(super) fn at_least(&mut self, len: usize) -> *mut f32 {
        let lines = len.div_ceil(LINE);
        if self.0.len() < lines {
            self.0.clear();
            self.0.resize(lines, Line([0.0; LINE]));
        }
        self.0.as_mut_ptr().cast()
    }
}

thread_local! {
    static THREAD: RefCell<Numbers> = const { RefCell::new(Numbers(Vec::new())) };
}

/// Runs `work` with `len` numbers that no other thread uses, of any values.
pub(super) fn for_thread<R>(len: usize, work: impl FnOnce(*mut f32) -> R) -> R {
    // What a task of a task would need: memory of its own.
    THREAD.with(|numbers| match numbers.try_borrow_mut() {
        Ok(mut numbers) => work(numbers.at_least(len)),
        Err(_) => work(Numbers::default().at_least(len)),
    })
}

/// Numbers that are kept for a call, at most.
const MOST_KEPT: usize = 1 << 22;

static CALLS: Mutex<Vec<Numbers>> = Mutex::new(Vec::new());

/// Runs `work` with `len` numbers that no other call uses, of any values.
pub(super) fn for_call<R>(len: usize, work: impl FnOnce(*mut f32) -> R) -> R {
    if len == 0 {
        return work(std::ptr::NonNull::dangling().as_ptr());
    }
    let kept = || CALLS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut numbers = kept().pop().unwrap_or_default();
    let result = work(numbers.at_least(len));
    if len <= MOST_KEPT {
        kept().push(numbers);
    }
    result
}

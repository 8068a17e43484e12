//! Memory that a thread keeps from one call to the next.

use std::cell::RefCell;
use std::thread::LocalKey;

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

type Lines = RefCell<Vec<Line>>;

thread_local! {
    static ROWS: Lines = const { RefCell::new(Vec::new()) };
    static PANELS: Lines = const { RefCell::new(Vec::new()) };
}

/// Runs `work` with memory for the rows of a call.
pub(super) fn rows<R>(bytes: usize, work: impl FnOnce(*mut u8) -> R) -> R {
    with(&ROWS, bytes, work)
}

/// Runs `work` with memory for panels of a task, which may run inside of a call.
pub(super) fn panels<R>(bytes: usize, work: impl FnOnce(*mut u8) -> R) -> R {
    with(&PANELS, bytes, work)
}

/// Runs `work` with so many bytes of any values, aligned to a cache line, which nobody else uses.
fn with<R>(lines: &'static LocalKey<Lines>, bytes: usize, work: impl FnOnce(*mut u8) -> R) -> R {
    let at_least = |lines: &mut Vec<Line>| {
        if lines.len() * size_of::<Line>() < bytes {
            lines.clear();
            lines.resize(bytes.div_ceil(size_of::<Line>()), Line([0; 64]));
        }
        lines.as_mut_ptr().cast()
    };
    // A call inside of a task of a call, which the pool's thread takes while it waits, needs memory of its own.
    lines.with(|lines| match lines.try_borrow_mut() {
        Ok(mut lines) => work(at_least(&mut lines)),
        Err(_) => work(at_least(&mut Vec::new())),
    })
}

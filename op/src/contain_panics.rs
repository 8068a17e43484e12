//! Panics at the border to a language that cannot unwind.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};

/// Gives `pool` a task that never unwinds, for threads of another language. When `pool` has run it, the first panic of
/// `task` resumes in the calling thread.
///
/// # Panics
/// If `task` has panicked.
pub fn contain_panics<R>(task: &(dyn Fn(usize) + Sync), pool: impl FnOnce(&(dyn Fn(usize) + Sync)) -> R) -> R {
    let panicked: Mutex<Option<Box<dyn Any + Send>>> = Mutex::new(None);
    let outcome = pool(&|i| {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| task(i))) {
            panicked.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
        }
    });
    if let Some(payload) = panicked.into_inner().unwrap_or_else(PoisonError::into_inner) {
        resume_unwind(payload);
    }
    outcome
}

/// The message of a panic, if it has one.
pub fn panic_message(payload: &(dyn Any + Send)) -> Option<&str> {
    payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_goes_on_when_every_task_has_run() {
        let ran = Mutex::new(Vec::new());
        let task = |i: usize| {
            ran.lock().unwrap().push(i);
            assert!(i != 1, "task {i}");
        };
        let run = || contain_panics(&task, |task| (0..3).for_each(task));
        let payload = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
        assert_eq!(panic_message(&*payload), Some("task 1"));
        assert_eq!(*ran.lock().unwrap(), [0, 1, 2]);
    }

    #[test]
    fn a_panic_without_a_text_has_no_message() {
        let payload = catch_unwind(|| std::panic::panic_any(3)).unwrap_err();
        assert_eq!(panic_message(&*payload), None);
    }
}

//! The border to C: results become errors or null, panics become errors, and null pointers are refused.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::error::{Error, kvcache_error};

/// Runs the body of a function. What it was given is not used again after a panic, except what C owns, which the
/// operator writes only as memory.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Error>) -> *mut kvcache_error {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(Error::Panic(text(panic.as_ref()))));
    match result {
        Ok(()) => ptr::null_mut(),
        Err(error) => kvcache_error::boxed(&error),
    }
}

pub(crate) fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no reason given").to_owned()
}

/// The object behind a pointer that must not be null.
///
/// # Safety
/// `object` is null or valid for reads for the lifetime.
pub(crate) unsafe fn required<'a, T>(
    object: *const T,
    argument: &'static str,
    expected: &'static str,
) -> Result<&'a T, Error> {
    // SAFETY: null or valid for reads for the lifetime.
    unsafe { object.as_ref() }.ok_or(Error::Null { argument, expected })
}

/// Where a result goes, which must not be null.
///
/// # Safety
/// `object` is null or valid for writes for the lifetime, and nobody else accesses it.
pub(crate) unsafe fn result<'a, T>(object: *mut T, argument: &'static str) -> Result<&'a mut T, Error> {
    // SAFETY: null or valid for writes for the lifetime, and nobody else accesses it.
    unsafe { object.as_mut() }.ok_or(Error::Null { argument, expected: "the address of a result" })
}

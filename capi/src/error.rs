//! The border to C: results become errors, objects with a kind and a text, or null; panics become errors, and null
//! pointers are refused.

use std::any::Any;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use kvcache_op::panic_message;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A rule of the operator is broken.
    #[error(transparent)]
    Operator(#[from] kvcache_op::Error),
    #[error("{argument} is null, expected {expected}")]
    Null { argument: &'static str, expected: &'static str },
    #[error("no pool of {threads} threads: {reason}")]
    Threads { threads: usize, reason: String },
    /// A panic, caught before it reached the caller.
    #[error("the library panicked, which is a defect of it: {0}")]
    Panic(String),
}

impl Error {
    fn kind(&self) -> &'static str {
        match self {
            Self::Operator(error) => error.kind(),
            Self::Null { .. } => "null_pointer",
            Self::Threads { .. } => "threads",
            Self::Panic(_) => "panic",
        }
    }
}

/// Why a function failed.
pub struct kvcache_error {
    kind: CString,
    message: CString,
}

impl kvcache_error {
    pub(crate) fn boxed(error: &Error) -> *mut Self {
        // No text of this library has a NUL; a text of others might.
        let text = |text: String| CString::new(text.replace('\0', " ")).unwrap_or_default();
        Box::into_raw(Box::new(Self { kind: text(error.kind().to_owned()), message: text(error.to_string()) }))
    }
}

/// The stable name of the rule that is broken, such as "kvlen_mismatch"; "null_pointer" and "threads" are this
/// interface's own, and "panic" is a defect of the library. It lives as long as the error. An empty text for NULL.
///
/// # Safety
/// `error` is NULL or an error that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvcache_error_kind(error: *const kvcache_error) -> *const c_char {
    // SAFETY: NULL or an error that has not been freed.
    unsafe { error.as_ref() }.map_or(c"".as_ptr(), |error| error.kind.as_ptr())
}

/// One line that names the input, what the call has and what is expected, in UTF-8. It lives as long as the error. An
/// empty text for NULL.
///
/// # Safety
/// `error` is NULL or an error that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvcache_error_message(error: *const kvcache_error) -> *const c_char {
    // SAFETY: NULL or an error that has not been freed.
    unsafe { error.as_ref() }.map_or(c"".as_ptr(), |error| error.message.as_ptr())
}

/// Frees an error; NULL is none.
///
/// # Safety
/// `error` is NULL or an error that has not been freed; it is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvcache_error_free(error: *mut kvcache_error) {
    // SAFETY: `boxed` has made it as a `Box`, and nobody uses it again.
    unsafe { free(error) }
}

/// Drops the object of a `Box::into_raw`; null is none.
///
/// # Safety
/// `object` is null or of `Box::into_raw`, and is not used again.
pub(crate) unsafe fn free<T>(object: *mut T) {
    if !object.is_null() {
        // SAFETY: not null, so of `Box::into_raw`; nobody uses it again.
        drop(unsafe { Box::from_raw(object) });
    }
}

/// Runs the body of a function. What it was given is not used again after a panic, except what C owns, which the
/// operator writes only as memory.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Error>) -> *mut kvcache_error {
    let panicked =
        |panic: &(dyn Any + Send)| Error::Panic(panic_message(panic).unwrap_or("no reason given").to_owned());
    match catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(panicked(&*panic))) {
        Ok(()) => ptr::null_mut(),
        Err(error) => kvcache_error::boxed(&error),
    }
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

/// The place of a result, which must not be null.
///
/// # Safety
/// `object` is null or valid for writes for the lifetime, and nobody else accesses it.
pub(crate) unsafe fn result<'a, T>(object: *mut T, argument: &'static str) -> Result<&'a mut T, Error> {
    // SAFETY: null or valid for writes for the lifetime, and nobody else accesses it.
    unsafe { object.as_mut() }.ok_or(Error::Null { argument, expected: "the address of a result" })
}

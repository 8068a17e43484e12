//! Where a function of the driver puts its answer, and what it takes.

use std::ffi::{CStr, c_char};

/// A place for an answer.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Answers; a null pointer wants no answer.
    pub(crate) fn put(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the driver's interface asks for a pointer that the answer can be written to.
            unsafe { self.0.write(value) }
        }
    }
}

/// A text of the caller's.
pub(crate) fn text<'a>(text: *const c_char) -> &'a str {
    // SAFETY: the driver's interface asks for a text that ends with NUL, alive for the call; only the call uses it.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or_default()
}

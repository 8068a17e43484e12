//! Pointer arguments of the driver API: results and texts.

use std::ffi::{CStr, c_char};

/// Where a function stores a result.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Stores the result, unless the pointer is null.
    pub(crate) fn put(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the driver API requires a pointer that is null or valid for this write.
            unsafe { self.0.write(value) }
        }
    }
}

pub(crate) fn text<'a>(text: *const c_char) -> &'a str {
    // SAFETY: the driver API requires a text that ends with NUL and lives for the call, which is as long as it is used.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or_default()
}

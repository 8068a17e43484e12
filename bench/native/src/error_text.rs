//! How the C interfaces report errors: a status is returned, and the reason is in the caller's buffer.

use std::fmt::Display;

/// The status of a function that has done what it says.
pub const OK: i32 = 0;
/// The status of a function that has changed nothing; the buffer says why.
pub const REFUSED: i32 = 1;

/// A caller's buffer for the reason of an error, which is cut to fit and ends with a NUL.
#[repr(C)]
#[derive(Debug)]
pub struct ErrorText {
    /// The buffer's first byte.
    pub data: *mut u8,
    /// Bytes of the buffer, the NUL among them; 0 for none.
    pub capacity: usize,
}

impl ErrorText {
    /// Gives a result's value to `keep`, or writes its error; the status that says which.
    ///
    /// # Safety
    /// `data` is valid for writes of `capacity` bytes.
    pub(crate) unsafe fn status<T>(&mut self, result: Result<T, impl Display>, keep: impl FnOnce(T)) -> i32 {
        match result {
            Ok(value) => {
                keep(value);
                OK
            }
            Err(error) => {
                // SAFETY: `data` is valid for `capacity` bytes, as this function requires.
                unsafe { self.write(&error.to_string()) };
                REFUSED
            }
        }
    }

    /// # Safety
    /// As for [`status`](Self::status).
    unsafe fn write(&mut self, text: &str) {
        let Some(most) = self.capacity.checked_sub(1) else { return };
        let len = text.floor_char_boundary(most);
        // SAFETY: `len < capacity`, so the text and the NUL lie in the buffer.
        unsafe {
            self.data.copy_from_nonoverlapping(text.as_ptr(), len);
            self.data.add(len).write(0);
        }
    }
}

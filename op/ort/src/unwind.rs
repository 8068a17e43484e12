//! Panics and error texts on their way to ONNX Runtime, which is C++ behind a C interface.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::Error;

/// Runs `f`, a callback of ONNX Runtime, and turns an error or a panic into an error of the runtime.
pub(crate) fn guard<T>(f: impl FnOnce() -> Result<T, Error>) -> ort::Result<T> {
    catch(f).map_err(|error| ort::Error::new(without_nul(&error.to_string())))
}

/// Runs `f`; a panic becomes an error, since unwinding into C++ would abort the process.
///
/// Nothing sees what a panicking `f` leaves half done: all that it can reach belongs to one call of the runtime.
pub(crate) fn catch<T>(f: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| Err(Error::Panic(panic_message(&*payload))))
}

/// `text` without NUL bytes: C would take one as the end, and `ort` panics on one.
pub(crate) fn without_nul(text: &str) -> String {
    text.replace('\0', "")
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let message = payload.downcast_ref::<&str>().copied();
    let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    message.unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_with_its_message() {
        for (got, expected) in [
            (catch::<()>(|| panic!("one")), "one"),
            (catch(|| panic!("number {}", 2)), "number 2"),
            (catch(|| std::panic::panic_any(3)), "no message"),
        ] {
            assert!(matches!(got, Err(Error::Panic(message)) if message == expected));
        }
    }

    #[test]
    fn a_nul_byte_does_not_cut_a_text() {
        assert_eq!(without_nul("head_dim\0 is 3"), "head_dim is 3");
    }
}

//! The border to C++: nothing unwinds across it, and every text passes it whole.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::Error;

/// Runs `f`, called by ONNX Runtime, and turns a refusal or a panic into an error that the runtime can take.
pub(crate) fn guard<T>(f: impl FnOnce() -> Result<T, Error>) -> ort::Result<T> {
    catch(f).map_err(|error| ort::Error::new(text(&error.to_string())))
}

/// Runs `f`; a panic becomes an error.
///
/// Whatever `f` leaves half done is not seen again: it gets nothing but the arguments of one call of the runtime.
pub(crate) fn catch<T>(f: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| Err(Error::Panic(panic_message(&*payload))))
}

/// `text` without NUL bytes, at which C would end it and `ort` would panic.
pub(crate) fn text(text: &str) -> String {
    text.replace('\0', "")
}

/// What a panic said.
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
        for (found, wanted) in [
            (catch::<()>(|| panic!("one")), "one"),
            (catch(|| panic!("number {}", 2)), "number 2"),
            (catch(|| std::panic::panic_any(3)), "no message"),
        ] {
            assert!(matches!(found, Err(Error::Panic(message)) if message == wanted));
        }
    }

    #[test]
    fn a_nul_byte_does_not_cut_a_text() {
        assert_eq!(text("head_dim\0 is 3"), "head_dim is 3");
    }
}

//! The library's version.

use std::ffi::{CStr, c_char};

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version has no NUL"),
};

/// The library's version, as in "0.1.0"; it lives as long as the library.
#[unsafe(no_mangle)]
pub extern "C" fn kvcache_version() -> *const c_char {
    VERSION.as_ptr()
}

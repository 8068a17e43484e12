//! Fuzz targets. Each is a function of any bytes, which it takes for choices of a call, of a script or of a file's
//! contents, and which panics or lets a sanitizer end the process if a promise is broken. [`TARGETS`] has them by name;
//! `src/bin` makes programs of libFuzzer of them, and `corpus/` has kept inputs that a test runs.

#![expect(missing_docs, reason = "only tests read it: what a name says is not said again")]

pub mod attention;
pub mod dlpack;
mod hostile;
pub mod manager_script;
pub mod session_reader;
mod tally;
mod targets;
pub mod validation;
mod variation;

pub use tally::{Tally, tally};
#[cfg(feature = "libfuzzer")]
pub use targets::mutate;
pub use targets::{TARGETS, Target};
pub use variation::Form;

/// The body of a program of libFuzzer: runs a target, and makes inputs by its [`Form`], or as libFuzzer does.
#[cfg(feature = "libfuzzer")]
#[macro_export]
macro_rules! program {
    ($target:ident) => {
        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| $crate::$target::run(bytes));

        libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
            $crate::mutate(stringify!($target), data, size, max_size, seed)
        });
    };
}

//! Errors of the launcher.

use cudarc::driver::DriverError;
use thiserror::Error;

use super::launch::TooLarge;

/// Why kernels could not be launched. Nothing has then been put into the stream, unless the store was launched and the
/// driver refused the load.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A machine without a CUDA driver.
    #[error("there is no CUDA driver on this machine (libcuda.so.1 cannot be opened)")]
    NoDriver,

    /// A driver that cannot compile the kernels.
    #[error(
        "the CUDA driver is for CUDA {}, expected at least {}: the kernels are newer",
        version(*got),
        version(*expected)
    )]
    OldDriver {
        /// The driver's version, as CUDA counts: 12080 is 12.8.
        got: i32,
        /// The first version that knows the kernels' PTX.
        expected: i32,
    },

    /// The default stream of a thread that has no current context.
    #[error("the stream is a default stream, and no CUDA context is current on this thread")]
    NoContext,

    /// A stream that is being captured, in a context that has not loaded the kernels.
    #[error(
        "the kernels for {types} are not loaded in this context, and cannot be while a stream is captured: prepare first"
    )]
    NotPrepared {
        /// The types, as in the kernels' names.
        types: &'static str,
    },

    /// Kernels that the driver does not accept.
    #[error("the kernels for {types} cannot be loaded: {reason}")]
    Module {
        /// The types, as in the kernels' names.
        types: &'static str,
        /// The driver's error, with its compiler's log if there is one.
        reason: String,
    },

    /// A dimension that does not fit the kernels' integer arithmetic.
    #[error("{} is {}, expected at most {} on a CUDA device", .0.what, .0.got, .0.limit)]
    TooLarge(TooLarge),

    /// A status word of another context, which may be freed while the call writes it.
    #[error("the status word belongs to another CUDA context than the stream")]
    OtherContext,

    /// A call to the driver failed, or reports an earlier failure.
    #[error("the CUDA driver failed in {doing}: {reason}")]
    Driver {
        /// What the call was for.
        doing: &'static str,
        /// The driver's name and description of the error.
        reason: String,
    },
}

impl Error {
    /// A stable name of what is wrong, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NoDriver => "no_cuda_driver",
            Self::OldDriver { .. } => "old_cuda_driver",
            Self::NoContext => "no_cuda_context",
            Self::NotPrepared { .. } => "not_prepared",
            Self::Module { .. } => "cuda_module",
            Self::TooLarge(_) => "too_large",
            Self::OtherContext => "other_cuda_context",
            Self::Driver { .. } => "cuda_driver",
        }
    }

    /// The failure of a call to the driver, made for `doing`.
    pub(super) fn driver(doing: &'static str) -> impl Fn(DriverError) -> Self {
        move |error| Self::Driver { doing, reason: reason(error) }
    }
}

impl From<TooLarge> for Error {
    fn from(error: TooLarge) -> Self {
        Self::TooLarge(error)
    }
}

/// The driver's name and description of an error.
pub(super) fn reason(error: DriverError) -> String {
    let text = |text: Result<&std::ffi::CStr, DriverError>| text.map(|text| text.to_string_lossy().into_owned());
    match (text(error.error_name()), text(error.error_string())) {
        (Ok(name), Ok(words)) => format!("{name}, {words}"),
        _ => format!("error {}", error.0 as i32),
    }
}

/// A version of CUDA as people write it.
fn version(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_as_cuda_does() {
        let error = Error::OldDriver { got: 12020, expected: 12040 };
        assert_eq!(
            error.to_string(),
            "the CUDA driver is for CUDA 12.2, expected at least 12.4: the kernels are newer"
        );
    }
}

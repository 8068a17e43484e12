//! Whether the machine has a CUDA driver that can run the kernels: checked before any other call to it.

use std::sync::OnceLock;

use cudarc::driver::{result, sys};

use super::error::Error;

/// The oldest CUDA version that is supported: its driver is the first to compile the kernels' version of PTX, and to
/// have every function that is called here (`cuFuncLoad` is as new).
pub(super) const OLDEST: i32 = 12_040;

/// Checks that kernels can run on this machine: it has a driver, one that is new enough, and a device. Checked once.
///
/// # Errors
/// [`Error::NoDriver`], [`Error::OldDriver`], [`Error::Driver`].
pub fn available() -> Result<(), Error> {
    static AVAILABLE: OnceLock<Result<(), Error>> = OnceLock::new();
    AVAILABLE.get_or_init(find).clone()
}

fn find() -> Result<(), Error> {
    // SAFETY: opens the driver's library, whose initializers have no preconditions.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NoDriver);
    }
    let mut got = 0;
    // SAFETY: the library is present, checked above; every version has this function, which needs no `cuInit`.
    unsafe { sys::cuDriverGetVersion(&mut got) }.result().map_err(Error::driver("getting its version"))?;
    if got < OLDEST {
        return Err(Error::OldDriver { got, expected: OLDEST });
    }
    result::init().map_err(Error::driver("initializing"))?;
    // Without a device `init` fails; with all devices hidden the count may be 0.
    match result::device::get_count().map_err(Error::driver("counting devices"))? {
        0 => Err(Error::Driver { doing: "counting devices", reason: "there is none".to_owned() }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::{MODULES, primary_context};

    #[test]
    fn a_missing_driver_or_device_is_an_error() {
        // The answer is the same every time, and no machine has these devices.
        assert_eq!(available(), available());
        for ordinal in [usize::MAX, 1 << 32, i32::MAX as usize] {
            let error = primary_context(ordinal).unwrap_err();
            assert!(available().err().is_none_or(|reason| reason == error), "{error}");
        }
    }

    #[test]
    fn the_oldest_driver_is_the_first_that_knows_the_kernels_ptx() {
        // PTX 8.4 came with CUDA 12.4.
        for module in &MODULES {
            assert!(module.ptx().unwrap().contains("\n.version 8.4\n"), "{}", module.types);
        }
        assert_eq!(OLDEST, 12_040);
    }
}

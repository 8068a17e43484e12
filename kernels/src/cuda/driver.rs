//! The driver, which a machine may not have: asked for before anything else is asked of it.

use std::sync::OnceLock;

use cudarc::driver::{result, sys};

use super::error::Error;

/// The first version of CUDA whose driver compiles PTX of the version that the kernels are written in, and has all that is
/// asked of it here (`cuFuncLoad` is as new).
pub(super) const WANTED: i32 = 12_040;

/// Whether kernels can run on this machine at all: it has a driver, one that is new enough, and a device. Found out once.
///
/// # Errors
/// [`Error::NoDriver`], [`Error::OldDriver`], [`Error::Driver`].
pub fn available() -> Result<(), Error> {
    static AVAILABLE: OnceLock<Result<(), Error>> = OnceLock::new();
    AVAILABLE.get_or_init(find).clone()
}

fn find() -> Result<(), Error> {
    // SAFETY: this opens the driver's library, whose initializers ask for nothing.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NoDriver);
    }
    let mut found = 0;
    // SAFETY: the library is there, and every version of it has this function, which may come before `init`.
    unsafe { sys::cuDriverGetVersion(&mut found) }.result().map_err(Error::driver("telling its version"))?;
    if found < WANTED {
        return Err(Error::OldDriver { found, wanted: WANTED });
    }
    result::init().map_err(Error::driver("initializing"))?;
    // A driver without a device fails above; one whose devices are all hidden may count none.
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
    fn asking_for_the_driver_never_panics() {
        // Whatever the machine has, the answer stays the same, and no machine has this device.
        assert_eq!(available(), available());
        for ordinal in [usize::MAX, 1 << 32, i32::MAX as usize] {
            let error = primary_context(ordinal).unwrap_err();
            assert!(available().err().is_none_or(|reason| reason == error), "{error}");
        }
    }

    #[test]
    fn the_wanted_driver_is_the_first_that_knows_the_kernels_ptx() {
        // PTX 8.4 came with CUDA 12.4.
        for module in &MODULES {
            assert!(module.ptx().unwrap().contains("\n.version 8.4\n"), "{}", module.types);
        }
        assert_eq!(WANTED, 12_040);
    }
}

//! Whether the machine has a CUDA driver that can run the kernels, checked before any other call to it; and its
//! contexts: the primary one of a device, and making one current for a scope. The context that is current on the
//! caller's thread is the same after each call here as before.

use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaContext, DriverError, result, sys};

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

const INVALID_DEVICE: sys::CUresult = sys::CUresult::CUDA_ERROR_INVALID_DEVICE;

/// The primary context of a device, which other libraries that use the device share.
///
/// # Errors
/// As [`available`]; [`Error::Driver`].
pub fn primary_context(ordinal: usize) -> Result<Arc<CudaContext>, Error> {
    available()?;
    let before = result::ctx::get_current().map_err(Error::driver("naming the current context"))?;
    // cudarc truncates larger ordinals.
    let is_number = i32::try_from(ordinal).is_ok();
    let context = if is_number { CudaContext::new(ordinal) } else { Err(DriverError(INVALID_DEVICE)) };
    let context = context.map_err(Error::driver("opening a device"));
    // SAFETY: `before` was current on this thread until cudarc replaced it, or is null, which makes none current.
    let restored = unsafe { result::ctx::set_current(before.unwrap_or(ptr::null_mut())) };
    restored.map_err(Error::driver("restoring the current context"))?;
    context
}

/// Keeps a context current on this thread for as long as this lives; then the one before is current again.
pub(super) struct Current {
    context: sys::CUcontext,
    pushed: bool,
    /// Bound to its thread.
    thread: PhantomData<*const ()>,
}

impl Current {
    /// Makes the context of `stream` current; a default stream's is current already.
    ///
    /// # Safety
    /// The driver has been opened, and `stream` is a default stream or one that lives.
    pub(super) unsafe fn of_stream(stream: sys::CUstream) -> Result<Self, Error> {
        let current = result::ctx::get_current().map_err(Error::driver("naming the current context"))?;
        // Null, legacy and per-thread: the default streams mean the current context.
        if stream.addr() <= 2 {
            let context = current.ok_or(Error::NoContext)?;
            return Ok(Self { context, pushed: false, thread: PhantomData });
        }
        let mut context = ptr::null_mut();
        // SAFETY: the stream lives, see `# Safety`, and is no default stream, checked above.
        let status = unsafe { sys::cuStreamGetCtx(stream, &mut context) };
        status.result().map_err(Error::driver("naming the stream's context"))?;
        // SAFETY: the driver has just named the context of a stream that lives.
        unsafe { Self::new(context, current) }
    }

    /// Makes a context current.
    pub(super) fn of_context(context: &CudaContext) -> Result<Self, Error> {
        let current = result::ctx::get_current().map_err(Error::driver("naming the current context"))?;
        // SAFETY: `context` is borrowed, and the context lives as long as it.
        unsafe { Self::new(context.cu_ctx(), current) }
    }

    /// Makes `context` current in place of `current`.
    ///
    /// # Safety
    /// The context lives.
    unsafe fn new(context: sys::CUcontext, current: Option<sys::CUcontext>) -> Result<Self, Error> {
        let pushed = current != Some(context);
        if pushed {
            // SAFETY: the context lives: see `# Safety`.
            let status = unsafe { sys::cuCtxPushCurrent_v2(context) };
            status.result().map_err(Error::driver("making a context current"))?;
        }
        Ok(Self { context, pushed, thread: PhantomData })
    }

    /// The context's id: no other context of this process has it, or will ever have it.
    pub(super) fn id(&self) -> Result<u64, Error> {
        let mut id = 0;
        // SAFETY: `self.context` is current, so it lives.
        let status = unsafe { sys::cuCtxGetId(self.context, &mut id) };
        status.result().map_err(Error::driver("naming a context"))?;
        Ok(id)
    }

    /// Retains the context until the process ends, if it is the primary one of its device. Otherwise it would be
    /// destroyed when all others release it, and a later retain would make another one.
    pub(super) fn keep(&self) -> Result<(), Error> {
        let device = self.device()?;
        let (mut flags, mut active) = (0, 0);
        // SAFETY: the driver has named the device above.
        let status = unsafe { sys::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) };
        status.result().map_err(Error::driver("asking for a primary context"))?;
        if active == 0 {
            return Ok(());
        }
        // SAFETY: the driver has named the device above. Its primary context is active, so this makes no new one.
        let primary = unsafe { result::primary_ctx::retain(device) };
        if primary.map_err(Error::driver("retaining a primary context"))? != self.context {
            // SAFETY: the primary context has been retained above.
            let released = unsafe { result::primary_ctx::release(device) };
            released.map_err(Error::driver("releasing a primary context"))?;
        }
        Ok(())
    }

    pub(super) fn device(&self) -> Result<sys::CUdevice, Error> {
        let mut device = 0;
        // SAFETY: `self.context` is current on this thread.
        let status = unsafe { sys::cuCtxGetDevice(&mut device) };
        status.result().map_err(Error::driver("naming a context's device"))?;
        Ok(device)
    }

    /// The multiprocessors of the context's device.
    pub(super) fn multiprocessors(&self) -> Result<u32, Error> {
        let device = self.device()?;
        let what = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        // SAFETY: the device is the one that the driver has just named.
        let count = unsafe { result::device::get_attribute(device, what) };
        Ok(count.map_err(Error::driver("counting multiprocessors"))?.unsigned_abs())
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        // If the context has been destroyed in between, the driver has popped it already.
        if self.pushed && result::ctx::get_current().is_ok_and(|current| current == Some(self.context)) {
            let mut popped = ptr::null_mut();
            // SAFETY: pops what `new` pushed on this thread: the context is still the current one, checked above. A
            // failure has nobody to go to.
            let _status = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::MODULES;

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

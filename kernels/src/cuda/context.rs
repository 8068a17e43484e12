//! Contexts, made current for a while: nothing here changes what is current on the caller's thread.

use std::marker::PhantomData;
use std::ptr;

use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, result, sys};

use super::driver;
use super::error::Error;

const INVALID_DEVICE: sys::CUresult = sys::CUresult::CUDA_ERROR_INVALID_DEVICE;

/// The primary context of the device with this number, which other libraries use as well.
///
/// # Errors
/// Those of [`available`](driver::available), [`Error::Driver`].
pub fn primary_context(ordinal: usize) -> Result<Arc<CudaContext>, Error> {
    driver::available()?;
    let before = result::ctx::get_current().map_err(Error::driver("naming the current context"))?;
    // cudarc takes a larger number for another one.
    let is_number = i32::try_from(ordinal).is_ok();
    let context = if is_number { CudaContext::new(ordinal) } else { Err(DriverError(INVALID_DEVICE)) };
    let context = context.map_err(Error::driver("opening a device"));
    // SAFETY: the context was current on this thread until cudarc replaced it.
    let restored = unsafe { result::ctx::set_current(before.unwrap_or(ptr::null_mut())) };
    restored.map_err(Error::driver("restoring the current context"))?;
    context
}

/// A context that is current on this thread as long as this lives. Then the one before is again.
pub(super) struct Current {
    context: sys::CUcontext,
    pushed: bool,
    /// Bound to its thread.
    thread: PhantomData<*const ()>,
}

impl Current {
    /// Makes the context of `stream` current; that of a default stream is current already.
    ///
    /// # Safety
    /// The driver is there, and `stream` is a stream that lives, or a default one.
    pub(super) unsafe fn of_stream(stream: sys::CUstream) -> Result<Self, Error> {
        let current = result::ctx::get_current().map_err(Error::driver("naming the current context"))?;
        // Null, legacy and per-thread: the default streams mean the current context.
        if stream.addr() <= 2 {
            let context = current.ok_or(Error::NoContext)?;
            return Ok(Self { context, pushed: false, thread: PhantomData });
        }
        let mut context = ptr::null_mut();
        // SAFETY: the caller promises that the stream lives.
        let status = unsafe { sys::cuStreamGetCtx(stream, &mut context) };
        status.result().map_err(Error::driver("naming the stream's context"))?;
        // SAFETY: the context is that of a stream that lives.
        unsafe { Self::new(context, current) }
    }

    /// Makes a context current.
    pub(super) fn of_context(context: &CudaContext) -> Result<Self, Error> {
        let current = result::ctx::get_current().map_err(Error::driver("naming the current context"))?;
        // SAFETY: the context lives.
        unsafe { Self::new(context.cu_ctx(), current) }
    }

    /// Makes `context` current, where `current` is so far.
    ///
    /// # Safety
    /// The context lives.
    unsafe fn new(context: sys::CUcontext, current: Option<sys::CUcontext>) -> Result<Self, Error> {
        let pushed = current != Some(context);
        if pushed {
            // SAFETY: the caller promises that the context lives.
            let status = unsafe { sys::cuCtxPushCurrent_v2(context) };
            status.result().map_err(Error::driver("making a context current"))?;
        }
        Ok(Self { context, pushed, thread: PhantomData })
    }

    /// A number that no other context of this process has, or will have.
    pub(super) fn id(&self) -> Result<u64, Error> {
        let mut id = 0;
        // SAFETY: the context is current, so it lives.
        let status = unsafe { sys::cuCtxGetId(self.context, &mut id) };
        status.result().map_err(Error::driver("naming a context"))?;
        Ok(id)
    }

    /// Keeps the context alive for as long as the process lives, if it is the primary one of its device: others may release
    /// it, and somebody retain it again.
    pub(super) fn keep(&self) -> Result<(), Error> {
        let device = self.device()?;
        let (mut flags, mut active) = (0, 0);
        // SAFETY: the device is that of a context.
        let status = unsafe { sys::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) };
        status.result().map_err(Error::driver("asking for a primary context"))?;
        if active == 0 {
            return Ok(());
        }
        // SAFETY: as above. The context is active, so that this makes none.
        let primary = unsafe { result::primary_ctx::retain(device) };
        if primary.map_err(Error::driver("retaining a primary context"))? != self.context {
            // SAFETY: it has been retained above.
            let released = unsafe { result::primary_ctx::release(device) };
            released.map_err(Error::driver("releasing a primary context"))?;
        }
        Ok(())
    }

    fn device(&self) -> Result<sys::CUdevice, Error> {
        let mut device = 0;
        // SAFETY: a context is current.
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
        // A context that has been destroyed meanwhile is current no more: the driver has popped it.
        if self.pushed && result::ctx::get_current().is_ok_and(|current| current == Some(self.context)) {
            let mut popped = ptr::null_mut();
            // SAFETY: this pops what was pushed on this thread. Should it fail, nothing more can be done about it.
            let _status = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
        }
    }
}

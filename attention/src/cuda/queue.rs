//! Launching a call.

use kvcache_kernels::cuda::{Error, Queue};

use super::launch::AttentionLaunches;
use crate::device_attention::DeviceAttention;

/// Launches a call on a stream.
///
/// # Errors
/// [`Error::TooLarge`], [`Error::NotPrepared`], [`Error::Module`]: nothing has been launched. [`Error::Driver`]: the
/// first launches may have been.
///
/// # Safety
/// The conditions of [`DeviceAttention`], while the stream executes the call (for a captured call: each replay).
pub unsafe fn run(queue: &Queue<'_>, call: &DeviceAttention) -> Result<(), Error> {
    let launches = AttentionLaunches::new(call, queue.multiprocessors())?;
    let store = launches.store.map(|store| queue.ready(store)).transpose()?;
    let attend = launches.attend.map(|attend| queue.ready(attend)).transpose()?;
    let combine = launches.combine.map(|combine| queue.ready(combine)).transpose()?;
    let mass = launches.mass.map(|mass| queue.ready(mass)).transpose()?;
    if let Some(store) = store {
        // SAFETY: a launch of `DeviceStores` has the parameter of its kernel, whose addresses are accessible: see
        // `# Safety`.
        unsafe { store.launch() }?;
    }
    for launch in [attend, combine, mass].into_iter().flatten() {
        // SAFETY: a launch of `DeviceAttention` has the parameter of its kernel, whose addresses are accessible: see
        // `# Safety`.
        unsafe { launch.launch() }?;
    }
    Ok(())
}

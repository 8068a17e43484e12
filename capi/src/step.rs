//! The calls of all layers of one step, with indices that are checked once.

use kvcache_op::dlpack::{DLDataType, DLTensor};
use kvcache_op::{Layers, dlpack};

use crate::error::{Error, free, guard, kvcache_error, required, result};
use crate::inputs::{kvcache_indices, read, write, write_optional};
use crate::operator::{kvcache_operator, run, write_shape};
use crate::workers::kvcache_workers;

/// The calls of all layers of one step: indices, cache and scale have been checked. One thread at a time uses it.
pub struct kvcache_step(Layers<'static>);

/// Checks what the calls of all layers of one step have in common: indices, cache and scale (NULL where quant_bit is
/// 0); `t1` is the type of each layer's current_key and current_value. Nothing is written but `step`; the operator's
/// layer_idx is not used. End the step with kvcache_step_end.
///
/// Until then the library keeps the addresses of the indices' elements, of the cache's and of the scale's memory, not
/// the DLTensor structures. Nobody writes the indices meanwhile.
///
/// # Safety
/// `op` is an operator, `indices` and `step` are NULL or valid; every tensor describes memory as it says, which stays
/// valid until the step has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvcache_step_begin(
    op: *const kvcache_operator,
    t1: DLDataType,
    indices: *const kvcache_indices,
    cache: *const DLTensor,
    scale: *const DLTensor,
    step: *mut *mut kvcache_step,
) -> *mut kvcache_error {
    guard(|| {
        let t1 = dlpack::element_of("t1", t1)?;
        // SAFETY: each is NULL or valid, and describes memory as it says until the step has ended.
        unsafe {
            let step = result(step, "step")?;
            let op = required(op, "op", "an operator")?;
            let indices = required(indices, "indices", "indices")?.borrow()?;
            let cache = write("cache", cache)?;
            let layers = op.0.check_layers(t1, &indices, cache, write_optional("scale", scale)?)?;
            *step = Box::into_raw(Box::new(kvcache_step(layers)));
        }
        Ok(())
    })
}

/// Returns the shape of each layer's key and value: (`kvstarts[B]`, H * num_repeat, Dh).
///
/// # Safety
/// `step` is NULL or has not ended, `shape` NULL or valid for writes of 3 numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvcache_step_shape(step: *const kvcache_step, shape: *mut i64) -> *mut kvcache_error {
    guard(|| {
        // SAFETY: both are NULL or valid.
        unsafe { write_shape(shape, &required(step, "step", "a step")?.0.output_shape()) }
    })
}

/// The call of one layer, as kvcache_run: layers can be called in any order, repeatedly, one at a time.
///
/// # Safety
/// `step` is NULL or has not ended and is used by no other thread; otherwise as for kvcache_run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvcache_step_layer(
    step: *mut kvcache_step,
    layer_idx: i64,
    current_key: *const DLTensor,
    current_value: *const DLTensor,
    key: *const DLTensor,
    value: *const DLTensor,
    workers: *const kvcache_workers,
) -> *mut kvcache_error {
    guard(|| {
        // SAFETY: `step` is NULL or a step that nobody else uses.
        let step = unsafe { step.as_mut() }.ok_or(Error::Null { argument: "step", expected: "a step" })?;
        // A negative one is no layer either.
        let layer_idx = usize::try_from(layer_idx).unwrap_or(usize::MAX);
        // SAFETY: each is NULL or describes memory as it says.
        let current = unsafe { [read("current_key", current_key)?, read("current_value", current_value)?] };
        let call = step.0.layer(layer_idx, &current[0], &current[1])?;
        // SAFETY: each is NULL or describes memory as it says, and `workers` is NULL or has not been freed.
        unsafe { run(call, key, value, workers) }
    })
}

/// Ends a step; NULL is none.
///
/// # Safety
/// `step` is NULL or has not ended; nobody uses it, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvcache_step_end(step: *mut kvcache_step) {
    // SAFETY: `kvcache_step_begin` has made it as a `Box`, and nobody uses it again.
    unsafe { free(step) }
}

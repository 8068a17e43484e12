//! The operator, and single calls of it.

use kvcache_op::dlpack::DLTensor;
use kvcache_op::{Checked, KeyValueCache, Outputs};

use crate::attributes::kvcache_attributes;
use crate::error::{Error, free, guard, kvcache_error, required, result};
use crate::inputs::{kvcache_inputs, write, write_optional};
use crate::workers::kvcache_workers;

/// The operator with checked attributes. Nothing in it changes: several threads may use it at once.
pub struct kvcache_operator(pub(crate) KeyValueCache);

/// Makes the operator with these attributes; free it with kvcache_free.
///
/// # Safety
/// `attributes` is NULL or valid for reads, `op` NULL or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvcache_create(
    attributes: *const kvcache_attributes,
    op: *mut *mut kvcache_operator,
) -> *mut kvcache_error {
    guard(|| {
        // SAFETY: both are NULL or valid.
        let (attributes, op) = unsafe { (required(attributes, "attributes", "attributes")?, result(op, "op")?) };
        *op = Box::into_raw(Box::new(kvcache_operator(KeyValueCache::new(attributes.into())?)));
        Ok(())
    })
}

/// Frees an operator; NULL is none.
///
/// # Safety
/// `op` is NULL or an operator that has not been freed; nobody uses it, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvcache_free(op: *mut kvcache_operator) {
    // SAFETY: `kvcache_create` has made it as a `Box`, and nobody uses it again.
    unsafe { free(op) }
}

/// Checks a call without running it, and returns the shape of its outputs: (`kvstarts[B]`, H * num_repeat, Dh). Nothing
/// is written but `shape`, which may be NULL. `scale` is NULL where quant_bit is 0.
///
/// # Safety
/// `op` is an operator, `inputs` is NULL or valid, `shape` NULL or valid for writes of 3 numbers; every tensor
/// describes memory as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvcache_check(
    op: *const kvcache_operator,
    inputs: *const kvcache_inputs,
    cache: *const DLTensor,
    scale: *const DLTensor,
    shape: *mut i64,
) -> *mut kvcache_error {
    guard(|| {
        // SAFETY: this function's conditions.
        let call = unsafe { check(op, inputs, cache, scale) }?;
        if shape.is_null() {
            return Ok(());
        }
        // SAFETY: not NULL, so valid for writes of 3 numbers.
        unsafe { write_shape(shape, call.output_shape()) }
    })
}

/// Stores the current tokens into `cache` (and `scale`, which is NULL where quant_bit is 0), then writes all tokens of
/// all sequences to `key` and `value`: T1, shape (`kvstarts[B]`, H * num_repeat, Dh). `workers` may be NULL: the
/// calling thread does it all.
///
/// Calls on one cache may run at once if none writes slots of a layer that another one reads or writes.
///
/// # Safety
/// `op` is an operator, `inputs` is NULL or valid, `workers` is NULL or has not been freed; every tensor describes
/// memory as it says, and during the call nobody else writes what it reads, or accesses what it writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvcache_run(
    op: *const kvcache_operator,
    inputs: *const kvcache_inputs,
    cache: *const DLTensor,
    scale: *const DLTensor,
    key: *const DLTensor,
    value: *const DLTensor,
    workers: *const kvcache_workers,
) -> *mut kvcache_error {
    guard(|| {
        // SAFETY: this function's conditions.
        let call = unsafe { check(op, inputs, cache, scale) }?;
        // SAFETY: this function's conditions.
        unsafe { run(call, key, value, workers) }
    })
}

/// # Safety
/// The conditions of [`kvcache_check`], as long as the call lives.
unsafe fn check<'a>(
    op: *const kvcache_operator,
    inputs: *const kvcache_inputs,
    cache: *const DLTensor,
    scale: *const DLTensor,
) -> Result<Checked<'a>, Error> {
    // SAFETY: each is null or valid, and describes memory as it says.
    unsafe {
        let op = required(op, "op", "an operator")?;
        let inputs = required(inputs, "inputs", "inputs")?.borrow()?;
        Ok(op.0.check(&inputs, write("cache", cache)?, write_optional("scale", scale)?)?)
    }
}

/// Runs a checked call.
///
/// # Safety
/// The conditions of [`kvcache_run`].
pub(crate) unsafe fn run(
    call: Checked<'_>,
    key: *const DLTensor,
    value: *const DLTensor,
    workers: *const kvcache_workers,
) -> Result<(), Error> {
    // SAFETY: each is null or describes memory as it says.
    let outputs = unsafe { Outputs { key: write("key", key)?, value: write("value", value)? } };
    // SAFETY: NULL or workers that have not been freed.
    let workers = unsafe { kvcache_workers::borrow(workers) };
    Ok(call.run(outputs, workers)?)
}

/// Writes the shape of a checked call, whose sizes fit in memory.
///
/// # Safety
/// `to` is null or valid for writes of 3 numbers.
pub(crate) unsafe fn write_shape(to: *mut i64, shape: &[usize]) -> Result<(), Error> {
    // SAFETY: null or valid for writes of 3 numbers.
    let to = unsafe { result(to.cast::<[i64; 3]>(), "shape") }?;
    to.iter_mut().zip(shape).for_each(|(to, &len)| *to = len as i64);
    Ok(())
}

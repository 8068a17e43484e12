//! The operator in C: a call is described by plain structures, made, and ended.
//!
//! A call keeps the addresses that it was given. Whatever works on it afterwards checks the values of the index tensors
//! again, before the first byte is written.

use crate::call::BoundCall;
use crate::description::CallDescription;
use crate::error_text::ErrorText;

/// Makes a call. [`REFUSED`](crate::REFUSED), with the operator's own reason, if the operator would refuse it.
///
/// # Safety
/// As for [`BoundCall::new`]; `error` is a buffer of its capacity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvcache_call_new(
    description: &CallDescription,
    call: &mut *mut BoundCall,
    error: &mut ErrorText,
) -> i32 {
    // SAFETY: the tensors are valid as long as the call lives, and `error` is a buffer: this function's conditions.
    unsafe { error.status(BoundCall::new(description), |made| *call = Box::into_raw(Box::new(made))) }
}

/// Ends a call; null is no call.
///
/// # Safety
/// `call` was made by [`kvcache_call_new`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvcache_call_free(call: *mut BoundCall) {
    if !call.is_null() {
        // SAFETY: `kvcache_call_new` made it as a `Box`, and nobody uses it again.
        drop(unsafe { Box::from_raw(call) });
    }
}

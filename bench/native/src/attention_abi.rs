//! Attention in C: a call is described by plain structures, made, measured, and ended.

use crate::attention::{AttentionDescription, BoundAttention};
use crate::error_text::ErrorText;
use crate::sample::Sample;
use crate::team::Team;

/// Makes a call. [`REFUSED`](crate::REFUSED), with the operator's own reason, if the operator would refuse it.
///
/// # Safety
/// As for [`BoundAttention::new`]; `error` is a buffer of its capacity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_attention_new(
    description: &AttentionDescription,
    call: &mut *mut BoundAttention,
    error: &mut ErrorText,
) -> i32 {
    // SAFETY: the tensors are valid as long as the call lives, and `error` is a buffer: this function's conditions.
    unsafe { error.status(BoundAttention::new(description), |made| *call = Box::into_raw(Box::new(made))) }
}

/// Measures all that a user calls: the check of the inputs, the stores, the attention.
///
/// # Safety
/// The call's memory is as [`BoundAttention::new`] requires; `error` is a buffer of its capacity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_attention_measure(
    call: &mut BoundAttention,
    team: &Team,
    iterations: usize,
    sample: &mut Sample,
    error: &mut ErrorText,
) -> i32 {
    let mut last = Ok(());
    let measured = team.measure(iterations, || last = call.run(team));
    // SAFETY: `error` is a buffer, as this function requires.
    unsafe { error.status(last.map(|()| measured), |measured| *sample = measured) }
}

/// Ends a call; null is no call.
///
/// # Safety
/// `call` was made by [`bench_attention_new`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_attention_free(call: *mut BoundAttention) {
    if !call.is_null() {
        // SAFETY: `bench_attention_new` made it as a `Box`, and nobody uses it again.
        drop(unsafe { Box::from_raw(call) });
    }
}

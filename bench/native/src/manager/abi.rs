//! The manager's cases in C: made by name, checked, measured, ended.

use std::ffi::{CStr, c_char};

use crate::error_text::ErrorText;
use crate::manager::case::Case;
use crate::manager::cases;
use crate::manager::meter::Meter;

/// A case behind a thin pointer.
pub struct AnyCase(Box<dyn Case>);

/// Makes a case by its name and its numbers.
///
/// # Safety
/// `name` ends with a NUL, `numbers` is valid for reads of `len` numbers, and `error` is a buffer of its capacity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_case_new(
    name: *const c_char,
    numbers: *const usize,
    len: usize,
    case: &mut *mut AnyCase,
    error: &mut ErrorText,
) -> i32 {
    // SAFETY: `name` ends with a NUL and `numbers` has `len` numbers, as this function requires.
    let (name, numbers) = unsafe { (CStr::from_ptr(name), std::slice::from_raw_parts(numbers, len)) };
    let made = name.to_str().map_err(|error| error.to_string()).and_then(|name| cases::new(name, numbers));
    // SAFETY: `error` is a buffer, as this function requires.
    unsafe { error.status(made, |made| *case = Box::into_raw(Box::new(AnyCase(made)))) }
}

/// Checks the answers of a case's contenders.
///
/// # Safety
/// `error` is a buffer of its capacity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_case_check(case: &mut AnyCase, error: &mut ErrorText) -> i32 {
    // SAFETY: `error` is a buffer, as this function requires.
    unsafe { error.status(case.0.check(), |()| ()) }
}

/// Measures a contender of a case.
///
/// # Safety
/// `contender` ends with a NUL, and `error` is a buffer of its capacity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_case_measure(
    case: &mut AnyCase,
    contender: *const c_char,
    meter: &mut Meter,
    error: &mut ErrorText,
) -> i32 {
    // SAFETY: `contender` ends with a NUL, as this function requires.
    let contender = unsafe { CStr::from_ptr(contender) }.to_str().map_err(|error| error.to_string());
    let measured = contender.and_then(|contender| case.0.measure(contender));
    // SAFETY: `error` is a buffer, as this function requires.
    unsafe { error.status(measured, |measured| *meter = measured) }
}

/// Writes the tensors of a step, each behind its length, to `tensors`, and says in `len` how many numbers they are.
///
/// # Safety
/// `tensors` is valid for writes of `capacity` numbers, and `error` is a buffer of its capacity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_case_tensors(
    case: &mut AnyCase,
    tensors: *mut i64,
    capacity: usize,
    len: &mut usize,
    error: &mut ErrorText,
) -> i32 {
    let got = case.0.tensors().and_then(|got| {
        if got.len() > capacity { Err(format!("{} numbers for {capacity}", got.len())) } else { Ok(got) }
    });
    // SAFETY: `error` is a buffer, as this function requires; `got.len() <= capacity`, checked above.
    unsafe {
        error.status(got, |got| {
            tensors.copy_from_nonoverlapping(got.as_ptr(), got.len());
            *len = got.len();
        })
    }
}

/// Ends a case; null is no case.
///
/// # Safety
/// `case` was made by [`bench_case_new`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_case_free(case: *mut AnyCase) {
    if !case.is_null() {
        // SAFETY: `bench_case_new` made it as a `Box`, and nobody uses it again.
        drop(unsafe { Box::from_raw(case) });
    }
}

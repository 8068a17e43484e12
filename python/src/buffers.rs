//! Memory of the arrays that Python gets: taken from a pool, and taken again when no array is left on it.

use std::cell::UnsafeCell;
use std::sync::{Arc, Mutex, PoisonError};

use kvcache_manager::Error;
use numpy::ndarray::{ArrayView, Dimension};
use numpy::{Element, PyArray};
use pyo3::prelude::*;

/// Memory that is written while nobody else has it, and then belongs to the arrays on it.
#[derive(Debug, Default)]
pub struct Buffer(UnsafeCell<Vec<i64>>);

// SAFETY: the vector is changed through `&mut Buffer` alone. Its numbers are otherwise accessed through the addresses
// in numpy arrays, whose concurrent use is up to the Python program, as for every array.
unsafe impl Sync for Buffer {}

/// What keeps a buffer while there are arrays on it: their base.
#[pyclass(frozen, module = "kvcache_ops._native")]
#[derive(Debug)]
struct Owner(#[expect(dead_code, reason = "keeps the memory")] Arc<Buffer>);

/// A new array on the memory of a buffer, from its number `at` on. It is writable.
///
/// # Panics
/// If the array is longer than the buffer, or its elements are aligned to more than 8 bytes.
pub fn array<'py, T: Element + bytemuck::Pod, D: Dimension>(
    py: Python<'py>,
    buffer: &Arc<Buffer>,
    at: usize,
    dim: D,
) -> PyResult<Bound<'py, PyArray<T, D>>> {
    // SAFETY: the GIL is held, and a `&mut Buffer` is not there while `buffer` is borrowed: this is the only reference
    // to the vector, and it ends in this line. None to its numbers is made.
    let (len, first) = unsafe { ((*buffer.0.get()).len(), (*buffer.0.get()).as_mut_ptr()) };
    let words = dim.size_checked().and_then(|size| size.checked_mul(size_of::<T>())).map(|bytes| bytes.div_ceil(8));
    let end = words.and_then(|words| words.checked_add(at));
    assert!(end.is_some_and(|end| end <= len) && align_of::<T>() <= 8, "{dim:?} at {at} of {len}");
    let owner = Bound::new(py, Owner(Arc::clone(buffer)))?;
    // SAFETY: the elements are inside, initialized and aligned, asserted above; every pattern of bits is one: `T: Pod`.
    let view = unsafe { ArrayView::from_shape_ptr(dim, first.add(at).cast::<T>()) };
    // SAFETY: `owner` keeps the vector, which is not changed while there is a second Arc.
    Ok(unsafe { PyArray::borrow_from_array(&view, owner.into_any()) })
}

/// The most buffers that a pool keeps: one in use, and two of earlier steps that Python may still have.
const KEPT: usize = 3;

/// Buffers for one kind of array.
#[derive(Debug, Default)]
pub struct Pool(Mutex<Vec<Arc<Buffer>>>);

impl Pool {
    /// A buffer on which no array is left, or a new one, after `fill` has replaced its numbers by at most `len`.
    pub fn take(
        &self,
        len: usize,
        fill: impl FnOnce(&mut Vec<i64>) -> Result<(), Error>,
    ) -> Result<Arc<Buffer>, Error> {
        let mut buffer = self.unused().unwrap_or_default();
        let Some(Buffer(numbers)) = Arc::get_mut(&mut buffer) else { unreachable!("nobody else has it") };
        let numbers = numbers.get_mut();
        numbers
            .try_reserve(len.saturating_sub(numbers.len()))
            .map_err(|_| Error::OutOfMemory { len, size: size_of::<i64>() })?;
        fill(numbers)?;
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push(Arc::clone(&buffer));
        Ok(buffer)
    }

    /// Takes out a buffer that nobody else has.
    fn unused(&self) -> Option<Arc<Buffer>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let unused = kept.iter_mut().position(|buffer| Arc::get_mut(buffer).is_some())?;
        Some(kept.remove(unused))
    }
}

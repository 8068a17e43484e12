//! The memory of `cache` and `scale`, of which a call touches only its own layer's slots.

use std::marker::PhantomData;
use std::ptr::NonNull;

/// A mutable slice of which this call owns some elements only.
///
/// Two nodes may work on two layers of one cache at the same time, so a `&mut [T]` over the whole cache would claim too
/// much. Access is checked against the length; it is `get` and `set` by value, never a reference to an element.
pub(crate) struct SharedSlice<'a, T> {
    data: NonNull<T>,
    len: usize,
    memory: PhantomData<&'a mut [T]>,
}

impl<T: Copy> SharedSlice<'_, T> {
    /// A slice of `len` elements at `data`.
    ///
    /// # Safety
    /// `data` is aligned, and for the lifetime valid for reads and writes of `len` initialized elements. While the slice
    /// lives, nobody else writes an element that is passed to [`get`](Self::get) or accesses one that is passed to
    /// [`set`](Self::set).
    pub(crate) unsafe fn from_raw_parts(data: NonNull<T>, len: usize) -> Self {
        Self { data, len, memory: PhantomData }
    }

    /// Element `i`.
    pub(crate) fn get(&self, i: usize) -> T {
        assert!(i < self.len, "element {i} of {}", self.len);
        // SAFETY: i is inside the slice, whose elements can be read as long as it lives (see from_raw_parts).
        unsafe { self.data.add(i).read() }
    }

    /// Makes `value` element `i`.
    pub(crate) fn set(&mut self, i: usize, value: T) {
        assert!(i < self.len, "element {i} of {}", self.len);
        // SAFETY: i is inside the slice, whose elements can be written as long as it lives (see from_raw_parts).
        unsafe { self.data.add(i).write(value) }
    }
}

//! The memory of `cache` and `scale`, of which a call touches only its own layer's slots.

use std::marker::PhantomData;
use std::ptr::NonNull;

/// A mutable slice of which this call owns some elements only.
///
/// Two nodes may work on two layers of one cache at the same time, so a `&mut [T]` over the whole cache would claim too
/// much. Elements are copied out and in, never referred to, and every access is checked against the length.
pub struct SharedSlice<'a, T> {
    data: NonNull<T>,
    len: usize,
    memory: PhantomData<&'a mut [T]>,
}

impl<T: Copy> SharedSlice<'_, T> {
    /// A slice of `len` elements at `data`, which may be any address if `len` is 0.
    ///
    /// # Safety
    /// Unless `len` is 0, `data` is aligned, not null, and for the lifetime valid for reads and writes of `len`
    /// initialized elements. While the slice lives, nobody else writes an element that is [read](Self::read) or
    /// accesses one that is [written](Self::write).
    pub unsafe fn from_raw_parts(data: *mut T, len: usize) -> Self {
        let data = NonNull::new(data).filter(|_| len > 0).unwrap_or(NonNull::dangling());
        Self { data, len, memory: PhantomData }
    }

    /// Copies the elements from byte offset `at` on into `to`.
    ///
    /// # Panics
    /// If the slice has not as many elements there, or `at` is inside of one.
    pub fn read(&self, at: usize, to: &mut [T]) {
        let first = self.first(at, to.len());
        // SAFETY: `first` is checked to have as many elements after it; they are readable and not written by others
        // (from_raw_parts), and `to` is borrowed mutably, so it is other memory.
        unsafe { first.as_ptr().copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) }
    }

    /// Copies `from` to the elements from byte offset `at` on.
    ///
    /// # Panics
    /// If the slice has not as many elements there, or `at` is inside of one.
    pub fn write(&mut self, at: usize, from: &[T]) {
        let first = self.first(at, from.len());
        // SAFETY: `first` is checked to have as many elements after it; they are writable and not accessed by others
        // (from_raw_parts), so `from` is other memory.
        unsafe { first.as_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len()) }
    }

    /// The element at byte offset `at`, which has `len - 1` more after it.
    fn first(&self, at: usize, len: usize) -> NonNull<T> {
        if len == 0 {
            return NonNull::dangling();
        }
        let i = at / size_of::<T>();
        assert!(at.is_multiple_of(size_of::<T>()), "byte offset {at} is inside of element {i}");
        assert!(i <= self.len && len <= self.len - i, "{len} elements from {i} of {}", self.len);
        // SAFETY: i < self.len, checked above, since len is not 0.
        unsafe { self.data.add(i) }
    }
}

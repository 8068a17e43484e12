//! How values are kept in the cache, and what moves them there and back.

use std::marker::PhantomData;

use super::simd::{Lanes, PackedLanes};

/// What moves a row: an instruction set, or plain Rust.
///
/// # Safety
/// The instruction set is enabled wherever a function is called. Pointers are aligned for their types and valid for `len`
/// elements and `len / group` scales; what is written overlaps nothing. `group` divides `len`, and is even for int4.
pub(super) trait Mover {
    /// Whether it can write past the caches.
    const STREAMS: bool;

    /// Copies `len` bytes.
    unsafe fn copy(from: *const u8, to: *mut u8, len: usize);

    /// Writes neighbouring copies of `len` bytes, whole lines past the caches. Meanwhile asks for as many bytes at
    /// `ahead`, which may be any address.
    unsafe fn stream(from: *const u8, to: *mut u8, len: usize, copies: usize, ahead: *const u8);

    /// Converts floats.
    unsafe fn convert<A: Lanes, B: Lanes>(from: *const A, to: *mut B, len: usize);

    /// Makes codes and scales of values.
    unsafe fn quantise<Q: PackedLanes, V: Lanes, T: Lanes>(
        values: *const V,
        cache: *mut u8,
        scales: *mut T,
        len: usize,
        group: usize,
    );

    /// Makes values of codes and scales.
    unsafe fn dequantise<Q: PackedLanes, V: Lanes, T: Lanes>(
        cache: *const u8,
        scales: *const T,
        values: *mut V,
        len: usize,
        group: usize,
    );
}

/// How values of a type are kept.
pub(super) trait Format {
    /// Whether the cache holds the values' own bytes.
    const COPIES: bool;

    /// The bytes of `len` values.
    fn value_bytes(len: usize) -> usize;

    /// The bytes of `len` elements of the cache.
    fn cache_bytes(len: usize) -> usize;

    /// The bytes of the scales of `len` elements.
    fn scale_bytes(len: usize, group: usize) -> usize;

    /// Stores a row.
    ///
    /// # Safety
    /// As for [`Mover`].
    unsafe fn store<M: Mover>(values: *const u8, cache: *mut u8, scale: *mut u8, len: usize, group: usize);

    /// Loads a row.
    ///
    /// # Safety
    /// As for [`Mover`].
    unsafe fn load<M: Mover>(cache: *const u8, scale: *const u8, values: *mut u8, len: usize, group: usize);
}

/// Values as they are.
pub(super) struct Copied<V>(PhantomData<V>);

/// Floats in the other float type.
pub(super) struct Converted<V, C>(PhantomData<(V, C)>);

/// Floats as codes `Q` with scales of type `T`.
pub(super) struct Quantised<Q, V, T>(PhantomData<(Q, V, T)>);

impl<V> Format for Copied<V> {
    const COPIES: bool = true;

    fn value_bytes(len: usize) -> usize {
        len * size_of::<V>()
    }

    fn cache_bytes(len: usize) -> usize {
        len * size_of::<V>()
    }

    fn scale_bytes(_: usize, _: usize) -> usize {
        0
    }

    #[inline(always)]
    unsafe fn store<M: Mover>(values: *const u8, cache: *mut u8, _: *mut u8, len: usize, _: usize) {
        // SAFETY: the caller's promise.
        unsafe { M::copy(values, cache, Self::value_bytes(len)) }
    }

    #[inline(always)]
    unsafe fn load<M: Mover>(cache: *const u8, _: *const u8, values: *mut u8, len: usize, _: usize) {
        // SAFETY: the caller's promise.
        unsafe { M::copy(cache, values, Self::value_bytes(len)) }
    }
}

impl<V: Lanes, C: Lanes> Format for Converted<V, C> {
    const COPIES: bool = false;

    fn value_bytes(len: usize) -> usize {
        len * size_of::<V>()
    }

    fn cache_bytes(len: usize) -> usize {
        len * size_of::<C>()
    }

    fn scale_bytes(_: usize, _: usize) -> usize {
        0
    }

    #[inline(always)]
    unsafe fn store<M: Mover>(values: *const u8, cache: *mut u8, _: *mut u8, len: usize, _: usize) {
        // SAFETY: the caller's promise.
        unsafe { M::convert::<V, C>(values.cast(), cache.cast(), len) }
    }

    #[inline(always)]
    unsafe fn load<M: Mover>(cache: *const u8, _: *const u8, values: *mut u8, len: usize, _: usize) {
        // SAFETY: the caller's promise.
        unsafe { M::convert::<C, V>(cache.cast(), values.cast(), len) }
    }
}

impl<Q: PackedLanes, V: Lanes, T: Lanes> Format for Quantised<Q, V, T> {
    const COPIES: bool = false;

    fn value_bytes(len: usize) -> usize {
        len * size_of::<V>()
    }

    fn cache_bytes(len: usize) -> usize {
        Q::bytes(len)
    }

    fn scale_bytes(len: usize, group: usize) -> usize {
        len / group * size_of::<T>()
    }

    #[inline(always)]
    unsafe fn store<M: Mover>(values: *const u8, cache: *mut u8, scale: *mut u8, len: usize, group: usize) {
        // SAFETY: the caller's promise.
        unsafe { M::quantise::<Q, V, T>(values.cast(), cache, scale.cast(), len, group) }
    }

    #[inline(always)]
    unsafe fn load<M: Mover>(cache: *const u8, scale: *const u8, values: *mut u8, len: usize, group: usize) {
        // SAFETY: the caller's promise.
        unsafe { M::dequantise::<Q, V, T>(cache, scale.cast(), values.cast(), len, group) }
    }
}

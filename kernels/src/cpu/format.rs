//! How values are kept in the cache, and what moves them there and back.

use std::marker::PhantomData;

use super::lanes::{Lanes, PackedLanes};
use super::lines::Copies;
use super::rows::Row;

/// What moves a row: an instruction set, or plain Rust.
///
/// # Safety
/// The instruction set is enabled wherever a function is called. Pointers are aligned for their types and valid for the
/// elements and scales of the row; what is written overlaps nothing.
pub(super) trait Mover {
    /// Whether it can write past the caches.
    const STREAMS: bool;

    /// Copies rows.
    unsafe fn copy(rows: &Copies);

    /// As [`copy`](Self::copy), whole lines past the caches.
    unsafe fn stream(rows: &Copies);

    /// Converts floats, past the caches if `STREAM`: the row is then [even](Row::is_even), and written to whole lines.
    unsafe fn convert<A: Lanes, B: Lanes, const STREAM: bool>(from: *const A, to: *mut B, len: usize);

    /// Makes codes and scales of values. Meanwhile asks for as many values at `ahead`, which may be any address.
    unsafe fn quantize<Q: PackedLanes, V: Lanes, T: Lanes>(
        values: *const V,
        cache: *mut u8,
        scales: *mut T,
        row: Row,
        ahead: *const V,
    );

    /// Makes values of codes and scales, past the caches if `STREAM`: as for [`convert`](Self::convert).
    unsafe fn dequantize<Q: PackedLanes, V: Lanes, T: Lanes, const STREAM: bool>(
        cache: *const u8,
        scales: *const T,
        values: *mut V,
        row: Row,
    );
}

/// How values of a type are kept.
pub(super) trait Format {
    /// Whether the cache holds the values' own bytes.
    const COPIES: bool;

    /// Whether it holds codes.
    const CODES: bool;

    /// The bytes of `len` values.
    fn value_bytes(len: usize) -> usize;

    /// The bytes of `len` elements of the cache.
    fn cache_bytes(len: usize) -> usize;

    /// The bytes of the scales of so many groups.
    fn scale_bytes(groups: usize) -> usize;

    /// Stores a row, past the caches if `STREAM`, where it is converted: as for [`Mover::convert`]. Meanwhile asks for as many
    /// values at `ahead`, where it is quantized: as for [`Mover::quantize`].
    ///
    /// # Safety
    /// As for [`Mover`].
    unsafe fn store<M: Mover, const STREAM: bool>(
        values: *const u8,
        cache: *mut u8,
        scale: *mut u8,
        row: Row,
        ahead: *const u8,
    );

    /// Loads a row, past the caches if `STREAM`, where it is no copy: as for [`Mover::convert`].
    ///
    /// # Safety
    /// As for [`Mover`].
    unsafe fn load<M: Mover, const STREAM: bool>(cache: *const u8, scale: *const u8, values: *mut u8, row: Row);
}

/// Values as they are.
pub(super) struct Copied<V>(PhantomData<V>);

/// Floats in the other float type.
pub(super) struct Converted<V, C>(PhantomData<(V, C)>);

/// Floats as codes `Q` with scales of type `T`.
pub(super) struct Quantized<Q, V, T>(PhantomData<(Q, V, T)>);

impl<V> Format for Copied<V> {
    const COPIES: bool = true;
    const CODES: bool = false;

    fn value_bytes(len: usize) -> usize {
        len * size_of::<V>()
    }

    fn cache_bytes(len: usize) -> usize {
        len * size_of::<V>()
    }

    fn scale_bytes(_: usize) -> usize {
        0
    }

    #[inline(always)]
    unsafe fn store<M: Mover, const STREAM: bool>(
        values: *const u8,
        cache: *mut u8,
        _: *mut u8,
        row: Row,
        _: *const u8,
    ) {
        // SAFETY: the caller's promise.
        unsafe { M::copy(&Copies::one(values, cache, Self::value_bytes(row.len), 1)) }
    }

    #[inline(always)]
    unsafe fn load<M: Mover, const STREAM: bool>(cache: *const u8, _: *const u8, values: *mut u8, row: Row) {
        // SAFETY: the caller's promise.
        unsafe { M::copy(&Copies::one(cache, values, Self::value_bytes(row.len), 1)) }
    }
}

impl<V: Lanes, C: Lanes> Format for Converted<V, C> {
    const COPIES: bool = false;
    const CODES: bool = false;

    fn value_bytes(len: usize) -> usize {
        len * size_of::<V>()
    }

    fn cache_bytes(len: usize) -> usize {
        len * size_of::<C>()
    }

    fn scale_bytes(_: usize) -> usize {
        0
    }

    #[inline(always)]
    unsafe fn store<M: Mover, const STREAM: bool>(
        values: *const u8,
        cache: *mut u8,
        _: *mut u8,
        row: Row,
        _: *const u8,
    ) {
        // SAFETY: the caller's promise.
        unsafe { M::convert::<V, C, STREAM>(values.cast(), cache.cast(), row.len) }
    }

    #[inline(always)]
    unsafe fn load<M: Mover, const STREAM: bool>(cache: *const u8, _: *const u8, values: *mut u8, row: Row) {
        // SAFETY: the caller's promise.
        unsafe { M::convert::<C, V, STREAM>(cache.cast(), values.cast(), row.len) }
    }
}

impl<Q: PackedLanes, V: Lanes, T: Lanes> Format for Quantized<Q, V, T> {
    const COPIES: bool = false;
    const CODES: bool = true;

    fn value_bytes(len: usize) -> usize {
        len * size_of::<V>()
    }

    fn cache_bytes(len: usize) -> usize {
        Q::bytes(len)
    }

    fn scale_bytes(groups: usize) -> usize {
        groups * size_of::<T>()
    }

    #[inline(always)]
    unsafe fn store<M: Mover, const STREAM: bool>(
        values: *const u8,
        cache: *mut u8,
        scale: *mut u8,
        row: Row,
        ahead: *const u8,
    ) {
        // SAFETY: the caller's promise.
        unsafe { M::quantize::<Q, V, T>(values.cast(), cache, scale.cast(), row, ahead.cast()) }
    }

    #[inline(always)]
    unsafe fn load<M: Mover, const STREAM: bool>(cache: *const u8, scale: *const u8, values: *mut u8, row: Row) {
        // SAFETY: the caller's promise.
        unsafe { M::dequantize::<Q, V, T, STREAM>(cache, scale.cast(), values.cast(), row) }
    }
}

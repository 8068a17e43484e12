//! Row functions in plain Rust, for every machine and every combination of types.
//!
//! Loads go through small buffers on the stack, since the outputs may be uninitialized memory, to which no slice of
//! floats may refer.

use std::slice;

use kvcache_simd::{Float, Function};

use super::block::{Heads, Row, Rows, StridedCopy};
use super::code_type::{self, CodeType, Float8};
use crate::quantize;
use crate::rotary::RopeStyle;

/// Elements in a buffer on the stack; even, so that a full buffer is whole bytes of int4.
const BUFFER: usize = 128;

/// Copies rows.
///
/// # Safety
/// `all.rows` rows of `all.len` bytes can be read, their copies can be written, and no two of these overlap.
pub(crate) unsafe fn copy(all: &StridedCopy) {
    for r in 0..all.rows {
        for copy in 0..all.copies {
            // SAFETY: r < rows and copy < copies, so both lie in `from` and `to`: this function's condition.
            unsafe {
                let to = all.to.add(r * all.to_step + copy * all.len);
                to.copy_from_nonoverlapping(all.from.add(r * all.from_step), all.len);
            }
        }
    }
}

/// Converts the floats of a row.
///
/// # Safety
/// `len` elements can be read and written, at aligned addresses that do not overlap.
pub(crate) unsafe fn convert_row<A: Float, B: Float>(from: *const A, to: *mut B, len: usize) {
    let mut buffer = [0.0; BUFFER];
    // SAFETY: `from` has `len` elements: this function's condition.
    let from = unsafe { slice::from_raw_parts(from, len) };
    for (i, chunk) in from.chunks(BUFFER).enumerate() {
        let buffer = &mut buffer[..chunk.len()];
        A::read_slice(chunk, buffer);
        // SAFETY: the chunk begins at i * BUFFER and ends inside `len`.
        unsafe { B::write_slice(buffer, to.add(i * BUFFER)) }
    }
}

/// Converts A to B: rows of values to the cache with `STORE`, else of the cache to values.
///
/// # Safety
/// Every row meets the conditions of [`convert_row`].
pub(crate) unsafe fn convert<A: Float, B: Float, const STORE: bool>(rows: &Rows) {
    let (from, to) = if STORE { (rows.values, rows.cache) } else { (rows.cache, rows.values) };
    for r in 0..rows.count {
        // SAFETY: r < count, so this is one of the caller's rows.
        unsafe { convert_row::<A, B>(from.row(r).cast(), to.row(r).cast(), rows.row.len) }
    }
}

/// Quantizes rows of values V to codes Q with scales T.
///
/// # Safety
/// The values of every row can be read, its codes and scales can be written, at aligned addresses that do not overlap.
pub(crate) unsafe fn store_quantized<Q: CodeType, V: Float, T: Float>(rows: &Rows) {
    let Row { len, group, .. } = rows.row;
    for r in 0..rows.count {
        // SAFETY: r < count, so this is one of the caller's rows, with `len` values.
        let values = unsafe { slice::from_raw_parts(rows.values.row(r).cast::<V>(), len) };
        let (cache, scales) = (rows.cache.row(r), rows.scale.row(r).cast::<T>());
        for (g, values) in values.chunks_exact(group).enumerate() {
            let s = quantize::scale(values, Q::BITS);
            // SAFETY: g < len / group, so the row has this scale and these codes; a group is whole bytes.
            unsafe {
                scales.add(g).write(T::from_f32(s.to_f32()));
                code_type::pack::<Q>(group, |i| quantize::code(values[i], s, Q::BITS), cache.add(Q::bytes(g * group)));
            }
        }
    }
}

/// Makes float8 of rows of values V, each by its static scale T, which is read.
///
/// # Safety
/// The values and the scale of every row can be read, its codes can be written, at aligned addresses that do not
/// overlap.
pub(crate) unsafe fn store_static<V: Float, T: Float>(rows: &Rows) {
    for r in 0..rows.count {
        // SAFETY: r < count, so this is one of the caller's rows, with `len` values and codes and a scale.
        unsafe {
            let values = slice::from_raw_parts(rows.values.row(r).cast::<V>(), rows.row.len);
            let cache = rows.cache.row(r);
            let scale = rows.scale.row(r).cast::<T>().read().to_f32();
            code_type::pack::<Float8>(rows.row.len, |i| quantize::static_code(values[i].to_f32(), scale) as i8, cache);
        }
    }
}

/// Dequantizes rows of codes Q with scales T to values V.
///
/// # Safety
/// The codes and scales of every row can be read, its values can be written, at aligned addresses that do not overlap.
pub(crate) unsafe fn load_quantized<Q: CodeType, V: Float, T: Float>(rows: &Rows) {
    let Row { len, group, groups, .. } = rows.row;
    let mut buffer = [0.0; BUFFER];
    for r in 0..rows.count {
        // SAFETY: r < count, so this is one of the caller's rows, with its codes and scales.
        let (cache, scales) = unsafe {
            (
                slice::from_raw_parts(rows.cache.row(r), Q::bytes(len)),
                slice::from_raw_parts(rows.scale.row(r).cast::<T>(), groups),
            )
        };
        for at in (0..len).step_by(BUFFER) {
            let buffer = &mut buffer[..BUFFER.min(len - at)];
            code_type::unpack::<Q>(&cache[Q::bytes(at)..], buffer);
            multiply(buffer, scales, at, group);
            T::round_slice(buffer);
            // SAFETY: the buffer begins at `at` and ends inside `len`.
            unsafe { V::write_slice(buffer, rows.values.row(r).cast::<V>().add(at)) }
        }
    }
}

/// Multiplies the values from `at` on, counted in the row, each by the scale of its group.
fn multiply<T: Float>(values: &mut [f32], scales: &[T], at: usize, group: usize) {
    let mut rest = values;
    let mut at = at;
    while !rest.is_empty() {
        let s: f32 = scales[at / group].to_f32();
        let (of_group, others) = rest.split_at_mut((group - at % group).min(rest.len()));
        of_group.iter_mut().for_each(|x| *x *= s);
        at += of_group.len();
        rest = others;
    }
}

/// Rotates heads of float32, compiled for every instruction set: no sum may be fused with its products, and compilers
/// vectorize these loops as they are.
pub(crate) struct RotateHeads;

impl<S> Function<S> for RotateHeads {
    type Arguments<'a> = Heads;
    type Output = ();

    #[inline(always)]
    unsafe fn run(heads: &Heads) {
        // SAFETY: the heads are valid: RotateFunction's condition.
        unsafe { rotate(heads) }
    }
}

/// Rotates heads, each product and each sum rounded by itself.
///
/// # Safety
/// The conditions of [`RotateFunction`](super::block::RotateFunction).
#[inline(always)]
pub(crate) unsafe fn rotate(&Heads { values, step, count, style, pairs, cos, sin }: &Heads) {
    // SAFETY: `pairs` cosines and sines are valid for reads.
    let (cos, sin) = unsafe { (slice::from_raw_parts(cos, pairs), slice::from_raw_parts(sin, pairs)) };
    for i in 0..count {
        // SAFETY: i < count, so this head has that many elements, which are no part of anything else.
        let head = unsafe { slice::from_raw_parts_mut(values.add(i * step), 2 * pairs) };
        match style {
            RopeStyle::Neox => {
                let (first, second) = head.split_at_mut(pairs);
                for (((a, b), &c), &s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                    (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
                }
            }
            RopeStyle::Gptj => {
                for (([a, b], &c), &s) in head.as_chunks_mut().0.iter_mut().zip(cos).zip(sin) {
                    (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
                }
            }
        }
    }
}

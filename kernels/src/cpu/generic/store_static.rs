//! Makes float8 of rows by static scales over vector registers.

use std::marker::PhantomData;

use kvcache_simd::{E4M3_MAX, Float, Function};

use super::super::block::Rows;
use super::super::portable;
use super::quant_simd::{QuantSimd, last_inside, prefetch_bytes};

/// Stores values V as float8, each row by its static scale T.
pub(crate) struct StoreStatic<V, T>(PhantomData<(V, T)>);

/// The number whose float8 would be the code of NaN, if it were a number.
const NAN_CODE: f32 = 480.0;

impl<S: QuantSimd, V: Float, T: Float> Function<S> for StoreStatic<V, T> {
    type Arguments<'a> = Rows;
    type Output = ();

    #[inline(always)]
    unsafe fn run(rows: &Rows) {
        let len = rows.row.len;
        if len < S::LANES {
            // SAFETY: every row is valid for its types: RowsFunction's condition.
            return unsafe { portable::store_static::<V, T>(rows) };
        }
        for r in 0..rows.count {
            let values: *const V = rows.values.row(r).cast();
            let cache = rows.cache.row(r);
            if let Some(prefetch) = rows.prefetch {
                let ahead = values.cast::<u8>().wrapping_offset(prefetch.row);
                prefetch_bytes::<S>(ahead, len * size_of::<V>());
            }
            // SAFETY: r < count, so this is one of the caller's rows, of a register of values or more and one scale;
            // last_inside keeps the last register inside the row.
            unsafe {
                let scale = rows.scale.row(r).cast::<T>().read().to_f32();
                for i in (0..len).step_by(S::LANES) {
                    let at = last_inside::<S>(i, len);
                    S::write_i8(cache.add(at), codes::<S>(V::read::<S>(values.add(at)), S::splat(scale)));
                }
                if scale.is_sign_negative() {
                    (0..len).for_each(|i| *cache.add(i) ^= 0x80);
                }
            }
        }
    }
}

/// The codes of a register of values, with their signs.
///
/// # Safety
/// The instruction set is enabled.
#[inline(always)]
unsafe fn codes<S: QuantSimd>(x: S::F32, scale: S::F32) -> S::Code {
    // SAFETY: the instruction set is enabled.
    unsafe {
        let quotient = S::abs(S::div(x, scale));
        let minus = S::splat(-1.0);
        // The smaller of both.
        let saturated = S::mul(S::max(S::splat(-E4M3_MAX), S::mul(quotient, minus)), minus);
        S::e4m3_codes(S::if_equal(quotient, quotient, saturated, S::splat(NAN_CODE)), x)
    }
}

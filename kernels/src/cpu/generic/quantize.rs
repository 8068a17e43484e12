//! Quantizes rows over vector registers.
//!
//! Some groups at a time go through three loops: their maxima, their scales, their codes. What is done for
//! one group depends on what came before, for a hundred cycles; what is done for its neighbors meanwhile does not. Static
//! scales, which are given, need one loop.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use kvcache_simd::{E4M3_MAX, Float, Function, MOST_LANES};

use super::super::block::{Row, Rows};
use super::super::code_type::CodeType;
use super::super::portable;
use super::group;
use super::lane_tables::{groups_in_register, registers_per_scales};
use super::quant_simd::{LONG, MOST_GROUPS, NATIVE_LANES, ODD, QuantSimd, last_inside, prefetch_bytes};

/// Groups that are quantized together.
const GROUPS: usize = MOST_GROUPS;

/// Their values: no more than a small part of the first-level cache.
const VALUES: usize = 4096;

/// Numbers of groups, written in whole registers.
type Numbers = [MaybeUninit<f32>; GROUPS + MOST_LANES];

/// Stores values V as codes Q with scales T, in groups of `GROUP`.
pub(crate) struct StoreQuantized<Q, V, T, const GROUP: usize>(PhantomData<(Q, V, T)>);

impl<S: QuantSimd, Q: CodeType, V: Float, T: Float, const GROUP: usize> Function<S> for StoreQuantized<Q, V, T, GROUP> {
    type Arguments<'a> = Rows;
    type Output = ();

    #[inline(always)]
    unsafe fn run(rows: &Rows) {
        if GROUP == ODD || rows.row.len < S::LANES {
            // SAFETY: every row is valid for its types: RowsFunction's condition.
            return unsafe { portable::store_quantized::<Q, V, T>(rows) };
        }
        for r in 0..rows.count {
            let values: *const V = rows.values.row(r).cast();
            let cache = rows.cache.row(r);
            let scales = rows.scale.row(r).cast();
            let ahead = rows.prefetch.map(|prefetch| values.wrapping_byte_offset(prefetch.row));
            // SAFETY: r < count, so this is one of the caller's rows; it has a register of values or more.
            unsafe { quantize_row::<S, Q, V, T, GROUP>(values, cache, scales, rows.row, ahead) }
        }
    }
}

/// Quantizes a row of a register or more.
#[inline(always)]
unsafe fn quantize_row<S: QuantSimd, Q: CodeType, V: Float, T: Float, const GROUP: usize>(
    values: *const V,
    cache: *mut u8,
    scales: *mut T,
    Row { group, groups, .. }: Row,
    ahead: Option<*const V>,
) {
    let group = if GROUP == LONG { group } else { GROUP };
    // Parts of about the same length: the last one is moved back to be as long as the others.
    let most = (VALUES / group).clamp(1, GROUPS);
    let at_once = groups.div_ceil(groups.div_ceil(most));
    let (mut first, mut second): (Numbers, Numbers) =
        ([MaybeUninit::uninit(); GROUPS + MOST_LANES], [MaybeUninit::uninit(); GROUPS + MOST_LANES]);
    let (first, second) = (first.as_mut_ptr().cast::<f32>(), second.as_mut_ptr().cast::<f32>());
    let native = V::IS_F16
        && S::NATIVE_F16
        && Q::BITS.quant_type() == 0
        && at_once * group >= NATIVE_LANES
        && (GROUP != LONG || group >= NATIVE_LANES);
    for g in (0..groups).step_by(at_once) {
        // The last ones may be quantized twice.
        let g = g.min(groups - at_once);
        let at = g * group;
        // SAFETY: g + at_once <= groups, so these groups lie inside the row, and are a register of values or more;
        // `first` and `second` have room for a register more than their numbers.
        unsafe {
            if Q::BITS.has_signed_scales() {
                maxima::<S, V, GROUP, true>(values.add(at), first, group, at_once);
            } else {
                maxima::<S, V, GROUP, false>(values.add(at), first, group, at_once);
            }
            make_scales::<S, Q, V, T>(first, (!native).then_some(second), scales.add(g), at_once);
            let (values, cache, ahead) =
                (values.add(at), cache.add(Q::bytes(at)), ahead.map(|ahead| ahead.wrapping_add(at)));
            if native {
                let ahead = ahead.map(|ahead| ahead.cast());
                S::encode_native::<Q, GROUP>(values.cast(), first, cache, group, at_once, ahead);
            } else {
                encode::<S, Q, V, GROUP>(values, [first, second], cache, group, at_once, ahead);
            }
        }
    }
}

/// Writes the maximum of each group, as [`group::maxima`] gives it, and zeros after them, at least to the end of a
/// register.
#[inline(always)]
unsafe fn maxima<S: QuantSimd, V: Float, const GROUP: usize, const WITH_SIGN: bool>(
    values: *const V,
    maxima: *mut f32,
    group: usize,
    groups: usize,
) {
    let (unit, of_unit, at_once) =
        (group.max(S::LANES), groups_in_register(S::LANES, GROUP), registers_per_scales(S::LANES, GROUP));
    let len = group * groups;
    let all = if GROUP < S::LANES { len / S::LANES } else { groups };
    let mut u = 0;
    // SAFETY: u + count <= all, so all units lie inside the groups.
    unsafe {
        while u + at_once <= all {
            let of_units = group::maxima::<S, V, GROUP, WITH_SIGN>(values.add(u * unit), at_once, unit);
            S::write_f32(maxima.add(u * of_unit), of_units);
            u += at_once;
        }
        if u < all {
            let of_units = group::maxima::<S, V, GROUP, WITH_SIGN>(values.add(u * unit), all - u, unit);
            S::write_f32(maxima.add(u * of_unit), of_units);
        }
        if all * unit < len {
            // What is left is less than a register, so the last one begins inside the one before it. Its maxima are
            // followed by zeros: whole registers of maxima will be read, from the beginning.
            let at = len - unit;
            S::write_f32(maxima.add(groups), S::splat(0.0));
            S::write_f32(maxima.add(at / GROUP), group::maxima::<S, V, GROUP, WITH_SIGN>(values.add(at), 1, unit));
        }
    }
}

/// Writes the scales of groups with these maxima, and, in the place of the maxima, the first factors of their
/// quotients, with the second ones in `second`. Without `second` the scales themselves take the maxima's place.
#[inline(always)]
unsafe fn make_scales<S: QuantSimd, Q: CodeType, V: Float, T: Float>(
    maxima: *mut f32,
    second: Option<*mut f32>,
    scales: *mut T,
    groups: usize,
) {
    // SAFETY: g < groups, and the caller has room for whole registers of factors.
    unsafe {
        for g in (0..groups).step_by(S::LANES) {
            let s = group::scale::<S, Q, V>(S::read_f32(maxima.add(g)));
            T::write_some::<S>(scales.add(g), s, S::LANES.min(groups - g));
            // Zero over infinity has the sign of x as float8: with NaN all quotients are NaN, whose code is 0.
            let s = if Q::BITS.quant_type() == 0 { s } else { S::add(s, S::sub(s, s)) };
            let Some(second) = second else {
                S::write_f32(maxima.add(g), s);
                continue;
            };
            let [a, b] = group::factors::<S, V>(s, S::div(S::splat(1.0), s));
            S::write_f32(maxima.add(g), a);
            S::write_f32(second.add(g), b);
        }
    }
}

/// Writes the codes of groups with these factors. Prefetches as many values at `ahead`.
#[inline(always)]
unsafe fn encode<S: QuantSimd, Q: CodeType, V: Float, const GROUP: usize>(
    values: *const V,
    [first, second]: [*mut f32; 2],
    cache: *mut u8,
    group: usize,
    groups: usize,
    ahead: Option<*const V>,
) {
    // SAFETY: i < group or i < len, and last_inside keeps the last register inside its group, or inside them all.
    unsafe {
        if GROUP > S::LANES {
            for g in 0..groups {
                let factors = [S::splat(*first.add(g)), S::splat(*second.add(g))];
                let start = g * group;
                let mut i = 0;
                while i + 2 * S::LANES <= group {
                    encode_two::<S, Q, V>(values, [factors; 2], cache, start + i, ahead);
                    i += 2 * S::LANES;
                }
                while i < group {
                    encode_one::<S, Q, V>(values, factors, cache, start + last_inside::<S>(i, group));
                    i += S::LANES;
                }
            }
        } else {
            let len = group * groups;
            let mut i = 0;
            while i + 2 * S::LANES <= len {
                let both =
                    [factors_at::<S, GROUP>([first, second], i), factors_at::<S, GROUP>([first, second], i + S::LANES)];
                encode_two::<S, Q, V>(values, both, cache, i, ahead);
                i += 2 * S::LANES;
            }
            while i < len {
                let at = last_inside::<S>(i, len);
                encode_one::<S, Q, V>(values, factors_at::<S, GROUP>([first, second], at), cache, at);
                i += S::LANES;
            }
        }
    }
}

/// The factors of each lane of the register from value `at` on.
#[inline(always)]
unsafe fn factors_at<S: QuantSimd, const GROUP: usize>([first, second]: [*mut f32; 2], at: usize) -> [S::F32; 2] {
    // SAFETY: `at` is one of the values whose groups have these factors.
    unsafe {
        [S::broadcast_numbers::<GROUP>(first.add(at / GROUP)), S::broadcast_numbers::<GROUP>(second.add(at / GROUP))]
    }
}

/// Writes the codes of two registers, from value `at` on, and prefetches as many at `ahead`.
#[inline(always)]
unsafe fn encode_two<S: QuantSimd, Q: CodeType, V: Float>(
    values: *const V,
    factors: [[S::F32; 2]; 2],
    cache: *mut u8,
    at: usize,
    ahead: Option<*const V>,
) {
    // SAFETY: two registers of values, and their codes, are there from `at` on.
    unsafe {
        if let Some(ahead) = ahead {
            prefetch_bytes::<S>(ahead.wrapping_add(at).cast(), 2 * S::LANES * size_of::<V>());
        }
        let codes =
            [codes::<S, Q, V>(values.add(at), factors[0]), codes::<S, Q, V>(values.add(at + S::LANES), factors[1])];
        group::write_two_codes::<S, Q>(cache.add(Q::bytes(at)), codes);
    }
}

/// Writes the codes of a register, from value `at` on.
#[inline(always)]
unsafe fn encode_one<S: QuantSimd, Q: CodeType, V: Float>(
    values: *const V,
    factors: [S::F32; 2],
    cache: *mut u8,
    at: usize,
) {
    // SAFETY: a register of values, and its codes, are there from `at` on.
    unsafe { group::write_codes::<S, Q>(cache.add(Q::bytes(at)), codes::<S, Q, V>(values.add(at), factors)) }
}

/// The codes of a register of values.
#[inline(always)]
unsafe fn codes<S: QuantSimd, Q: CodeType, V: Float>(values: *const V, factors: [S::F32; 2]) -> S::Code {
    // SAFETY: a register of values is there: this function's condition.
    unsafe {
        let x = V::read::<S>(values);
        group::codes::<S, Q>(group::quotient::<S, Q, V>(x, factors), x)
    }
}

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
                    S::write_i8(cache.add(at), static_codes::<S>(V::read::<S>(values.add(at)), S::splat(scale)));
                }
                if scale.is_sign_negative() {
                    (0..len).for_each(|i| *cache.add(i) ^= 0x80);
                }
            }
        }
    }
}

/// The float8 of a register of values by a static scale, with their signs.
///
/// # Safety
/// The instruction set is enabled.
#[inline(always)]
unsafe fn static_codes<S: QuantSimd>(x: S::F32, scale: S::F32) -> S::Code {
    // SAFETY: the instruction set is enabled.
    unsafe {
        let quotient = S::abs(S::div(x, scale));
        let minus = S::splat(-1.0);
        // The smaller of both.
        let saturated = S::mul(S::max(S::splat(-E4M3_MAX), S::mul(quotient, minus)), minus);
        S::e4m3_codes(S::if_equal(quotient, quotient, saturated, S::splat(NAN_CODE)), x)
    }
}

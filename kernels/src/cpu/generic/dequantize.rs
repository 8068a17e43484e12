//! Dequantizes rows over vector registers.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use kvcache_schema::QuantBit;
use kvcache_simd::{Float, Function, MOST_LANES};

use super::super::block::{Row, Rows};
use super::super::code_type::CodeType;
use super::super::portable;
use super::group::{decode_group, product, read_codes};
use super::lane_tables::{groups_in_register, registers_per_scales};
use super::quant_simd::{LONG, ODD, QuantSimd, prefetch_bytes};

/// Loads values V from codes Q with scales T, in groups of `GROUP`; with `STREAM` rows are whole registers, at
/// addresses that non-temporal stores need.
pub(crate) struct LoadQuantized<Q, V, T, const GROUP: usize, const STREAM: bool>(PhantomData<(Q, V, T)>);

impl<S: QuantSimd, Q: CodeType, V: Float, T: Float, const GROUP: usize, const STREAM: bool> Function<S>
    for LoadQuantized<Q, V, T, GROUP, STREAM>
{
    type Arguments<'a> = Rows;
    type Output = ();

    #[inline(always)]
    unsafe fn run(rows: &Rows) {
        if GROUP == ODD || rows.row.len < S::LANES {
            // SAFETY: every row is valid for its types: RowsFunction's condition.
            return unsafe { portable::load_quantized::<Q, V, T>(rows) };
        }
        for r in 0..rows.count {
            let values = rows.values.row(r).cast();
            let cache = rows.cache.row(r).cast_const();
            let scales: *const T = rows.scale.row(r).cast();
            if let Some(prefetch) = rows.prefetch {
                prefetch_bytes::<S>(cache.wrapping_offset(prefetch.row), Q::bytes(rows.row.len));
                let len = rows.row.groups * size_of::<T>();
                prefetch_bytes::<S>(scales.cast::<u8>().wrapping_offset(prefetch.scale), len);
            }
            // SAFETY: r < count, so this is one of the caller's rows; it has a register of values or more.
            unsafe { dequantize_row::<S, Q, V, T, GROUP, STREAM>(cache, scales, values, rows.row) }
        }
    }
}

/// Dequantizes a row of a register or more.
#[inline(always)]
unsafe fn dequantize_row<S: QuantSimd, Q: CodeType, V: Float, T: Float, const GROUP: usize, const STREAM: bool>(
    cache: *const u8,
    scales: *const T,
    values: *mut V,
    row: Row,
) {
    // SAFETY: the row is valid, of a register or more; the scales are float16 where that is checked.
    unsafe {
        if T::IS_F16 && S::dequantize_native::<Q, V, GROUP, STREAM>(cache, scales.cast(), values, row.len, row.group) {
            return;
        }
        if GROUP > 8 {
            long_groups::<S, Q, V, T, GROUP, STREAM>(cache, scales, values, row);
        } else {
            short_groups::<S, Q, V, T, GROUP, STREAM>(cache, scales, values, row.len);
        }
    }
}

/// Groups whose scales become float32 together.
const GROUPS: usize = 256;

/// Dequantizes groups of a register or more: the scale of each is read from memory into every lane.
#[inline(always)]
unsafe fn long_groups<S: QuantSimd, Q: CodeType, V: Float, T: Float, const GROUP: usize, const STREAM: bool>(
    cache: *const u8,
    scales: *const T,
    values: *mut V,
    Row { group, groups, .. }: Row,
) {
    let group = if GROUP == LONG { group } else { GROUP };
    let mut room = [MaybeUninit::<f32>::uninit(); GROUPS + MOST_LANES];
    for first in (0..groups).step_by(GROUPS) {
        let some = GROUPS.min(groups - first);
        // SAFETY: first + some <= groups, so these groups lie inside the row; `room` has a register more than their
        // scales.
        unsafe {
            let scales = T::as_f32::<S>(scales.add(first), some, room.as_mut_ptr().cast());
            for g in 0..some {
                let (at, s) = ((first + g) * group, S::splat(*scales.add(g)));
                let (cache, values) = (cache.add(Q::bytes(at)), values.add(at));
                if !matches!(Q::BITS, QuantBit::Four) || !S::decode_group_i4::<V, T, STREAM>(cache, values, s, group) {
                    decode_group::<S, Q, V, T, STREAM>(cache, values, s, group);
                }
            }
        }
    }
}

/// Dequantizes `len >= LANES` values in groups of 8 or fewer: a register of scales is broadcast to registers of values.
#[inline(always)]
unsafe fn short_groups<S: QuantSimd, Q: CodeType, V: Float, T: Float, const GROUP: usize, const STREAM: bool>(
    cache: *const u8,
    scales: *const T,
    values: *mut V,
    len: usize,
) {
    let (of_register, at_once) = (groups_in_register(S::LANES, GROUP), registers_per_scales(S::LANES, GROUP));
    let registers = len / S::LANES;
    let mut first = 0;
    // SAFETY: first < registers, so these registers lie inside the row. What they leave over is less than a register,
    // and is decoded with a register that ends with the row and begins with a group.
    unsafe {
        while first < registers {
            let some = (registers - first).min(at_once);
            let at = first * S::LANES;
            let (cache, scales, values) = (cache.add(Q::bytes(at)), scales.add(first * of_register), values.add(at));
            if some == at_once {
                decode_registers::<S, Q, V, T, GROUP, STREAM>(cache, scales, values, at_once);
            } else {
                decode_registers::<S, Q, V, T, GROUP, STREAM>(cache, scales, values, some);
            }
            first += some;
        }
        if registers * S::LANES < len {
            let at = len - S::LANES;
            let (cache, scales, values) = (cache.add(Q::bytes(at)), scales.add(at / GROUP), values.add(at));
            decode_registers::<S, Q, V, T, GROUP, STREAM>(cache, scales, values, 1);
        }
    }
}

/// Dequantizes registers whose scales fill no more than one.
#[inline(always)]
unsafe fn decode_registers<S: QuantSimd, Q: CodeType, V: Float, T: Float, const GROUP: usize, const STREAM: bool>(
    cache: *const u8,
    scales: *const T,
    values: *mut V,
    registers: usize,
) {
    // SAFETY: k < registers, which are there: this function's condition.
    unsafe {
        let scales = T::read_some::<S>(scales, registers * groups_in_register(S::LANES, GROUP));
        let at = |k: usize| {
            product::<S, V, T>(
                read_codes::<S, Q>(cache.add(Q::bytes(k * S::LANES))),
                S::broadcast_scales::<GROUP>(scales, k),
            )
        };
        // In pairs where a register of float16 is less than a non-temporal store can be. (With AVX-512 int4 takes 1.05
        // to 1.08 times as long in pairs.)
        let at_once = if S::LANES < MOST_LANES { 2 } else { 1 };
        for k in (0..registers).step_by(at_once) {
            let values = values.add(k * S::LANES);
            if at_once == 2 && k + 1 < registers {
                V::write_two::<S, STREAM>(values, [at(k), at(k + 1)]);
            } else {
                V::write::<S, STREAM>(values, at(k));
            }
        }
    }
}

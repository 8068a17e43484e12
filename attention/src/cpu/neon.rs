//! NEON: tiles of two registers of 4 float32.

use std::arch::aarch64::*;

use kvcache_simd::Neon;

use super::generic::tiles::{HALVES, Registers, Tiles};

/// Lane i of register j becomes lane j of register i.
#[inline(always)]
unsafe fn transpose_fours(rows: [float32x4_t; 4]) -> [float32x4_t; 4] {
    // SAFETY: the instructions are enabled (see Simd).
    unsafe {
        // Columns 0 and 2, 1 and 3, of two rows each.
        let (a, b) = (vtrn1q_f32(rows[0], rows[1]), vtrn2q_f32(rows[0], rows[1]));
        let (c, d) = (vtrn1q_f32(rows[2], rows[3]), vtrn2q_f32(rows[2], rows[3]));
        [
            vcombine_f32(vget_low_f32(a), vget_low_f32(c)),
            vcombine_f32(vget_low_f32(b), vget_low_f32(d)),
            vcombine_f32(vget_high_f32(a), vget_high_f32(c)),
            vcombine_f32(vget_high_f32(b), vget_high_f32(d)),
        ]
    }
}

/// The transpose of 8 rows of 8 elements of 16 bits.
#[inline(always)]
unsafe fn transpose_eights(rows: [uint16x8_t; HALVES]) -> [uint16x8_t; HALVES] {
    // SAFETY: the instructions are enabled (see Simd).
    unsafe {
        let mut pairs = [vdupq_n_u32(0); HALVES];
        for i in [0, 2, 4, 6] {
            pairs[i] = vreinterpretq_u32_u16(vtrn1q_u16(rows[i], rows[i + 1]));
            pairs[i + 1] = vreinterpretq_u32_u16(vtrn2q_u16(rows[i], rows[i + 1]));
        }
        let mut fours = [vdupq_n_u64(0); HALVES];
        for i in [0, 1, 4, 5] {
            fours[i] = vreinterpretq_u64_u32(vtrn1q_u32(pairs[i], pairs[i + 2]));
            fours[i + 2] = vreinterpretq_u64_u32(vtrn2q_u32(pairs[i], pairs[i + 2]));
        }
        let mut columns = rows;
        for i in 0..4 {
            columns[i] = vreinterpretq_u16_u64(vtrn1q_u64(fours[i], fours[4 + i]));
            columns[4 + i] = vreinterpretq_u16_u64(vtrn2q_u64(fours[i], fours[4 + i]));
        }
        columns
    }
}

// SAFETY of every block: the instructions are enabled, and pointers are valid for what is read or written (see Simd).
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
impl Tiles for Neon {
    const ACCUMULATORS: usize = 8;
    const CONVERTS_F16: bool = true;
    type Square = [[float32x4_t; 2]; 8];

    #[inline(always)]
    unsafe fn if_less(
        a: [float32x4_t; 2],
        b: [float32x4_t; 2],
        then: [float32x4_t; 2],
        otherwise: [float32x4_t; 2],
    ) -> [float32x4_t; 2] {
        unsafe {
            let [low, high] = [vcltq_f32(a[0], b[0]), vcltq_f32(a[1], b[1])];
            [vbslq_f32(low, then[0], otherwise[0]), vbslq_f32(high, then[1], otherwise[1])]
        }
    }

    #[inline(always)]
    unsafe fn max_lane(x: [float32x4_t; 2]) -> f32 {
        unsafe { vmaxvq_f32(vmaxq_f32(x[0], x[1])) }
    }

    #[inline(always)]
    unsafe fn count_equal(a: [float32x4_t; 2], b: [float32x4_t; 2]) -> usize {
        unsafe {
            let ones = vaddq_u32(vceqq_f32(a[0], b[0]), vceqq_f32(a[1], b[1]));
            vaddvq_u32(ones).wrapping_neg() as usize
        }
    }

    #[inline(always)]
    unsafe fn power_of_two(x: [float32x4_t; 2]) -> [float32x4_t; 2] {
        unsafe {
            let mut powers = x;
            for power in &mut powers {
                let exponent = vshlq_n_s32::<23>(vreinterpretq_s32_f32(*power));
                *power = vreinterpretq_f32_s32(vaddq_s32(exponent, vdupq_n_s32(127 << 23)));
            }
            powers
        }
    }

    #[inline(always)]
    unsafe fn square(r: &impl Registers<Self>) -> [[float32x4_t; 2]; 8] {
        unsafe { [r.read(0), r.read(1), r.read(2), r.read(3), r.read(4), r.read(5), r.read(6), r.read(7)] }
    }

    #[inline(always)]
    unsafe fn transpose(rows: [[float32x4_t; 2]; 8]) -> [[float32x4_t; 2]; 8] {
        unsafe {
            let mut columns = rows;
            for i in 0..2 {
                for half in 0..2 {
                    let four = &rows[4 * i..][..4];
                    let four = transpose_fours([four[0][half], four[1][half], four[2][half], four[3][half]]);
                    for (j, column) in four.into_iter().enumerate() {
                        columns[4 * half + j][i] = column;
                    }
                }
            }
            columns
        }
    }

    #[inline(always)]
    unsafe fn read_columns(from: *const u8, offsets: *const usize) -> [[float32x4_t; 2]; 4] {
        unsafe {
            let mut halves = [[vdupq_n_f32(0.0); 4]; 2];
            for (i, half) in halves.iter_mut().enumerate() {
                for (j, row) in half.iter_mut().enumerate() {
                    *row = vld1q_f32(from.add(*offsets.add(4 * i + j)).cast());
                }
                *half = transpose_fours(*half);
            }
            let [low, high] = halves;
            [[low[0], high[0]], [low[1], high[1]], [low[2], high[2]], [low[3], high[3]]]
        }
    }

    #[inline(always)]
    unsafe fn transpose_halves(from: *const u8, offsets: *const usize, to: *mut u16, step: usize) {
        unsafe {
            for first in [0, HALVES] {
                let mut rows = [vdupq_n_u16(0); HALVES];
                for (j, row) in rows.iter_mut().enumerate() {
                    *row = vld1q_u16(from.add(*offsets.add(first + j)).cast());
                }
                for (i, column) in transpose_eights(rows).into_iter().enumerate() {
                    vst1q_u16(to.add(i * step + first).cast(), column);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn sum_lanes(x: [[float32x4_t; 2]; 16], to: [*mut f32; 4]) {
        unsafe {
            for (i, &to) in to.iter().enumerate() {
                let mut halves = [vdupq_n_f32(0.0); 4];
                for (j, sums) in halves.iter_mut().enumerate() {
                    let [low, high] = x[4 * i + j];
                    *sums = vaddq_f32(low, high);
                }
                let [a, b, c, d] = transpose_fours(halves);
                vst1q_f32(to, vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d)));
            }
        }
    }
}

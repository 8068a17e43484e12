//! AVX-512: tiles of registers of 16 float32.

use std::arch::x86_64::*;
use std::hint::black_box;

use kvcache_simd::Avx512;

use super::super::generic::tiles::{HALVES, Registers, Tiles};

// SAFETY of every block: the instructions are enabled, and pointers are valid for what is read or written (see Simd).
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
impl Tiles for Avx512<false> {
    const ACCUMULATORS: usize = 16;
    const CONVERTS_F16: bool = true;
    const BROADCASTS: bool = true;
    type Square = [__m512; 16];

    #[inline(always)]
    unsafe fn if_less(a: __m512, b: __m512, then: __m512, otherwise: __m512) -> __m512 {
        unsafe { _mm512_mask_mov_ps(otherwise, _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), then) }
    }

    #[inline(always)]
    unsafe fn max_lane(x: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(x) }
    }

    #[inline(always)]
    unsafe fn count_equal(a: __m512, b: __m512) -> usize {
        unsafe { _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b).count_ones() as usize }
    }

    #[inline(always)]
    unsafe fn power_of_two(x: __m512) -> __m512 {
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(x));
            _mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(127 << 23)))
        }
    }

    #[inline(always)]
    unsafe fn square(r: &impl Registers<Self>) -> [__m512; 16] {
        unsafe {
            [
                r.read(0),
                r.read(1),
                r.read(2),
                r.read(3),
                r.read(4),
                r.read(5),
                r.read(6),
                r.read(7),
                r.read(8),
                r.read(9),
                r.read(10),
                r.read(11),
                r.read(12),
                r.read(13),
                r.read(14),
                r.read(15),
            ]
        }
    }

    #[inline(always)]
    unsafe fn transpose(rows: [__m512; 16]) -> [__m512; 16] {
        unsafe {
            let mut fours = rows;
            // Of each four rows, in each quarter of a register: one column of all four.
            for i in [0, 4, 8, 12] {
                let (low, high) = (
                    [_mm512_unpacklo_ps(rows[i], rows[i + 1]), _mm512_unpacklo_ps(rows[i + 2], rows[i + 3])],
                    [_mm512_unpackhi_ps(rows[i], rows[i + 1]), _mm512_unpackhi_ps(rows[i + 2], rows[i + 3])],
                );
                for (j, [a, b]) in [(0, low), (2, high)] {
                    fours[i + j] = _mm512_shuffle_ps::<0b01_00_01_00>(a, b);
                    fours[i + j + 1] = _mm512_shuffle_ps::<0b11_10_11_10>(a, b);
                }
            }
            let mut columns = fours;
            for j in 0..4 {
                let [a, b, c, d] = [fours[j], fours[4 + j], fours[8 + j], fours[12 + j]];
                // The even and the odd quarters of all rows.
                let even = [_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0x88>(c, d)];
                let odd = [_mm512_shuffle_f32x4::<0xdd>(a, b), _mm512_shuffle_f32x4::<0xdd>(c, d)];
                columns[j] = _mm512_shuffle_f32x4::<0x88>(even[0], even[1]);
                columns[4 + j] = _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]);
                columns[8 + j] = _mm512_shuffle_f32x4::<0xdd>(even[0], even[1]);
                columns[12 + j] = _mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1]);
            }
            columns
        }
    }

    #[inline(always)]
    unsafe fn read_columns(from: *const u8, offsets: *const usize) -> [__m512; 4] {
        unsafe {
            let mut rows = [_mm512_setzero_ps(); 4];
            for (j, row) in rows.iter_mut().enumerate() {
                // Rows j, 4 + j, 8 + j and 12 + j: loads with a mask, which spare shuffles.
                let four = |i: usize| _mm_loadu_ps(from.add(*offsets.add(4 * i + j)).cast());
                *row = _mm512_broadcast_f32x4(four(0));
                *row = _mm512_mask_broadcast_f32x4(*row, 0x00f0, four(1));
                *row = _mm512_mask_broadcast_f32x4(*row, 0x0f00, four(2));
                *row = _mm512_mask_broadcast_f32x4(*row, 0xf000, four(3));
            }
            let low = [_mm512_unpacklo_ps(rows[0], rows[1]), _mm512_unpacklo_ps(rows[2], rows[3])];
            let high = [_mm512_unpackhi_ps(rows[0], rows[1]), _mm512_unpackhi_ps(rows[2], rows[3])];
            [
                _mm512_shuffle_ps::<0b01_00_01_00>(low[0], low[1]),
                _mm512_shuffle_ps::<0b11_10_11_10>(low[0], low[1]),
                _mm512_shuffle_ps::<0b01_00_01_00>(high[0], high[1]),
                _mm512_shuffle_ps::<0b11_10_11_10>(high[0], high[1]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn transpose_halves(from: *const u8, offsets: *const usize, to: *mut u16, step: usize) {
        unsafe {
            let mut rows = [_mm512_setzero_si512(); HALVES];
            for (j, row) in rows.iter_mut().enumerate() {
                // Rows j, 8 + j, 16 + j and 24 + j.
                let eight = |i: usize| _mm_loadu_si128(from.add(*offsets.add(8 * i + j)).cast());
                *row = _mm512_broadcast_i32x4(eight(0));
                *row = _mm512_mask_broadcast_i32x4(*row, 0x00f0, eight(1));
                *row = _mm512_mask_broadcast_i32x4(*row, 0x0f00, eight(2));
                *row = _mm512_mask_broadcast_i32x4(*row, 0xf000, eight(3));
            }
            // In each 128 bits: pairs, fours and then all eight of one element.
            let mut pairs = rows;
            for i in [0, 2, 4, 6] {
                pairs[i] = _mm512_unpacklo_epi16(rows[i], rows[i + 1]);
                pairs[i + 1] = _mm512_unpackhi_epi16(rows[i], rows[i + 1]);
            }
            let mut fours = rows;
            for i in [0, 1, 4, 5] {
                let at = i / 4 * 4 + i % 4 * 2;
                fours[at] = _mm512_unpacklo_epi32(pairs[i], pairs[i + 2]);
                fours[at + 1] = _mm512_unpackhi_epi32(pairs[i], pairs[i + 2]);
            }
            for i in 0..4 {
                let columns =
                    [_mm512_unpacklo_epi64(fours[i], fours[4 + i]), _mm512_unpackhi_epi64(fours[i], fours[4 + i])];
                _mm512_storeu_si512(to.add(2 * i * step).cast(), columns[0]);
                _mm512_storeu_si512(to.add((2 * i + 1) * step).cast(), columns[1]);
            }
        }
    }

    #[inline(always)]
    unsafe fn sum_lanes(x: [__m512; 16], to: [*mut f32; 4]) {
        unsafe {
            // Known masks become shuffles in the compiler: there is one port for shuffles, and two for masks.
            let masks = black_box([0xff00, 0xcccc]);
            // Registers i and i + 8: the sums of both halves, in a half each.
            let mut halves = [x[0]; 8];
            for (i, sums) in halves.iter_mut().enumerate() {
                let own = _mm512_mask_mov_ps(x[i], masks[0], x[i + 8]);
                *sums = _mm512_add_ps(own, _mm512_shuffle_f32x4::<0b01_00_11_10>(x[i], x[i + 8]));
            }
            // And i + 4: the sums of registers i, i + 8, i + 4 and i + 12, in a quarter each.
            let mut quarters = [x[0]; 4];
            for (i, sums) in quarters.iter_mut().enumerate() {
                let (a, b) = (halves[i], halves[i + 4]);
                *sums = _mm512_add_ps(
                    _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b),
                    _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b),
                );
            }
            // In each quarter, the sums of lanes 0 and 2, and of 1 and 3, of two registers: 0 and 1, 2 and 3.
            let mut pairs = [x[0]; 2];
            for (i, sums) in pairs.iter_mut().enumerate() {
                let (a, b) = (quarters[2 * i], quarters[2 * i + 1]);
                let own = _mm512_mask_mov_ps(a, masks[1], b);
                *sums = _mm512_add_ps(own, _mm512_shuffle_ps::<0b01_00_11_10>(a, b));
            }
            let [a, b] = pairs;
            let sums =
                _mm512_add_ps(_mm512_shuffle_ps::<0b10_00_10_00>(a, b), _mm512_shuffle_ps::<0b11_01_11_01>(a, b));
            _mm_storeu_ps(to[0], _mm512_castps512_ps128(sums));
            _mm_storeu_ps(to[1], _mm512_extractf32x4_ps::<2>(sums));
            _mm_storeu_ps(to[2], _mm512_extractf32x4_ps::<1>(sums));
            _mm_storeu_ps(to[3], _mm512_extractf32x4_ps::<3>(sums));
        }
    }
}

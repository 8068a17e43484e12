//! AVX2: tiles of registers of 8 float32.

use std::arch::x86_64::*;

use kvcache_simd::Avx2;

use super::super::generic::tiles::{HALVES, Registers, Tiles};

// SAFETY of every block: the instructions are enabled, and pointers are valid for what is read or written (see Simd).
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
impl Tiles for Avx2 {
    const ACCUMULATORS: usize = 8;
    const CONVERTS_F16: bool = true;
    type Square = [__m256; 8];

    #[inline(always)]
    unsafe fn if_less(a: __m256, b: __m256, then: __m256, otherwise: __m256) -> __m256 {
        unsafe { _mm256_blendv_ps(otherwise, then, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) }
    }

    #[inline(always)]
    unsafe fn max_lane(x: __m256) -> f32 {
        unsafe {
            let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps::<1>(x, x)))
        }
    }

    #[inline(always)]
    unsafe fn count_equal(a: __m256, b: __m256) -> usize {
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_EQ_OQ>(a, b)).count_ones() as usize }
    }

    #[inline(always)]
    unsafe fn power_of_two(x: __m256) -> __m256 {
        unsafe {
            let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(x));
            _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(127 << 23)))
        }
    }

    #[inline(always)]
    unsafe fn square(r: &impl Registers<Self>) -> [__m256; 8] {
        unsafe { [r.read(0), r.read(1), r.read(2), r.read(3), r.read(4), r.read(5), r.read(6), r.read(7)] }
    }

    #[inline(always)]
    unsafe fn transpose(rows: [__m256; 8]) -> [__m256; 8] {
        unsafe {
            let mut columns = rows;
            // Of each four rows, in each half of a register: one column of all four.
            for i in [0, 4] {
                let (low, high) = (
                    [_mm256_unpacklo_ps(rows[i], rows[i + 1]), _mm256_unpacklo_ps(rows[i + 2], rows[i + 3])],
                    [_mm256_unpackhi_ps(rows[i], rows[i + 1]), _mm256_unpackhi_ps(rows[i + 2], rows[i + 3])],
                );
                for (j, [a, b]) in [(0, low), (2, high)] {
                    columns[i + j] = _mm256_shuffle_ps::<0b01_00_01_00>(a, b);
                    columns[i + j + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(a, b);
                }
            }
            let fours = columns;
            for j in 0..4 {
                columns[j] = _mm256_permute2f128_ps::<0x20>(fours[j], fours[4 + j]);
                columns[4 + j] = _mm256_permute2f128_ps::<0x31>(fours[j], fours[4 + j]);
            }
            columns
        }
    }

    #[inline(always)]
    unsafe fn read_columns(from: *const u8, offsets: *const usize) -> [__m256; 4] {
        unsafe {
            let mut rows = [_mm256_setzero_ps(); 4];
            for (j, row) in rows.iter_mut().enumerate() {
                // Rows j and 4 + j.
                let four = |i: usize| _mm_loadu_ps(from.add(*offsets.add(4 * i + j)).cast());
                *row = _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(four(0)), four(1));
            }
            let low = [_mm256_unpacklo_ps(rows[0], rows[1]), _mm256_unpacklo_ps(rows[2], rows[3])];
            let high = [_mm256_unpackhi_ps(rows[0], rows[1]), _mm256_unpackhi_ps(rows[2], rows[3])];
            [
                _mm256_shuffle_ps::<0b01_00_01_00>(low[0], low[1]),
                _mm256_shuffle_ps::<0b11_10_11_10>(low[0], low[1]),
                _mm256_shuffle_ps::<0b01_00_01_00>(high[0], high[1]),
                _mm256_shuffle_ps::<0b11_10_11_10>(high[0], high[1]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn transpose_halves(from: *const u8, offsets: *const usize, to: *mut u16, step: usize) {
        unsafe {
            let mut rows = [_mm256_setzero_si256(); HALVES];
            for (j, row) in rows.iter_mut().enumerate() {
                // Rows j and 8 + j.
                let eight = |i: usize| _mm_loadu_si128(from.add(*offsets.add(8 * i + j)).cast());
                *row = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(eight(0)), eight(1));
            }
            // In each 128 bits: pairs, fours and then all eight of one element.
            let mut pairs = rows;
            for i in [0, 2, 4, 6] {
                pairs[i] = _mm256_unpacklo_epi16(rows[i], rows[i + 1]);
                pairs[i + 1] = _mm256_unpackhi_epi16(rows[i], rows[i + 1]);
            }
            let mut fours = rows;
            for i in [0, 1, 4, 5] {
                let at = i / 4 * 4 + i % 4 * 2;
                fours[at] = _mm256_unpacklo_epi32(pairs[i], pairs[i + 2]);
                fours[at + 1] = _mm256_unpackhi_epi32(pairs[i], pairs[i + 2]);
            }
            for i in 0..4 {
                let columns =
                    [_mm256_unpacklo_epi64(fours[i], fours[4 + i]), _mm256_unpackhi_epi64(fours[i], fours[4 + i])];
                _mm256_storeu_si256(to.add(2 * i * step).cast(), columns[0]);
                _mm256_storeu_si256(to.add((2 * i + 1) * step).cast(), columns[1]);
            }
        }
    }

    #[inline(always)]
    unsafe fn sum_lanes(x: [__m256; 16], to: [*mut f32; 4]) {
        unsafe {
            for (four, &to) in to.iter().enumerate() {
                let x = [x[4 * four], x[4 * four + 1], x[4 * four + 2], x[4 * four + 3]];
                // Of registers 0 and 2, and of 1 and 3: the sums of both halves.
                let mut halves = [x[0]; 2];
                for (i, sums) in halves.iter_mut().enumerate() {
                    let (own, others) =
                        (_mm256_blend_ps::<0xf0>(x[i], x[i + 2]), _mm256_permute2f128_ps::<0x21>(x[i], x[i + 2]));
                    *sums = _mm256_add_ps(own, others);
                }
                // Of registers 0 and 1 in one half, 2 and 3 in the other.
                let pairs = _mm256_add_ps(
                    _mm256_shuffle_ps::<0b01_00_01_00>(halves[0], halves[1]),
                    _mm256_shuffle_ps::<0b11_10_11_10>(halves[0], halves[1]),
                );
                let low = _mm256_castps256_ps128(pairs);
                let high = _mm256_extractf128_ps::<1>(pairs);
                let even = _mm_shuffle_ps::<0b10_00_10_00>(low, high);
                let odd = _mm_shuffle_ps::<0b11_01_11_01>(low, high);
                _mm_storeu_ps(to, _mm_add_ps(even, odd));
            }
        }
    }
}

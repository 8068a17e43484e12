//! AVX2: tiles of registers of 8 float32.

use std::arch::x86_64::*;

use kvcache_simd::Avx2;

use super::super::generic::tiles::{HALVES, Registers, Tiles};

/// Transposes the four lanes of each half of four registers.
#[inline(always)]
unsafe fn transpose_fours([a, b, c, d]: [__m256; 4]) -> [__m256; 4] {
    // SAFETY: the instructions are enabled.
    unsafe {
        let (low, high) = (
            [_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d)],
            [_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d)],
        );
        [
            _mm256_shuffle_ps::<0b01_00_01_00>(low[0], low[1]),
            _mm256_shuffle_ps::<0b11_10_11_10>(low[0], low[1]),
            _mm256_shuffle_ps::<0b01_00_01_00>(high[0], high[1]),
            _mm256_shuffle_ps::<0b11_10_11_10>(high[0], high[1]),
        ]
    }
}

/// Writes the sums of the lanes of eight registers, by halves, four to each place.
#[inline(always)]
unsafe fn sum_eights([a, b, c, d, e, f, g, h]: [__m256; 8], to: [*mut f32; 2]) {
    // SAFETY: the instructions are enabled, and four numbers can be written to each place.
    unsafe {
        // Of two registers: the sums of both halves, in a half each.
        let halves = |x, y| _mm256_add_ps(_mm256_blend_ps::<0xf0>(x, y), _mm256_permute2f128_ps::<0x21>(x, y));
        let (a, b, c, d) = (halves(a, e), halves(b, f), halves(c, g), halves(d, h));
        let pairs =
            |x, y| _mm256_add_ps(_mm256_shuffle_ps::<0b01_00_01_00>(x, y), _mm256_shuffle_ps::<0b11_10_11_10>(x, y));
        let (even, odd) = (pairs(a, b), pairs(c, d));
        let sums =
            _mm256_add_ps(_mm256_shuffle_ps::<0b10_00_10_00>(even, odd), _mm256_shuffle_ps::<0b11_01_11_01>(even, odd));
        _mm_storeu_ps(to[0], _mm256_castps256_ps128(sums));
        _mm_storeu_ps(to[1], _mm256_extractf128_ps::<1>(sums));
    }
}

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
    unsafe fn transpose([a, b, c, d, e, f, g, h]: [__m256; 8]) -> [__m256; 8] {
        // No array is indexed by a loop: the compiler would keep it in memory.
        unsafe {
            let ([a, b, c, d], [e, f, g, h]) = (transpose_fours([a, b, c, d]), transpose_fours([e, f, g, h]));
            let low = |x, y| _mm256_permute2f128_ps::<0x20>(x, y);
            let high = |x, y| _mm256_permute2f128_ps::<0x31>(x, y);
            [low(a, e), low(b, f), low(c, g), low(d, h), high(a, e), high(b, f), high(c, g), high(d, h)]
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
            transpose_fours(rows)
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
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = x;
        unsafe {
            sum_eights([a, b, c, d, e, f, g, h], [to[0], to[1]]);
            sum_eights([i, j, k, l, m, n, o, p], [to[2], to[3]]);
        }
    }
}

//! AVX2 with FMA and F16C: registers of 8 float32.

use std::arch::x86_64::*;

use half::f16;

use super::super::generic::group::Groups;
use super::super::generic::lane_tables::{all_scale_lanes, maximum_lanes, scale_lanes};
use super::super::generic::outline::{Outline, RowFunction};
use super::super::generic::simd::Simd;
use super::fence::fence;

/// AVX2, FMA and F16C.
pub(crate) struct Avx2;

impl Avx2 {
    /// Whether this machine has the instructions.
    pub(crate) fn is_supported() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
    }
}

impl Outline for Avx2 {
    fn outlined<F: RowFunction>() -> unsafe fn(&F::Rows) {
        outlined::<F>
    }

    fn fence() {
        fence();
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn outlined<F: RowFunction>(rows: &F::Rows) {
    // SAFETY: the instructions are enabled here; the rows are as `F` requires.
    unsafe { F::run::<Avx2>(rows) }
}

/// Rounds to nearest, ties to even.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

/// A mask of the first `n <= 8` lanes.
///
/// # Safety
/// AVX2 is enabled.
#[inline(always)]
unsafe fn first(n: usize) -> __m256i {
    const ONES_THEN_ZEROS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: the instructions are enabled (see Simd); n <= 8 leaves a register's lanes.
    unsafe { _mm256_loadu_si256(ONES_THEN_ZEROS.as_ptr().add(8 - n).cast()) }
}

/// Sixteen codes, one a byte. That of NaN is the smallest int32, whose low byte is 0.
#[inline(always)]
unsafe fn bytes(codes: [__m256i; 2]) -> __m128i {
    // SAFETY: the instructions are enabled (see Simd).
    unsafe {
        let low = _mm256_set1_epi32(0xff);
        // Of each half of a register its four codes, in turns of the registers.
        let words = _mm256_packus_epi32(_mm256_and_si256(codes[0], low), _mm256_and_si256(codes[1], low));
        let bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
        _mm_shuffle_epi32::<0b11_01_10_00>(bytes)
    }
}

/// Their low four bits, two a byte, in the low half.
#[inline(always)]
unsafe fn nibbles(bytes: __m128i) -> __m128i {
    // SAFETY: the instructions are enabled (see Simd).
    unsafe {
        let pairs = _mm_maddubs_epi16(_mm_and_si128(bytes, _mm_set1_epi8(0x0f)), _mm_set1_epi16(0x1001));
        _mm_packus_epi16(pairs, pairs)
    }
}

// SAFETY of every block: the instructions are enabled, and pointers are valid for what is read or written (see Simd).
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
impl Simd for Avx2 {
    const LANES: usize = 8;
    type F32 = __m256;
    type Code = __m256i;
    type Line = [__m256i; 2];

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn read_f32(from: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn write_f32<const STREAM: bool>(to: *mut f32, x: __m256) {
        unsafe { if STREAM { _mm256_stream_ps(to, x) } else { _mm256_storeu_ps(to, x) } }
    }

    #[inline(always)]
    unsafe fn read_f16(from: *const f16) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn write_f16<const STREAM: bool>(to: *mut f16, x: __m256) {
        unsafe {
            let halves = _mm256_cvtps_ph::<NEAREST>(x);
            if STREAM { _mm_stream_si128(to.cast(), halves) } else { _mm_storeu_si128(to.cast(), halves) }
        }
    }

    #[inline(always)]
    unsafe fn round_f16(x: __m256) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm256_cvtps_ph::<NEAREST>(x)) }
    }

    #[inline(always)]
    unsafe fn read_i8(from: *const u8) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn read_i4(from: *const u8) -> __m256 {
        unsafe {
            let bytes = _mm_cvtsi32_si128(from.cast::<i32>().read_unaligned());
            // Each byte for its two codes, of which the right one is moved to the top and back, with its sign.
            let twice = _mm256_cvtepu8_epi32(_mm_unpacklo_epi8(bytes, bytes));
            let top = _mm256_sllv_epi32(twice, _mm256_set1_epi64x((24 << 32) | 28));
            _mm256_cvtepi32_ps(_mm256_srai_epi32::<28>(top))
        }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn abs(x: __m256) -> __m256 {
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), x) }
    }

    #[inline(always)]
    unsafe fn max_magnitude(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b))) }
    }

    #[inline(always)]
    unsafe fn max_pairs(a: __m256, b: __m256) -> __m256 {
        unsafe {
            let (firsts, seconds) =
                (_mm256_shuffle_ps::<0b10_00_10_00>(a, b), _mm256_shuffle_ps::<0b11_01_11_01>(a, b));
            Self::max_magnitude(firsts, seconds)
        }
    }

    #[inline(always)]
    unsafe fn max_fours(a: __m256, b: __m256) -> __m256 {
        unsafe {
            let (firsts, seconds) = (_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
            Self::max_magnitude(firsts, seconds)
        }
    }

    #[inline(always)]
    unsafe fn at_least(x: __m256, floor: __m256) -> __m256 {
        // The instruction gives its second operand where one is NaN.
        unsafe { _mm256_max_ps(floor, x) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn mul_sub_from(a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fnmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn blend_nan(x: __m256, otherwise: __m256) -> __m256 {
        unsafe { _mm256_blendv_ps(otherwise, x, _mm256_cmp_ps::<_CMP_ORD_Q>(x, x)) }
    }

    #[inline(always)]
    unsafe fn codes(x: __m256) -> __m256i {
        unsafe { _mm256_cvtps_epi32(x) }
    }

    #[inline(always)]
    unsafe fn write_i8(to: *mut u8, codes: __m256i) {
        unsafe { _mm_storel_epi64(to.cast(), bytes([codes; 2])) }
    }

    #[inline(always)]
    unsafe fn write_i4(to: *mut u8, codes: __m256i) {
        unsafe { to.cast::<i32>().write_unaligned(_mm_cvtsi128_si32(nibbles(bytes([codes; 2])))) }
    }

    #[inline(always)]
    unsafe fn write_two_i8(to: *mut u8, codes: [__m256i; 2]) {
        unsafe { _mm_storeu_si128(to.cast(), bytes(codes)) }
    }

    #[inline(always)]
    unsafe fn write_two_i4(to: *mut u8, codes: [__m256i; 2]) {
        unsafe { _mm_storel_epi64(to.cast(), nibbles(bytes(codes))) }
    }

    #[inline(always)]
    unsafe fn read_some_f32(from: *const f32, n: usize) -> __m256 {
        unsafe { _mm256_maskload_ps(from, first(n)) }
    }

    #[inline(always)]
    unsafe fn read_some_f16(from: *const f16, n: usize) -> __m256 {
        unsafe {
            if n == Self::LANES {
                return Self::read_f16(from);
            }
            let mut some = [f16::ZERO; Self::LANES];
            for (i, some) in some.iter_mut().enumerate().take(n) {
                *some = from.add(i).read();
            }
            Self::read_f16(some.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn read_line(from: *const u8) -> [__m256i; 2] {
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
    }

    #[inline(always)]
    unsafe fn write_line(to: *mut u8, [low, high]: [__m256i; 2]) {
        unsafe {
            _mm256_storeu_si256(to.cast(), low);
            _mm256_storeu_si256(to.add(32).cast(), high);
        }
    }

    #[inline(always)]
    unsafe fn stream_line(to: *mut u8, [low, high]: [__m256i; 2]) {
        unsafe {
            _mm256_stream_si256(to.cast(), low);
            _mm256_stream_si256(to.add(32).cast(), high);
        }
    }
}

// SAFETY of every block: the instructions are enabled, and pointers are valid for what is read or written (see Simd).
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
impl Groups for Avx2 {
    #[inline(always)]
    unsafe fn permute_maxima<const GROUP: usize>(maxima: __m256) -> __m256 {
        unsafe {
            let lanes = const { maximum_lanes::<8>(GROUP) };
            _mm256_permutevar8x32_ps(maxima, _mm256_loadu_si256(lanes.as_ptr().cast()))
        }
    }

    #[inline(always)]
    unsafe fn broadcast_scales<const GROUP: usize>(scales: __m256, k: usize) -> __m256 {
        unsafe {
            let lanes = &const { all_scale_lanes::<8>(GROUP) }[k];
            _mm256_permutevar8x32_ps(scales, _mm256_loadu_si256(lanes.as_ptr().cast()))
        }
    }

    #[inline(always)]
    unsafe fn broadcast_numbers<const GROUP: usize>(numbers: *const f32) -> __m256 {
        unsafe {
            let numbers = match Self::LANES / GROUP {
                1 => return _mm256_set1_ps(numbers.read()),
                2 => _mm256_castpd_ps(_mm256_set1_pd(numbers.cast::<f64>().read_unaligned())),
                4 => _mm256_castps128_ps256(_mm_loadu_ps(numbers)),
                _ => return _mm256_loadu_ps(numbers),
            };
            let groups = const { scale_lanes::<8>(GROUP, 0) };
            _mm256_permutevar8x32_ps(numbers, _mm256_loadu_si256(groups.as_ptr().cast()))
        }
    }
}

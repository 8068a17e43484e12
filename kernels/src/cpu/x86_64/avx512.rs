//! AVX-512: registers of 16 float32.

use std::arch::x86_64::*;

use half::f16;

use super::super::generic::outline::{Outline, RowFunction};
use super::super::generic::prefetch::{prefetch_l1, prefetch_l2};
use super::super::generic::simd::Simd;
use super::fence::fence;

/// AVX-512 F, BW, DQ and VL, FMA and F16C; with `NATIVE_F16` also AVX512-FP16, whose float16 arithmetic dequantizes.
pub(crate) struct Avx512<const NATIVE_F16: bool>;

impl Avx512<false> {
    /// Whether this machine has the instructions.
    pub(crate) fn is_supported() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
    }
}

impl Avx512<true> {
    /// Whether this machine has the instructions.
    pub(crate) fn is_supported() -> bool {
        Avx512::<false>::is_supported() && is_x86_feature_detected!("avx512fp16")
    }
}

impl Outline for Avx512<false> {
    fn outlined<F: RowFunction>() -> unsafe fn(&F::Rows) {
        outlined::<F>
    }

    fn fence() {
        fence();
    }
}

impl Outline for Avx512<true> {
    fn outlined<F: RowFunction>() -> unsafe fn(&F::Rows) {
        outlined_native_f16::<F>
    }

    fn fence() {
        fence();
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn outlined<F: RowFunction>(rows: &F::Rows) {
    // SAFETY: the instructions are enabled here; the rows are as `F` requires.
    unsafe { F::run::<Avx512<false>>(rows) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512fp16,avx2,fma,f16c")]
unsafe fn outlined_native_f16<F: RowFunction>(rows: &F::Rows) {
    // SAFETY: the instructions are enabled here; the rows are as `F` requires.
    unsafe { F::run::<Avx512<true>>(rows) }
}

/// For each lane of 32 bits, of the eight bytes that each 128 bits have, the one with its code; nothing above it.
const TWICE: [u32; 16] = {
    let mut bytes = [0; 16];
    let mut i = 0;
    while i < 16 {
        bytes[i] = 0x8080_8000 | (i as u32 / 2);
        i += 1;
    }
    bytes
};

/// Each of the first eight bytes for its two codes, whose bits are the low four of a lane: a permutation looks at no
/// others.
#[inline(always)]
pub(super) unsafe fn nibbles(bytes: __m128i) -> __m512i {
    // SAFETY: the instructions are enabled (see Simd).
    unsafe {
        let twice = _mm512_shuffle_epi8(_mm512_broadcastq_epi64(bytes), _mm512_loadu_si512(TWICE.as_ptr().cast()));
        _mm512_srlv_epi32(twice, _mm512_set1_epi64(4 << 32))
    }
}

/// Rounds to nearest, ties to even, without exceptions.
pub(super) const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// The truth table of "if a then b else c".
const CHOOSE: i32 = 0xca;

/// The signed value of four bits.
pub(super) const VALUE_OF_NIBBLE: [f32; 16] = [0., 1., 2., 3., 4., 5., 6., 7., -8., -7., -6., -5., -4., -3., -2., -1.];

/// The low halves of the lanes of two registers.
const LOW_HALVES: [i16; 32] = {
    let mut halves = [0; 32];
    let mut i = 0;
    while i < 32 {
        halves[i] = 2 * i as i16;
        i += 1;
    }
    halves
};

/// A mask of the first `n <= 16` lanes.
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

// SAFETY of every block: the instructions are enabled, and pointers are valid for what is read or written (see Simd).
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
impl<const NATIVE_F16: bool> Simd for Avx512<NATIVE_F16> {
    const LANES: usize = 16;
    type F32 = __m512;
    type Code = __m512i;
    type Line = __m512i;

    /// Into the second-level cache on processors with AVX512-FP16: they wait for few lines at once in the first level,
    /// and for many in the second (measured on Emerald Rapids, where loads take up to a sixth less time).
    #[inline(always)]
    fn prefetch(line: *const u8) {
        if NATIVE_F16 { prefetch_l2(line) } else { prefetch_l1(line) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn read_f32(from: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn write_f32<const STREAM: bool>(to: *mut f32, x: __m512) {
        unsafe { if STREAM { _mm512_stream_ps(to, x) } else { _mm512_storeu_ps(to, x) } }
    }

    #[inline(always)]
    unsafe fn read_f16(from: *const f16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn write_f16<const STREAM: bool>(to: *mut f16, x: __m512) {
        unsafe {
            let halves = _mm512_cvtps_ph::<NEAREST>(x);
            if STREAM { _mm256_stream_si256(to.cast(), halves) } else { _mm256_storeu_si256(to.cast(), halves) }
        }
    }

    #[inline(always)]
    unsafe fn round_f16(x: __m512) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm512_cvtps_ph::<NEAREST>(x)) }
    }

    #[inline(always)]
    unsafe fn read_i8(from: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn read_i4(from: *const u8) -> __m512 {
        unsafe {
            let bytes = _mm_loadl_epi64(from.cast());
            _mm512_permutexvar_ps(nibbles(bytes), _mm512_loadu_ps(VALUE_OF_NIBBLE.as_ptr()))
        }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn abs(x: __m512) -> __m512 {
        unsafe { _mm512_abs_ps(x) }
    }

    #[inline(always)]
    unsafe fn max_magnitude(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b))) }
    }

    #[inline(always)]
    unsafe fn max_pairs(a: __m512, b: __m512) -> __m512 {
        unsafe {
            let (firsts, seconds) =
                (_mm512_shuffle_ps::<0b10_00_10_00>(a, b), _mm512_shuffle_ps::<0b11_01_11_01>(a, b));
            Self::max_magnitude(firsts, seconds)
        }
    }

    #[inline(always)]
    unsafe fn max_fours(a: __m512, b: __m512) -> __m512 {
        unsafe {
            let (firsts, seconds) =
                (_mm512_shuffle_f32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b));
            Self::max_magnitude(firsts, seconds)
        }
    }

    #[inline(always)]
    unsafe fn at_least(x: __m512, floor: __m512) -> __m512 {
        // The instruction gives its second operand where one is NaN.
        unsafe { _mm512_max_ps(floor, x) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn mul_sub_from(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn blend_nan(x: __m512, otherwise: __m512) -> __m512 {
        unsafe { _mm512_mask_mov_ps(otherwise, _mm512_cmp_ps_mask::<_CMP_ORD_Q>(x, x), x) }
    }

    #[inline(always)]
    unsafe fn codes(x: __m512) -> __m512i {
        unsafe { _mm512_cvtps_epi32(x) }
    }

    #[inline(always)]
    unsafe fn write_i8(to: *mut u8, codes: __m512i) {
        // NaN is the smallest int32, whose low byte is 0.
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(codes)) }
    }

    #[inline(always)]
    unsafe fn write_i4(to: *mut u8, codes: __m512i) {
        unsafe {
            // Of each pair, the low four bits of the first and those of the second; the rest is not kept.
            let seconds = _mm512_srli_epi64::<28>(codes);
            let pairs = _mm512_ternarylogic_epi64::<CHOOSE>(_mm512_set1_epi64(0x0f), codes, seconds);
            _mm_storel_epi64(to.cast(), _mm512_cvtepi64_epi8(pairs));
        }
    }

    #[inline(always)]
    unsafe fn write_two_i8(to: *mut u8, codes: [__m512i; 2]) {
        unsafe {
            Self::write_i8(to, codes[0]);
            Self::write_i8(to.add(16), codes[1]);
        }
    }

    #[inline(always)]
    unsafe fn write_two_i4(to: *mut u8, codes: [__m512i; 2]) {
        unsafe {
            // As in `write_i4`, with half as many bits in a code: each pair's first half and second half, and then its
            // byte.
            let halves = _mm512_permutex2var_epi16(codes[0], _mm512_loadu_si512(LOW_HALVES.as_ptr().cast()), codes[1]);
            let seconds = _mm512_srli_epi32::<12>(halves);
            let pairs = _mm512_ternarylogic_epi32::<CHOOSE>(_mm512_set1_epi32(0x0f), halves, seconds);
            _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(pairs));
        }
    }

    #[inline(always)]
    unsafe fn read_some_f32(from: *const f32, n: usize) -> __m512 {
        unsafe { _mm512_maskz_loadu_ps(first(n), from) }
    }

    #[inline(always)]
    unsafe fn read_some_f16(from: *const f16, n: usize) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), from.cast())) }
    }

    #[inline(always)]
    unsafe fn read_line(from: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn write_line(to: *mut u8, line: __m512i) {
        unsafe { _mm512_storeu_si512(to.cast(), line) }
    }

    #[inline(always)]
    unsafe fn stream_line(to: *mut u8, line: __m512i) {
        unsafe { _mm512_stream_si512(to.cast(), line) }
    }
}

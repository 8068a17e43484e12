//! AVX2 with FMA and F16C: registers of 8 float32.
// SAFETY of all that is unsafe here: the instructions are enabled, and pointers are valid for what is read or written
// (see Simd).
#![expect(unsafe_op_in_unsafe_fn, reason = "one reason for all, above")]

use std::arch::x86_64::*;

use crate::simd::{Function, Outlined, Simd, instructions};

/// AVX2, FMA and F16C. With `NARROW`, non-temporal stores write 16 bytes each, to addresses that are multiples of 16:
/// where they follow each other, they take 1.0 to 1.04 times as long as stores of whole lines.
#[derive(Debug, Clone, Copy)]
pub struct Avx2<const NARROW: bool = false>;

#[target_feature(enable = "avx2,fma,f16c,popcnt")]
unsafe fn outlined<const NARROW: bool, F: Function<Avx2<NARROW>>>(arguments: &F::Arguments<'_>) -> F::Output {
    // SAFETY: the instructions are enabled here; the arguments are as `F` requires.
    F::run(arguments)
}

/// Rounds to nearest, ties to even.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

/// A mask of the first `n <= 8` lanes.
#[inline(always)]
unsafe fn first(n: usize) -> __m256i {
    const ONES_THEN_ZEROS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: n <= 8 leaves a register's lanes.
    _mm256_loadu_si256(ONES_THEN_ZEROS.as_ptr().add(8 - n).cast())
}

/// Eight float8e4m3fn as float16 of 1/256 of their values; a NaN is 0x7e00 with its sign.
#[inline(always)]
unsafe fn e4m3_as_halves(codes: __m128i) -> __m128i {
    // The sign is at the top, and the exponent where float16 has its own.
    let halves = _mm_and_si128(_mm_slli_epi16::<7>(_mm_cvtepi8_epi16(codes)), _mm_set1_epi16(0xbf80u16 as i16));
    let all = _mm_set1_epi16(0x3f80);
    let is_nan = _mm_cmpeq_epi16(_mm_and_si128(halves, all), all);
    _mm_xor_si128(halves, _mm_and_si128(is_nan, _mm_set1_epi16(0x3f80 ^ 0x7e00)))
}

impl<const NARROW: bool> Simd for Avx2<NARROW> {
    const LANES: usize = 8;
    const STREAMS: bool = true;
    type F32 = __m256;
    type U16 = __m128i;

    fn outlined<F: Function<Self>>() -> Outlined<Self, F> {
        outlined::<NARROW, F>
    }

    fn fence() {
        // SAFETY: the instruction belongs to SSE, which every x86-64 has.
        unsafe { _mm_sfence() }
    }

    instructions! {
        splat(x: f32) -> __m256 = _mm256_set1_ps;
        read_f32(from: *const f32) -> __m256 = _mm256_loadu_ps;
        write_f32(to: *mut f32, x: __m256) -> () = _mm256_storeu_ps;
        add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps;
        sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps;
        mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps;
        div(a: __m256, b: __m256) -> __m256 = _mm256_div_ps;
        mul_add(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps;
        // The instruction gives its second operand where one is NaN.
        max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps;
        and_bits(a: __m256, b: __m256) -> __m256 = _mm256_and_ps;
        or_bits(a: __m256, b: __m256) -> __m256 = _mm256_or_ps;
        from_f16(x: __m128i) -> __m256 = _mm256_cvtph_ps;
        to_f16(x: __m256) -> __m128i = _mm256_cvtps_ph::<NEAREST>;
    }

    #[inline(always)]
    unsafe fn stream_f32(to: *mut f32, x: __m256) {
        if !NARROW {
            return _mm256_stream_ps(to, x);
        }
        _mm_stream_ps(to, _mm256_castps256_ps128(x));
        _mm_stream_ps(to.add(4), _mm256_extractf128_ps::<1>(x));
    }

    #[inline(always)]
    unsafe fn read_u16(from: *const u16) -> __m128i {
        _mm_loadu_si128(from.cast())
    }

    #[inline(always)]
    unsafe fn write_u16(to: *mut u16, x: __m128i) {
        _mm_storeu_si128(to.cast(), x)
    }

    #[inline(always)]
    unsafe fn stream_u16(to: *mut u16, x: __m128i) {
        _mm_stream_si128(to.cast(), x)
    }

    #[inline(always)]
    unsafe fn stream_two_u16(to: *mut u16, [a, b]: [__m128i; 2]) {
        if !NARROW {
            return _mm256_stream_si256(to.cast(), _mm256_set_m128i(b, a));
        }
        Self::stream_u16(to, a);
        Self::stream_u16(to.add(8), b);
    }

    #[inline(always)]
    unsafe fn from_high_halves(x: __m128i) -> __m256 {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(x)))
    }

    #[inline(always)]
    unsafe fn high_halves(x: __m256) -> __m128i {
        let high = _mm256_srli_epi32::<16>(_mm256_castps_si256(x));
        _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256::<1>(high))
    }

    #[inline(always)]
    unsafe fn read_e4m3(from: *const u8) -> __m256 {
        _mm256_mul_ps(_mm256_cvtph_ps(e4m3_as_halves(_mm_loadl_epi64(from.cast()))), _mm256_set1_ps(256.0))
    }

    #[inline(always)]
    unsafe fn read_i8(from: *const u8) -> __m256 {
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())))
    }

    #[inline(always)]
    unsafe fn read_i4(from: *const u8) -> __m256 {
        // All eight codes are in each lane: the lane's own is moved to the top and back, with its sign.
        let codes = _mm256_set1_epi32(from.cast::<i32>().read_unaligned());
        let top = _mm256_sllv_epi32(codes, _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0));
        _mm256_cvtepi32_ps(_mm256_srai_epi32::<28>(top))
    }

    #[inline(always)]
    unsafe fn i8_of_four(lanes: __m256, i: usize) -> __m256 {
        let top = _mm256_sllv_epi32(_mm256_castps_si256(lanes), _mm256_set1_epi32(24 - 8 * i as i32));
        _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(top))
    }

    #[inline(always)]
    unsafe fn i4_of_eight(lanes: __m256, i: usize) -> __m256 {
        let top = _mm256_sllv_epi32(_mm256_castps_si256(lanes), _mm256_set1_epi32(28 - 4 * i as i32));
        _mm256_cvtepi32_ps(_mm256_srai_epi32::<28>(top))
    }

    #[inline(always)]
    unsafe fn swap<const DISTANCE: usize>(x: __m256) -> __m256 {
        match DISTANCE {
            1 => _mm256_permute_ps::<0b10_11_00_01>(x),
            2 => _mm256_permute_ps::<0b01_00_11_10>(x),
            _ => _mm256_permute2f128_ps::<1>(x, x),
        }
    }

    #[inline(always)]
    unsafe fn if_equal(a: __m256, b: __m256, then: __m256, otherwise: __m256) -> __m256 {
        _mm256_blendv_ps(otherwise, then, _mm256_cmp_ps::<_CMP_EQ_OQ>(a, b))
    }

    #[inline(always)]
    unsafe fn add_bits(a: __m256, b: __m256) -> __m256 {
        _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)))
    }

    #[inline(always)]
    unsafe fn shift_right<const BITS: i32>(x: __m256) -> __m256 {
        _mm256_castsi256_ps(_mm256_srli_epi32::<BITS>(_mm256_castps_si256(x)))
    }

    #[inline(always)]
    unsafe fn read_some_f32(from: *const f32, n: usize) -> __m256 {
        _mm256_maskload_ps(from, first(n))
    }
}

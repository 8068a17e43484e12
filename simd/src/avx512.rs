//! AVX-512: registers of 16 float32.
// SAFETY of all that is unsafe here: the instructions are enabled, and pointers are valid for what is read or written
// (see Simd).
#![expect(unsafe_op_in_unsafe_fn, reason = "one reason for all, above")]

use std::arch::x86_64::*;

use crate::prefetch::{prefetch_l1, prefetch_l2};
use crate::simd::{Function, Outlined, Simd, instructions};

/// AVX-512 F, BW, DQ and VL, FMA and F16C; with `NATIVE_F16` also AVX512-FP16.
#[derive(Debug, Clone, Copy)]
pub struct Avx512<const NATIVE_F16: bool>;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,popcnt")]
unsafe fn outlined<const NATIVE_F16: bool, F: Function<Avx512<NATIVE_F16>>>(arguments: &F::Arguments<'_>) -> F::Output {
    // SAFETY: the instructions are enabled here; the arguments are as `F` requires.
    F::run(arguments)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512fp16,avx2,fma,f16c,popcnt")]
unsafe fn outlined_native_f16<const NATIVE_F16: bool, F: Function<Avx512<NATIVE_F16>>>(
    arguments: &F::Arguments<'_>,
) -> F::Output {
    // SAFETY: the instructions are enabled here; the arguments are as `F` requires.
    F::run(arguments)
}

/// Rounds to nearest, ties to even, without exceptions.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// The signed value of four bits.
pub const VALUE_OF_NIBBLE: [f32; 16] = [0., 1., 2., 3., 4., 5., 6., 7., -8., -7., -6., -5., -4., -3., -2., -1.];

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
///
/// # Safety
/// AVX-512 F and BW are enabled.
#[inline(always)]
pub unsafe fn nibbles(bytes: __m128i) -> __m512i {
    // SAFETY: the instructions are enabled: see `# Safety`.
    let twice = _mm512_shuffle_epi8(_mm512_broadcastq_epi64(bytes), _mm512_loadu_si512(TWICE.as_ptr().cast()));
    _mm512_srlv_epi32(twice, _mm512_set1_epi64(4 << 32))
}

/// The bits of the `i`-th int4 of a lane, of the first five; and the float with these bits if that is 0, but its sign
/// bit inverted: of such an exponent that the int4 counts ones.
#[inline(always)]
const fn nibble(i: usize) -> [i32; 2] {
    let exponent = 127 + 23 - 4 * i as i32;
    [0xf << (4 * i), exponent << 23 | 8 << (4 * i)]
}

/// The int4s of [`nibble`]'s bits, exactly.
///
/// # Safety
/// AVX-512 F is enabled.
#[inline(always)]
unsafe fn number(lanes: __m512i, mask: __m512i, zero: __m512i) -> __m512 {
    const AND_XOR: i32 = 0xf0 & 0xcc ^ 0xaa;
    let biased = _mm512_ternarylogic_epi32::<AND_XOR>(lanes, mask, zero);
    _mm512_sub_ps(_mm512_castsi512_ps(biased), _mm512_castsi512_ps(zero))
}

/// A mask of the first `n <= 16` lanes.
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

impl<const NATIVE_F16: bool> Simd for Avx512<NATIVE_F16> {
    const LANES: usize = 16;
    const STREAMS: bool = true;
    type F32 = __m512;
    type U16 = __m256i;

    fn outlined<F: Function<Self>>() -> Outlined<Self, F> {
        if NATIVE_F16 { outlined_native_f16::<NATIVE_F16, F> } else { outlined::<NATIVE_F16, F> }
    }

    fn fence() {
        // SAFETY: the instruction belongs to SSE, which every x86-64 has.
        unsafe { _mm_sfence() }
    }

    /// Into the second-level cache on processors with AVX512-FP16: they wait for few lines at once in the first level,
    /// and for many in the second (measured on Emerald Rapids, where loads take up to a sixth less time).
    #[inline(always)]
    fn prefetch(line: *const u8) {
        if NATIVE_F16 { prefetch_l2(line) } else { prefetch_l1(line) }
    }

    instructions! {
        splat(x: f32) -> __m512 = _mm512_set1_ps;
        read_f32(from: *const f32) -> __m512 = _mm512_loadu_ps;
        write_f32(to: *mut f32, x: __m512) -> () = _mm512_storeu_ps;
        stream_f32(to: *mut f32, x: __m512) -> () = _mm512_stream_ps;
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps;
        sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps;
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps;
        div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps;
        mul_add(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps;
        // The instruction gives its second operand where one is NaN.
        max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps;
        and_bits(a: __m512, b: __m512) -> __m512 = _mm512_and_ps;
        or_bits(a: __m512, b: __m512) -> __m512 = _mm512_or_ps;
        // Where no exceptions are suppressed, a load is part of the instruction: one micro-operation less.
        from_f16(x: __m256i) -> __m512 = _mm512_cvt_roundph_ps::<_MM_FROUND_CUR_DIRECTION>;
        to_f16(x: __m512) -> __m256i = _mm512_cvtps_ph::<NEAREST>;
    }

    #[inline(always)]
    unsafe fn read_u16(from: *const u16) -> __m256i {
        _mm256_loadu_si256(from.cast())
    }

    #[inline(always)]
    unsafe fn write_u16(to: *mut u16, x: __m256i) {
        _mm256_storeu_si256(to.cast(), x)
    }

    #[inline(always)]
    unsafe fn stream_u16(to: *mut u16, x: __m256i) {
        _mm256_stream_si256(to.cast(), x)
    }

    #[inline(always)]
    unsafe fn from_high_halves(x: __m256i) -> __m512 {
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(x)))
    }

    #[inline(always)]
    unsafe fn high_halves(x: __m512) -> __m256i {
        _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_castps_si512(x)))
    }

    #[inline(always)]
    unsafe fn read_e4m3(from: *const u8) -> __m512 {
        // As float16 of 1/256 of the values: see Avx2.
        let codes = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast())));
        let halves = _mm256_and_si256(codes, _mm256_set1_epi16(0xbf80u16 as i16));
        let all = _mm256_set1_epi16(0x3f80);
        let is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(halves, all), all);
        let halves = _mm256_xor_si256(halves, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x3f80 ^ 0x7e00)));
        _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0))
    }

    #[inline(always)]
    unsafe fn read_i8(from: *const u8) -> __m512 {
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())))
    }

    #[inline(always)]
    unsafe fn read_i4(from: *const u8) -> __m512 {
        // Each byte twice, in a lane of 32 bits, for its low and its high code.
        let bytes = _mm512_set1_epi64(from.cast::<i64>().read_unaligned());
        let twice = _mm512_shuffle_epi8(bytes, _mm512_loadu_si512(TWICE.as_ptr().cast()));
        const PAIR: [i64; 2] = {
            let [low, high] = [nibble(0), nibble(1)];
            [(high[0] as i64) << 32 | low[0] as i64, (high[1] as i64) << 32 | low[1] as i64]
        };
        number(twice, _mm512_set1_epi64(PAIR[0]), _mm512_set1_epi64(PAIR[1]))
    }

    #[inline(always)]
    unsafe fn i8_of_four(lanes: __m512, i: usize) -> __m512 {
        let top = _mm512_sllv_epi32(_mm512_castps_si512(lanes), _mm512_set1_epi32(24 - 8 * i as i32));
        _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(top))
    }

    #[inline(always)]
    unsafe fn i4_of_eight(lanes: __m512, i: usize) -> __m512 {
        let lanes = _mm512_castps_si512(lanes);
        let (lanes, i) = if i < 5 { (lanes, i) } else { (_mm512_srli_epi32::<20>(lanes), i - 5) };
        let [mask, zero] = nibble(i);
        number(lanes, _mm512_set1_epi32(mask), _mm512_set1_epi32(zero))
    }

    #[inline(always)]
    unsafe fn swap<const DISTANCE: usize>(x: __m512) -> __m512 {
        match DISTANCE {
            1 => _mm512_permute_ps::<0b10_11_00_01>(x),
            2 => _mm512_permute_ps::<0b01_00_11_10>(x),
            4 => _mm512_shuffle_f32x4::<0b10_11_00_01>(x, x),
            _ => _mm512_shuffle_f32x4::<0b01_00_11_10>(x, x),
        }
    }

    #[inline(always)]
    unsafe fn if_equal(a: __m512, b: __m512, then: __m512, otherwise: __m512) -> __m512 {
        _mm512_mask_mov_ps(otherwise, _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b), then)
    }

    #[inline(always)]
    unsafe fn add_bits(a: __m512, b: __m512) -> __m512 {
        _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)))
    }

    #[inline(always)]
    unsafe fn shift_right<const BITS: i32>(x: __m512) -> __m512 {
        _mm512_castsi512_ps(_mm512_srlv_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(BITS)))
    }

    #[inline(always)]
    unsafe fn read_some_f32(from: *const f32, n: usize) -> __m512 {
        _mm512_maskz_loadu_ps(first(n), from)
    }

    #[inline(always)]
    unsafe fn read_some_u16(from: *const u16, n: usize) -> __m256i {
        _mm256_maskz_loadu_epi16(first(n), from.cast())
    }
}

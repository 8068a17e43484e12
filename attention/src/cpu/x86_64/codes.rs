//! Int8, dequantized in registers: for few queries, which use each value once. A value is the product of code and scale,
//! rounded to the scale's type, as loaded rows have it.

use std::arch::x86_64::*;

use kvcache_simd::Avx512;

use super::super::generic::rows::Rows;
use super::super::generic::stored::Stored;

/// Values in a register.
pub(crate) const LANES: usize = 16;

/// Rounds to nearest, ties to even, without exceptions.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// The numbers of lanes.
const COUNT: [u32; LANES] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Codes of eight bits with scales of float32, or of float16.
pub(crate) struct ScaledInt8<const F16: bool>;

// SAFETY of every block: the instructions are enabled; the codes are the row's, and the scales from `first` on.
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
impl<const F16: bool> Stored<Avx512<false>> for ScaledInt8<F16> {
    const BYTES: usize = LANES;

    /// Where its codes begin, and a register of scales.
    type Row = (*const u8, __m512);

    #[inline(always)]
    fn at_once(rows: &Rows<'_>) -> usize {
        LANES << rows.group_bits
    }

    #[inline(always)]
    unsafe fn row(rows: &Rows<'_>, offset: usize, scale: usize, at: usize) -> Self::Row {
        let first = (at >> rows.group_bits) / LANES * LANES;
        let left = (rows.len >> rows.group_bits) - first;
        let mask = if left < LANES { (1 << left) - 1 } else { !0 };
        unsafe {
            let scales = rows.scale.add(scale);
            let scales = match F16 {
                true => _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, scales.cast::<i16>().add(first))),
                false => _mm512_maskz_loadu_ps(mask, scales.cast::<f32>().add(first)),
            };
            (rows.from.add(offset), scales)
        }
    }

    #[inline(always)]
    unsafe fn read<const C: usize>(rows: &Rows<'_>, (codes, scales): Self::Row, at: usize) -> [__m512; C] {
        unsafe {
            let mut registers = [_mm512_setzero_ps(); C];
            for (c, register) in registers.iter_mut().enumerate() {
                let at = at + c * LANES;
                // The scale of each element: a permutation looks at the low four bits.
                let elements =
                    _mm512_add_epi32(_mm512_loadu_si512(COUNT.as_ptr().cast()), _mm512_set1_epi32(at as i32));
                let groups = _mm512_srlv_epi32(elements, _mm512_set1_epi32(rows.group_bits as i32));
                let codes = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes.add(at).cast())));
                let x = _mm512_mul_ps(codes, _mm512_permutexvar_ps(groups, scales));
                *register = if F16 { _mm512_cvtph_ps(_mm512_cvtps_ph::<NEAREST>(x)) } else { x };
            }
            registers
        }
    }
}

/// Codes of eight bits with scales of float32, each for whole registers: it is broadcast as the product's operand in
/// memory, which takes no instruction.
pub(crate) struct WideInt8;

// SAFETY of every block: the instructions are enabled; the codes are the row's, and so is the scale of their group.
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
impl Stored<Avx512<false>> for WideInt8 {
    const BYTES: usize = LANES;

    /// Where its codes and its scales begin.
    type Row = (*const u8, *const f32);

    #[inline(always)]
    fn at_once(rows: &Rows<'_>) -> usize {
        rows.len
    }

    #[inline(always)]
    unsafe fn row(rows: &Rows<'_>, offset: usize, scale: usize, _: usize) -> Self::Row {
        (rows.from.wrapping_add(offset), rows.scale.wrapping_add(scale).cast())
    }

    #[inline(always)]
    unsafe fn read<const C: usize>(rows: &Rows<'_>, (codes, scales): Self::Row, at: usize) -> [__m512; C] {
        unsafe {
            let mut registers = [_mm512_setzero_ps(); C];
            for (c, register) in registers.iter_mut().enumerate() {
                let at = at + c * LANES;
                let codes = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes.add(at).cast())));
                *register = _mm512_mul_ps(codes, _mm512_set1_ps(*scales.add(at >> rows.group_bits)));
            }
            registers
        }
    }
}

//! Codes that AVX-512 dequantizes in registers: for few queries, which use each value once. A value is the product of
//! code and scale in float32.

use std::arch::x86_64::*;

use kvcache_simd::{Avx512, Simd};

use super::super::generic::rows::Rows;
use super::super::generic::stored::Stored;

/// Values in a register.
pub(crate) const LANES: usize = 16;

/// The numbers of lanes.
const COUNT: [u32; LANES] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Codes of that many bits, eight or four, or of float8, with scales of float32; if WIDE, each is for whole registers,
/// else a register of scales can be read from each on.
pub(crate) struct Codes<const BITS: usize, const FLOAT8: bool, const WIDE: bool>;

// SAFETY of every block: the instructions are enabled; the codes are the row's, and so are the scales of their groups.
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
impl<const BITS: usize, const FLOAT8: bool, const WIDE: bool> Stored<Avx512<false>> for Codes<BITS, FLOAT8, WIDE> {
    const BYTES: usize = LANES * BITS / 8;

    /// Where its codes and its scales begin.
    type Row = (*const u8, *const f32);

    #[inline(always)]
    unsafe fn row(rows: &Rows<'_>, offset: usize, scale: usize) -> Self::Row {
        (rows.from.wrapping_add(offset), rows.scale.wrapping_add(scale).cast())
    }

    #[inline(always)]
    unsafe fn read<const C: usize>(rows: &Rows<'_>, (codes, scales): Self::Row, at: usize) -> [__m512; C] {
        unsafe {
            let mut registers = [_mm512_setzero_ps(); C];
            for (c, register) in registers.iter_mut().enumerate() {
                let at = at + c * LANES;
                let codes = codes.add(at * BITS / 8);
                let values = match BITS {
                    8 if FLOAT8 => Avx512::<false>::read_e4m3(codes),
                    8 => Avx512::<false>::read_i8(codes),
                    _ => Avx512::<false>::read_i4(codes),
                };
                let scales = scales.add(at >> rows.group_bits);
                let scales = if WIDE {
                    _mm512_set1_ps(*scales)
                } else {
                    let lanes = _mm512_loadu_si512(COUNT.as_ptr().cast());
                    let groups = _mm512_srlv_epi32(lanes, _mm512_set1_epi32(rows.group_bits as i32));
                    _mm512_permutexvar_ps(groups, _mm512_loadu_ps(scales))
                };
                *register = _mm512_mul_ps(values, scales);
            }
            registers
        }
    }
}

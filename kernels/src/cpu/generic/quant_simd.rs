//! What an instruction set can do with codes, and with groups of values that share a scale.
//!
//! Functions take the length of a group as a constant, `GROUP`, where it is a common one.

use half::f16;
use kvcache_simd::{Float, Simd};

use super::super::code_type::CodeType;

/// The `GROUP` of functions for groups of a register or more whose length only the call knows.
pub(crate) const LONG: usize = usize::MAX;

/// The `GROUP` of functions for groups that are left to plain Rust: shorter than a register and no divisor of it.
pub(crate) const ODD: usize = usize::MAX - 1;

/// Values in a register of native float16 arithmetic.
pub(crate) const NATIVE_LANES: usize = 32;

/// Groups that are quantized together, at most.
pub(crate) const MOST_GROUPS: usize = 256;

/// Where a register begins that should begin at `i < len` and end inside `len >= LANES`: it may overlap the one before
/// it.
#[inline(always)]
pub(crate) fn last_inside<S: Simd>(i: usize, len: usize) -> usize {
    i.min(len - S::LANES)
}

/// An instruction set that quantizes and dequantizes.
///
/// # Safety
/// The conditions of [`Simd`].
pub(crate) trait QuantSimd: Simd {
    /// Whether the instruction set has native float16 arithmetic.
    const NATIVE_F16: bool = false;

    /// Whether [`rank`](Self::rank) is one instruction.
    const RANKS: bool = false;

    /// The instruction set whose non-temporal stores need the least alignment: 16 bytes, if there are any.
    type Narrow: QuantSimd;

    /// A register of codes, as int32.
    type Code: Copy;

    /// Rounds to integers, ties to even.
    unsafe fn codes(x: Self::F32) -> Self::Code;
    /// Rounds numbers below 496 to float8e4m3fn, ties to even, with the signs of `x`: 480 becomes the code of NaN, as
    /// if it were a number. 0 where the number is NaN.
    unsafe fn e4m3_codes(number: Self::F32, x: Self::F32) -> Self::Code;
    /// Writes a register of codes as int8, one a byte; 0 for the code of NaN.
    unsafe fn write_i8(to: *mut u8, codes: Self::Code);
    /// Writes a register of codes as int4, two a byte; 0 for the code of NaN.
    unsafe fn write_i4(to: *mut u8, codes: Self::Code);
    /// Writes two registers of codes as int8, one a byte; 0 for the code of NaN.
    unsafe fn write_two_i8(to: *mut u8, codes: [Self::Code; 2]);
    /// Writes two registers of codes as int4, two a byte; 0 for the code of NaN.
    unsafe fn write_two_i4(to: *mut u8, codes: [Self::Code; 2]);

    /// `c - a * b`, rounded once.
    unsafe fn mul_sub_from(a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// `|x|`
    unsafe fn abs(x: Self::F32) -> Self::F32;
    /// The bits of `x`, the sign moved from the top to the bottom: unsigned integers in the order of the magnitudes, in
    /// which a NaN is above infinity, and of two that are equal the negative one is the larger.
    #[inline(always)]
    unsafe fn rank(x: Self::F32) -> Self::F32 {
        // SAFETY: the instruction set is enabled.
        unsafe { Self::or_bits(Self::add_bits(x, x), Self::shift_right::<31>(x)) }
    }
    /// The larger of both lanes' bits, as integers with a sign or without.
    unsafe fn max_bits<const SIGNED: bool>(a: Self::F32, b: Self::F32) -> Self::F32;
    /// The larger of each pair of neighboring lanes, in that order: of each four lanes, of `a`'s and then of `b`'s.
    unsafe fn max_pairs<const SIGNED: bool>(a: Self::F32, b: Self::F32) -> Self::F32;
    /// The larger of each pair of neighboring fours, lane by lane, in that order: of `a`'s and then of `b`'s.
    unsafe fn max_fours<const SIGNED: bool>(a: Self::F32, b: Self::F32) -> Self::F32;

    /// Permutes a register of maxima into the order of their groups: what as many registers as
    /// [`registers_per_scales`](super::lane_tables::registers_per_scales) says became by
    /// [`max_pairs`](Self::max_pairs), twice, and [`max_fours`](Self::max_fours).
    unsafe fn permute_maxima<const GROUP: usize>(maxima: Self::F32) -> Self::F32;

    /// The scale of each lane of register `k` of values, where `scales` are the scales of as many registers as
    /// [`registers_per_scales`](super::lane_tables::registers_per_scales) says.
    unsafe fn broadcast_scales<const GROUP: usize>(scales: Self::F32, k: usize) -> Self::F32;

    /// The number of each lane of a register of values whose groups have these numbers, at the address.
    unsafe fn broadcast_numbers<const GROUP: usize>(numbers: *const f32) -> Self::F32;

    /// The maxima that [`maxima_in_registers`](super::group::maxima_in_registers) gives, of float16; none where the
    /// instruction set has no faster way to them.
    #[inline(always)]
    unsafe fn maxima_f16<const GROUP: usize, const WITH_SIGN: bool>(
        _values: *const f16,
        _count: usize,
        _unit: usize,
    ) -> Option<Self::F32> {
        None
    }

    /// Dequantizes a group of `len >= LANES` codes of int4, where `s` is its scale in every lane; false, with nothing
    /// done, where the instruction set has no faster way than register by register.
    #[inline(always)]
    unsafe fn decode_group_i4<V: Float, T: Float, const STREAM: bool>(
        _cache: *const u8,
        _values: *mut V,
        _s: Self::F32,
        _len: usize,
    ) -> bool {
        false
    }

    /// Dequantizes a row with float16 scales by native float16 arithmetic; false, with nothing done, where the
    /// instruction set has none or the row does not suit it.
    ///
    /// The bits are as by float32 arithmetic rounded to float16: codes are exact in float16, which leaves one
    /// rounding.
    #[inline(always)]
    unsafe fn dequantize_native<Q: CodeType, V: Float, const GROUP: usize, const STREAM: bool>(
        _cache: *const u8,
        _scales: *const f16,
        _values: *mut V,
        _len: usize,
        _group: usize,
    ) -> bool {
        false
    }

    /// Writes the codes of at most [`MOST_GROUPS`] groups with these scales, which are float16, by native float16
    /// arithmetic, and prefetches as many values at `ahead`. The groups are [`NATIVE_LANES`] values or more: together,
    /// and each of them if `GROUP` is [`LONG`]. At `scales` whole registers can be read.
    ///
    /// Called with [`NATIVE_F16`](Self::NATIVE_F16) alone.
    unsafe fn encode_native<Q: CodeType, const GROUP: usize>(
        _values: *const f16,
        _scales: *const f32,
        _cache: *mut u8,
        _group: usize,
        _groups: usize,
        _ahead: Option<*const f16>,
    ) {
        unreachable!("without native float16 arithmetic nothing is encoded by it");
    }
}

/// Prefetches `len` bytes at any address.
#[inline(always)]
pub(crate) fn prefetch_bytes<S: Simd>(from: *const u8, len: usize) {
    for i in (0..len).step_by(kvcache_simd::LINE) {
        S::prefetch(from.wrapping_add(i));
    }
}

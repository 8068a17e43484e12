//! Float types of tensors: one by one, as slices, and in registers, where each is float32.

use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use num_traits::AsPrimitive;

use crate::simd::{MOST_LANES, Simd};

mod sealed {
    pub trait Sealed {}

    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

/// Elements that are converted together on the stack.
const BUFFER: usize = 128;

/// A float type whose every value is a float32. Rounding is to nearest, ties to even.
///
/// # Safety
/// Functions over registers have the conditions of [`Simd`].
#[expect(clippy::missing_safety_doc, reason = "one condition for all, above")]
pub trait Float: AsPrimitive<f32> + Pod + Default + sealed::Sealed {
    /// Whether this is float16.
    const IS_F16: bool = false;

    /// Bits of the significand, with the one that is not stored.
    const DIGITS: u32;

    /// The value; a NaN of float16 becomes quiet, another type's keeps its bits.
    #[inline]
    fn to_f32(self) -> f32 {
        self.as_()
    }

    /// `x`, rounded to this type.
    fn from_f32(x: f32) -> Self;

    /// Fills `to` with as many values.
    fn read_slice(from: &[Self], to: &mut [f32]) {
        for (to, &x) in to.iter_mut().zip(from) {
            *to = x.to_f32();
        }
    }

    /// Rounds each value to this type.
    fn round_slice(values: &mut [f32]) {
        for x in values {
            *x = Self::from_f32(*x).to_f32();
        }
    }

    /// Writes values, rounded to this type.
    ///
    /// # Safety
    /// `to` is aligned and valid for writes of as many elements, which may be uninitialized.
    unsafe fn write_slice(from: &[f32], to: *mut Self) {
        for (i, &x) in from.iter().enumerate() {
            // SAFETY: i < from.len().
            unsafe { to.add(i).write(Self::from_f32(x)) }
        }
    }

    /// Reads a register.
    unsafe fn read<S: Simd>(from: *const Self) -> S::F32;

    /// Reads the first `n <= LANES` elements; the other lanes are 0.
    unsafe fn read_some<S: Simd>(from: *const Self, n: usize) -> S::F32;

    /// Writes a register, by a non-temporal store with `STREAM`.
    unsafe fn write<S: Simd, const STREAM: bool>(to: *mut Self, x: S::F32);

    /// Writes two registers, one after the other; with `STREAM` by non-temporal stores, to an address that is a
    /// multiple of the bytes of both.
    #[inline(always)]
    unsafe fn write_two<S: Simd, const STREAM: bool>(to: *mut Self, [a, b]: [S::F32; 2]) {
        // SAFETY: the conditions of `write`, for both registers.
        unsafe {
            Self::write::<S, STREAM>(to, a);
            Self::write::<S, STREAM>(to.add(S::LANES), b);
        }
    }

    /// Writes the first `n <= LANES` lanes. Not with a mask, which takes very long on some processors (Zen 5).
    #[inline(always)]
    unsafe fn write_some<S: Simd>(to: *mut Self, x: S::F32, n: usize) {
        // SAFETY: n elements can be written; the array has a register's lanes.
        unsafe {
            if n == S::LANES {
                return Self::write::<S, false>(to, x);
            }
            let mut all = [Self::default(); MOST_LANES];
            Self::write::<S, false>(all.as_mut_ptr(), x);
            for (i, &lane) in all.iter().enumerate().take(n) {
                to.add(i).write(lane);
            }
        }
    }

    /// Rounds each lane to this type.
    unsafe fn round<S: Simd>(x: S::F32) -> S::F32;

    /// `len` values as float32: where they are, or else in `room`, into which whole registers are written.
    #[inline(always)]
    unsafe fn as_f32<S: Simd>(values: *const Self, len: usize, room: *mut f32) -> *const f32 {
        for i in (0..len).step_by(S::LANES) {
            // SAFETY: i < len, so these values can be read, and a register be written.
            unsafe { S::write_f32(room.add(i), Self::read_some::<S>(values.add(i), S::LANES.min(len - i))) }
        }
        room
    }
}

/// The functions over registers of a type of 16 bits: `$values` of its bits, and its `$bits` of values.
macro_rules! in_registers {
    ($S:ident, $values:expr, $bits:expr) => {
        #[inline(always)]
        unsafe fn read<$S: Simd>(from: *const Self) -> $S::F32 {
            unsafe { $values($S::read_u16(from.cast())) }
        }

        #[inline(always)]
        unsafe fn read_some<$S: Simd>(from: *const Self, n: usize) -> $S::F32 {
            unsafe { $values($S::read_some_u16(from.cast(), n)) }
        }

        #[inline(always)]
        unsafe fn write<$S: Simd, const STREAM: bool>(to: *mut Self, x: $S::F32) {
            unsafe { if STREAM { $S::stream_u16(to.cast(), $bits(x)) } else { $S::write_u16(to.cast(), $bits(x)) } }
        }

        #[inline(always)]
        unsafe fn write_two<$S: Simd, const STREAM: bool>(to: *mut Self, [a, b]: [$S::F32; 2]) {
            unsafe {
                if STREAM {
                    return $S::stream_two_u16(to.cast(), [$bits(a), $bits(b)]);
                }
                $S::write_u16(to.cast(), $bits(a));
                $S::write_u16(to.add($S::LANES).cast(), $bits(b));
            }
        }
    };
}

// SAFETY of every block: the function has the conditions of the one that it calls.
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
impl Float for f32 {
    const DIGITS: u32 = Self::MANTISSA_DIGITS;

    #[inline]
    fn from_f32(x: f32) -> Self {
        x
    }

    #[inline(always)]
    unsafe fn read_some<S: Simd>(from: *const Self, n: usize) -> S::F32 {
        unsafe { S::read_some_f32(from, n) }
    }

    #[inline(always)]
    unsafe fn read<S: Simd>(from: *const Self) -> S::F32 {
        unsafe { S::read_f32(from) }
    }

    #[inline(always)]
    unsafe fn write<S: Simd, const STREAM: bool>(to: *mut Self, x: S::F32) {
        unsafe { if STREAM { S::stream_f32(to, x) } else { S::write_f32(to, x) } }
    }

    #[inline(always)]
    unsafe fn round<S: Simd>(x: S::F32) -> S::F32 {
        x
    }

    #[inline(always)]
    unsafe fn as_f32<S: Simd>(values: *const Self, _: usize, _: *mut f32) -> *const f32 {
        values
    }
}

// SAFETY of every block: the function has the conditions of the one that it calls.
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
impl Float for f16 {
    const IS_F16: bool = true;
    const DIGITS: u32 = Self::MANTISSA_DIGITS;

    #[inline]
    fn from_f32(x: f32) -> Self {
        Self::from_f32(x)
    }

    fn read_slice(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }

    fn round_slice(values: &mut [f32]) {
        for values in values.chunks_mut(BUFFER) {
            let mut rounded = [Self::ZERO; BUFFER];
            let rounded = &mut rounded[..values.len()];
            rounded.convert_from_f32_slice(values);
            rounded.convert_to_f32_slice(values);
        }
    }

    unsafe fn write_slice(from: &[f32], to: *mut Self) {
        for (i, from) in from.chunks(BUFFER).enumerate() {
            let mut rounded = [Self::ZERO; BUFFER];
            let rounded = &mut rounded[..from.len()];
            rounded.convert_from_f32_slice(from);
            unsafe { to.add(i * BUFFER).copy_from_nonoverlapping(rounded.as_ptr(), rounded.len()) }
        }
    }

    in_registers!(S, S::from_f16, S::to_f16);

    #[inline(always)]
    unsafe fn round<S: Simd>(x: S::F32) -> S::F32 {
        unsafe { S::from_f16(S::to_f16(x)) }
    }
}

/// Lanes whose high halves are `x` rounded to bfloat16.
#[inline(always)]
unsafe fn nearest_bf16<S: Simd>(x: S::F32) -> S::F32 {
    // SAFETY: the instruction set is enabled (see Simd).
    unsafe {
        let odd = S::and_bits(S::shift_right::<16>(x), S::splat_bits(1));
        let nearest = S::add_bits(x, S::add_bits(odd, S::splat_bits(0x7fff)));
        S::if_equal(x, x, nearest, S::or_bits(x, S::splat_bits(0x0040_0000)))
    }
}

/// Each lane as bfloat16.
#[inline(always)]
unsafe fn to_bf16<S: Simd>(x: S::F32) -> S::U16 {
    // SAFETY: the instruction set is enabled (see Simd).
    unsafe { S::high_halves(nearest_bf16::<S>(x)) }
}

/// The high half of float32, which no instruction set needs to have: a shift gives the value, and additions of integers
/// round, so that all machines give the same bits. A NaN that is rounded becomes quiet and keeps its sign and the
/// payload that fits, as with float16.
// SAFETY of every block: the function has the conditions of the one that it calls.
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
impl Float for bf16 {
    const DIGITS: u32 = Self::MANTISSA_DIGITS;

    #[inline]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline]
    fn from_f32(x: f32) -> Self {
        Self::from_f32(x)
    }

    in_registers!(S, S::from_high_halves, to_bf16::<S>);

    #[inline(always)]
    unsafe fn round<S: Simd>(x: S::F32) -> S::F32 {
        unsafe { S::and_bits(nearest_bf16::<S>(x), S::splat_bits(0xffff_0000)) }
    }
}

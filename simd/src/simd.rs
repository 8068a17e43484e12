//! What an instruction set can do with a register of float32, and functions compiled by themselves with an instruction
//! set enabled, so that they can be chosen by pointer.

use crate::e4m3::e4m3_to_f32;
use crate::prefetch::prefetch_l1;

/// Lanes of the widest register.
pub const MOST_LANES: usize = 16;

/// A register of the first `n` lanes, each an expression of its number; the other lanes are `rest`.
macro_rules! lanes {
    ($n:expr, $rest:expr, |$i:ident| $lane:expr, $read:ident) => {{
        let mut lanes = [$rest; MOST_LANES];
        for ($i, lane) in lanes.iter_mut().enumerate().take(Self::LANES) {
            // Of a loop of `n` steps the compiler makes a call of `memcpy`, which takes longer.
            if $i < $n {
                *lane = $lane;
            }
        }
        Self::$read(lanes.as_ptr())
    }};
}

/// Functions of an instruction set that are one instruction each.
#[cfg(target_arch = "x86_64")]
macro_rules! instructions {
    ($($name:ident($($argument:ident: $of:ty),*) -> $result:ty = $instruction:expr;)*) => { $(
        #[inline(always)]
        unsafe fn $name($($argument: $of),*) -> $result {
            $instruction($($argument),*)
        }
    )* };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use instructions;

/// A function over the registers of an instruction set S.
pub trait Function<S> {
    /// Its arguments.
    type Arguments<'a>;

    /// Its result.
    type Output;

    /// Runs it.
    ///
    /// # Safety
    /// The instruction set is enabled; else the conditions of the arguments.
    unsafe fn run(arguments: &Self::Arguments<'_>) -> Self::Output;
}

/// A function compiled for an instruction set. To call it, this must be supported.
pub type Outlined<S, F> = for<'a> unsafe fn(&<F as Function<S>>::Arguments<'a>) -> <F as Function<S>>::Output;

/// An instruction set with registers of [`LANES`](Self::LANES) float32.
///
/// # Safety
/// Unsafe functions may be called only where the instruction set is enabled. Pointers need no alignment; they are valid
/// for a register of elements, or for as many as the function's description says. Non-temporal (streaming) stores go to
/// addresses that are multiples of the bytes that they write.
#[expect(clippy::missing_safety_doc, reason = "one condition for all, above")]
pub trait Simd: Sized {
    /// Float32 values in a register: 8 or 16.
    const LANES: usize;

    /// Whether the instruction set has non-temporal stores; else functions that stream write plain stores.
    const STREAMS: bool = false;

    /// A register of float32.
    type F32: Copy;
    /// A register of as many elements of 16 bits.
    type U16: Copy;

    /// An outlined `#[target_feature]` function.
    fn outlined<F: Function<Self>>() -> Outlined<Self, F>;

    /// Orders non-temporal stores before whatever the thread writes next.
    fn fence() {}

    /// Prefetches the line at any address, readable or not, into the level of the cache that serves best.
    #[inline(always)]
    fn prefetch(line: *const u8) {
        prefetch_l1(line);
    }

    /// `x` in every lane.
    unsafe fn splat(x: f32) -> Self::F32;
    /// These bits in every lane.
    #[inline(always)]
    unsafe fn splat_bits(bits: u32) -> Self::F32 {
        // SAFETY: `splat` has the same condition.
        unsafe { Self::splat(f32::from_bits(bits)) }
    }
    /// Reads a register of float32.
    unsafe fn read_f32(from: *const f32) -> Self::F32;
    /// Writes a register of float32.
    unsafe fn write_f32(to: *mut f32, x: Self::F32);
    /// Writes a register of float32 by a non-temporal store.
    #[inline(always)]
    unsafe fn stream_f32(to: *mut f32, x: Self::F32) {
        // SAFETY: the conditions of `write_f32` are among this function's.
        unsafe { Self::write_f32(to, x) }
    }
    /// Reads a register of elements of 16 bits.
    unsafe fn read_u16(from: *const u16) -> Self::U16;
    /// Writes a register of elements of 16 bits.
    unsafe fn write_u16(to: *mut u16, x: Self::U16);
    /// Writes a register of elements of 16 bits by a non-temporal store.
    #[inline(always)]
    unsafe fn stream_u16(to: *mut u16, x: Self::U16) {
        // SAFETY: the conditions of `write_u16` are among this function's.
        unsafe { Self::write_u16(to, x) }
    }
    /// Writes two registers of elements of 16 bits, one after the other, by non-temporal stores, to an address that is
    /// a multiple of the bytes of both.
    #[inline(always)]
    unsafe fn stream_two_u16(to: *mut u16, [a, b]: [Self::U16; 2]) {
        // SAFETY: the conditions of `stream_u16`, for both registers.
        unsafe {
            Self::stream_u16(to, a);
            Self::stream_u16(to.add(Self::LANES), b);
        }
    }
    /// The values of float16.
    unsafe fn from_f16(x: Self::U16) -> Self::F32;
    /// Each lane as float16, rounded to nearest, ties to even.
    unsafe fn to_f16(x: Self::F32) -> Self::U16;
    /// Lanes with these high halves; the low ones are 0.
    unsafe fn from_high_halves(x: Self::U16) -> Self::F32;
    /// The high half of each lane's bits.
    unsafe fn high_halves(x: Self::F32) -> Self::U16;

    /// Reads a register of float8e4m3fn, exactly; a NaN is quiet and has its sign.
    #[inline(always)]
    unsafe fn read_e4m3(from: *const u8) -> Self::F32 {
        // SAFETY: a register of elements can be read.
        unsafe { lanes!(Self::LANES, 0.0, |i| e4m3_to_f32(from.add(i).read()), read_f32) }
    }

    /// Reads a register of int8.
    #[inline(always)]
    unsafe fn read_i8(from: *const u8) -> Self::F32 {
        // SAFETY: a register of elements can be read.
        unsafe { lanes!(Self::LANES, 0.0, |i| f32::from(from.add(i).cast::<i8>().read()), read_f32) }
    }
    /// Reads a register of int4, two a byte.
    #[inline(always)]
    unsafe fn read_i4(from: *const u8) -> Self::F32 {
        // SAFETY: a register of elements can be read.
        unsafe {
            lanes!(Self::LANES, 0.0, |i| f32::from((from.add(i / 2).read() << (4 - i % 2 * 4)) as i8 >> 4), read_f32)
        }
    }
    /// The `i`-th int8 of four in each lane's bits.
    unsafe fn i8_of_four(lanes: Self::F32, i: usize) -> Self::F32;
    /// The `i`-th int4 of eight in each lane's bits.
    unsafe fn i4_of_eight(lanes: Self::F32, i: usize) -> Self::F32;

    /// `a + b`
    unsafe fn add(a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a - b`
    unsafe fn sub(a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b`
    unsafe fn mul(a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a / b`
    unsafe fn div(a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b + c`, rounded once where the instruction set can.
    unsafe fn mul_add(a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// The larger of both; `b` where one is NaN.
    unsafe fn max(a: Self::F32, b: Self::F32) -> Self::F32;
    /// `then` where `a == b`, else `otherwise`.
    unsafe fn if_equal(a: Self::F32, b: Self::F32, then: Self::F32, otherwise: Self::F32) -> Self::F32;

    /// Each lane has the other one's number of the two whose numbers differ by `DISTANCE`, a power of two.
    unsafe fn swap<const DISTANCE: usize>(x: Self::F32) -> Self::F32;

    /// The sum of the lanes' bits as integers, modulo 2^32.
    unsafe fn add_bits(a: Self::F32, b: Self::F32) -> Self::F32;
    /// The bits that both have.
    unsafe fn and_bits(a: Self::F32, b: Self::F32) -> Self::F32;
    /// The bits that one has or the other.
    unsafe fn or_bits(a: Self::F32, b: Self::F32) -> Self::F32;
    /// The lanes' bits, moved right; zeros follow.
    unsafe fn shift_right<const BITS: i32>(x: Self::F32) -> Self::F32;

    /// Reads the first `n <= LANES` float32; the other lanes are 0.
    #[inline(always)]
    unsafe fn read_some_f32(from: *const f32, n: usize) -> Self::F32 {
        // SAFETY: n elements can be read, LANES or fewer.
        unsafe {
            if n == Self::LANES {
                return Self::read_f32(from);
            }
            lanes!(n, 0.0, |i| from.add(i).read(), read_f32)
        }
    }

    /// Reads the first `n <= LANES` elements of 16 bits; the others are 0.
    #[inline(always)]
    unsafe fn read_some_u16(from: *const u16, n: usize) -> Self::U16 {
        // SAFETY: n elements can be read, LANES or fewer.
        unsafe {
            if n == Self::LANES {
                return Self::read_u16(from);
            }
            lanes!(n, 0, |i| from.add(i).read(), read_u16)
        }
    }
}

//! What an instruction set can do with a register.

use half::f16;

/// Lanes of the widest register.
pub(crate) const MOST_LANES: usize = 16;

/// Elements of 16 bits that are transposed at once.
pub(crate) const HALVES: usize = 8;

/// An instruction set with registers of [`LANES`](Self::LANES) float32.
///
/// # Safety
/// Every function may be called only where the instruction set is enabled. Pointers need no alignment; they are valid
/// for a register of elements.
pub(crate) trait Simd: Sized {
    /// Float32 values in a register: a power of two, at most [`MOST_LANES`].
    const LANES: usize;

    /// Registers that sums can be kept in while others are multiplied: 8 or 16.
    const ACCUMULATORS: usize;

    /// Whether an instruction makes float32 of a register of float16; else that takes longer than all else.
    const CONVERTS_F16: bool;

    /// Elements of 16 bits in a register.
    const HALF_ROWS: usize = 2 * Self::LANES;

    /// A register of float32.
    type F32: Copy;

    /// As many registers as each has lanes.
    type Square: AsRef<[Self::F32]>;

    /// `x` in every lane.
    unsafe fn splat(x: f32) -> Self::F32;
    /// Reads a register of float32.
    unsafe fn read_f32(from: *const f32) -> Self::F32;
    /// Writes a register of float32.
    unsafe fn write_f32(to: *mut f32, x: Self::F32);
    /// Reads a register of float16.
    unsafe fn read_f16(from: *const f16) -> Self::F32;
    /// Writes a register as float16, rounded to nearest, ties to even.
    unsafe fn write_f16(to: *mut f16, x: Self::F32);

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
    /// The larger of both; `b` where `a` is NaN.
    unsafe fn max(a: Self::F32, b: Self::F32) -> Self::F32;
    /// `then` where `a == b`, else `otherwise`.
    unsafe fn if_equal(a: Self::F32, b: Self::F32, then: Self::F32, otherwise: Self::F32) -> Self::F32;
    /// `then` where `a < b`, else `otherwise`.
    unsafe fn if_less(a: Self::F32, b: Self::F32, then: Self::F32, otherwise: Self::F32) -> Self::F32;
    /// The largest lane, where none is NaN.
    unsafe fn max_lane(x: Self::F32) -> f32;
    /// How many lanes of both are equal.
    unsafe fn count_equal(a: Self::F32, b: Self::F32) -> usize;
    /// 2 to the power of n, -126 <= n <= 127, where `x` is `n + 1.5 * 2^23`; anything where it is not.
    unsafe fn power_of_two(x: Self::F32) -> Self::F32;
    /// The first registers, read in an unrolled loop.
    unsafe fn square(registers: &impl Registers<Self>) -> Self::Square;
    /// Lane i of register j becomes lane j of register i.
    unsafe fn transpose(rows: Self::Square) -> Self::Square;
    /// Of as many rows as a register has lanes, each so many bytes behind `from`, four elements of 32 bits: register i
    /// has element i of each row.
    unsafe fn read_columns(from: *const u8, offsets: *const usize) -> [Self::F32; 4];
    /// Of [`HALF_ROWS`](Self::HALF_ROWS) rows, each so many bytes behind `from`, [`HALVES`] elements of 16 bits: writes
    /// element i of each row `i * step` elements behind `to`.
    unsafe fn transpose_halves(from: *const u8, offsets: *const usize, to: *mut f16, step: usize);

    /// Sums the lanes of each register by halves: lanes i and `i + LANES / 2` for all i, and so on until one is left.
    /// Writes the sums of four registers after the other to four places.
    unsafe fn sum_lanes(registers: [Self::F32; 16], to: [*mut f32; 4]);

    /// The first `n < LANES` elements; the other lanes are 0.
    #[inline(always)]
    unsafe fn read_some_f32(from: *const f32, n: usize) -> Self::F32 {
        let mut some = [0.0; MOST_LANES];
        // SAFETY: n elements can be read; the array has more, and a register at least.
        unsafe {
            some.as_mut_ptr().copy_from_nonoverlapping(from, n);
            Self::read_f32(some.as_ptr())
        }
    }

    /// The first `n < LANES` elements; the other lanes are 0.
    #[inline(always)]
    unsafe fn read_some_f16(from: *const f16, n: usize) -> Self::F32 {
        let mut some = [f16::ZERO; MOST_LANES];
        // SAFETY: as in `read_some_f32`.
        unsafe {
            some.as_mut_ptr().copy_from_nonoverlapping(from, n);
            Self::read_f16(some.as_ptr())
        }
    }
}

/// Registers by their number. (No closure: what a closure does need not be inlined.)
///
/// # Safety
/// As for [`Simd`].
pub(crate) trait Registers<S: Simd> {
    /// Register `i`, less than [`LANES`](Simd::LANES).
    unsafe fn read(&self, i: usize) -> S::F32;
}

//! What an instruction set can do with tiles of registers, and across the lanes of one.

use kvcache_simd::Simd;

/// Elements of 16 bits that are transposed at once.
pub(crate) const HALVES: usize = 8;

/// An instruction set that computes attention.
///
/// # Safety
/// The conditions of [`Simd`] hold.
pub(crate) trait Tiles: Simd {
    /// Registers that sums can be kept in while others are multiplied: 8 or 16.
    const ACCUMULATORS: usize;

    /// Whether an instruction makes float32 of a register of float16; else that takes longer than all else.
    const CONVERTS_F16: bool;

    /// Whether a number in memory can be an operand in all lanes.
    const BROADCASTS: bool = false;

    /// Elements of 16 bits in a register.
    const HALF_ROWS: usize = 2 * Self::LANES;

    /// A square of registers: as many as each has lanes.
    type Square: AsRef<[Self::F32]>;

    /// `then` where `a < b`, else `otherwise`.
    unsafe fn if_less(a: Self::F32, b: Self::F32, then: Self::F32, otherwise: Self::F32) -> Self::F32;
    /// The largest lane, where none is NaN.
    unsafe fn max_lane(x: Self::F32) -> f32;
    /// The number of lanes in which both are equal.
    unsafe fn count_equal(a: Self::F32, b: Self::F32) -> usize;
    /// 2 to the power of n, -126 <= n <= 127, where `x` is `n + 1.5 * 2^23`; anything where it is not.
    unsafe fn power_of_two(x: Self::F32) -> Self::F32;
    /// The first registers, read in an unrolled loop.
    unsafe fn square(registers: &impl Registers<Self>) -> Self::Square;
    /// Lane i of register j becomes lane j of register i.
    unsafe fn transpose(rows: Self::Square) -> Self::Square;
    /// Reads four elements of 32 bits of as many rows as a register has lanes, each that many bytes after `from`:
    /// register i has element i of each row.
    unsafe fn read_columns(from: *const u8, offsets: *const usize) -> [Self::F32; 4];
    /// Transposes [`HALVES`] elements of 16 bits of [`HALF_ROWS`](Self::HALF_ROWS) rows, each that many bytes after
    /// `from`: writes element i of each row `i * step` elements after `to`.
    unsafe fn transpose_halves(from: *const u8, offsets: *const usize, to: *mut u16, step: usize);

    /// Sums the lanes of each register by halves: lanes i and `i + LANES / 2` for all i, and so on until one is left.
    /// Writes the sums of four registers after the other to four places.
    unsafe fn sum_lanes(registers: [Self::F32; 16], to: [*mut f32; 4]);
}

/// Registers by their number. (No closure: what a closure does need not be inlined.)
///
/// # Safety
/// The conditions of [`Simd`] hold.
pub(crate) trait Registers<S: Simd> {
    /// Register `i`, less than [`LANES`](Simd::LANES).
    unsafe fn read(&self, i: usize) -> S::F32;
}

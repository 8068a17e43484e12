//! Plain Rust, for every machine: registers of eight float32 that the compiler makes of what there is.

use half::f16;

use super::generic::outline::{Function, Outline, Outlined};
use super::generic::simd::{HALVES, Registers, Simd};

/// Plain Rust.
pub(crate) struct Portable;

const LANES: usize = 8;

impl Outline for Portable {
    fn outlined<F: Function>() -> Outlined<F> {
        F::run::<Self>
    }
}

/// An expression of each lane's number. (A macro, since what a closure does need not be inlined.)
macro_rules! each {
    (|$i:ident| $lane:expr) => {{
        let mut lanes = [0.0; LANES];
        let mut $i = 0;
        while $i < LANES {
            lanes[$i] = $lane;
            $i += 1;
        }
        lanes
    }};
}

// SAFETY of every block: pointers are valid for a register (see Simd).
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
impl Simd for Portable {
    const LANES: usize = LANES;
    const ACCUMULATORS: usize = 8;
    const CONVERTS_F16: bool = false;
    type F32 = [f32; LANES];
    type Square = [[f32; LANES]; LANES];

    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; LANES] {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn read_f32(from: *const f32) -> [f32; LANES] {
        unsafe { from.cast::<[f32; LANES]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn write_f32(to: *mut f32, x: [f32; LANES]) {
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(x) }
    }

    #[inline(always)]
    unsafe fn read_f16(from: *const f16) -> [f32; LANES] {
        let halves = unsafe { from.cast::<[f16; LANES]>().read_unaligned() };
        each!(|i| halves[i].to_f32_const())
    }

    #[inline(always)]
    unsafe fn write_f16(to: *mut f16, x: [f32; LANES]) {
        let mut halves = [f16::ZERO; LANES];
        for (i, half) in halves.iter_mut().enumerate() {
            *half = f16::from_f32_const(x[i]);
        }
        unsafe { to.cast::<[f16; LANES]>().write_unaligned(halves) }
    }

    #[inline(always)]
    unsafe fn add(a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        each!(|i| a[i] + b[i])
    }

    #[inline(always)]
    unsafe fn sub(a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        each!(|i| a[i] - b[i])
    }

    #[inline(always)]
    unsafe fn mul(a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        each!(|i| a[i] * b[i])
    }

    #[inline(always)]
    unsafe fn div(a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        each!(|i| a[i] / b[i])
    }

    /// Rounded twice, unless all machines that this is compiled for have the instruction: without it one rounding takes
    /// longer than all else.
    #[inline(always)]
    unsafe fn mul_add(a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
        if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
            each!(|i| a[i].mul_add(b[i], c[i]))
        } else {
            each!(|i| a[i] * b[i] + c[i])
        }
    }

    #[inline(always)]
    unsafe fn max(a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        each!(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    unsafe fn if_equal(a: [f32; LANES], b: [f32; LANES], then: [f32; LANES], otherwise: [f32; LANES]) -> [f32; LANES] {
        each!(|i| if a[i] == b[i] { then[i] } else { otherwise[i] })
    }

    #[inline(always)]
    unsafe fn if_less(a: [f32; LANES], b: [f32; LANES], then: [f32; LANES], otherwise: [f32; LANES]) -> [f32; LANES] {
        each!(|i| if a[i] < b[i] { then[i] } else { otherwise[i] })
    }

    #[inline(always)]
    unsafe fn max_lane(x: [f32; LANES]) -> f32 {
        let mut max = f32::NEG_INFINITY;
        for lane in x {
            max = max.max(lane);
        }
        max
    }

    #[inline(always)]
    unsafe fn count_equal(a: [f32; LANES], b: [f32; LANES]) -> usize {
        let mut count = 0;
        for (i, &lane) in a.iter().enumerate() {
            count += usize::from(lane == b[i]);
        }
        count
    }

    #[inline(always)]
    unsafe fn power_of_two(x: [f32; LANES]) -> [f32; LANES] {
        each!(|i| f32::from_bits((x[i].to_bits() << 23).wrapping_add(127 << 23)))
    }

    #[inline(always)]
    unsafe fn square(registers: &impl Registers<Self>) -> [[f32; LANES]; LANES] {
        let mut rows = [[0.0; LANES]; LANES];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = unsafe { registers.read(i) };
        }
        rows
    }

    #[inline(always)]
    unsafe fn transpose(rows: [[f32; LANES]; LANES]) -> [[f32; LANES]; LANES] {
        let mut columns = [[0.0; LANES]; LANES];
        for (i, column) in columns.iter_mut().enumerate() {
            *column = each!(|j| rows[j][i]);
        }
        columns
    }

    #[inline(always)]
    unsafe fn read_columns(from: *const u8, offsets: *const usize) -> [[f32; LANES]; 4] {
        let mut columns = [[0.0; LANES]; 4];
        for r in 0..LANES {
            let row = unsafe { from.add(*offsets.add(r)).cast::<[f32; 4]>().read_unaligned() };
            for (j, column) in columns.iter_mut().enumerate() {
                column[r] = row[j];
            }
        }
        columns
    }

    #[inline(always)]
    unsafe fn transpose_halves(from: *const u8, offsets: *const usize, to: *mut f16, step: usize) {
        unsafe {
            for r in 0..Self::HALF_ROWS {
                let row = from.add(*offsets.add(r)).cast::<[f16; HALVES]>().read_unaligned();
                for (i, x) in row.into_iter().enumerate() {
                    to.add(i * step + r).write(x);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn sum_lanes(registers: [[f32; LANES]; 16], to: [*mut f32; 4]) {
        let mut i = 0;
        while i < registers.len() {
            let mut lanes = registers[i];
            let mut half = LANES / 2;
            while half > 0 {
                let mut lane = 0;
                while lane < half {
                    lanes[lane] += lanes[half + lane];
                    lane += 1;
                }
                half /= 2;
            }
            unsafe { to[i / 4].add(i % 4).write(lanes[0]) }
            i += 1;
        }
    }
}

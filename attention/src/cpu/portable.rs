//! Plain Rust: tiles of registers of eight float32.

use kvcache_simd::{Portable, Simd};

use super::generic::tiles::{HALVES, Registers, Tiles};

/// Float32 values in a register.
const LANES: usize = Portable::LANES;

// SAFETY of every block: pointers are valid for a register (see Simd).
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
impl Tiles for Portable {
    const ACCUMULATORS: usize = 8;
    const CONVERTS_F16: bool = false;
    type Square = [[f32; LANES]; LANES];

    #[inline(always)]
    unsafe fn if_less(a: [f32; LANES], b: [f32; LANES], then: [f32; LANES], otherwise: [f32; LANES]) -> [f32; LANES] {
        let mut lanes = otherwise;
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane = if a[i] < b[i] { then[i] } else { *lane };
        }
        lanes
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
        let mut powers = x;
        for power in &mut powers {
            *power = f32::from_bits((power.to_bits() << 23).wrapping_add(127 << 23));
        }
        powers
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
            for (j, lane) in column.iter_mut().enumerate() {
                *lane = rows[j][i];
            }
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
    unsafe fn transpose_halves(from: *const u8, offsets: *const usize, to: *mut u16, step: usize) {
        unsafe {
            for r in 0..Self::HALF_ROWS {
                let row = from.add(*offsets.add(r)).cast::<[u16; HALVES]>().read_unaligned();
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

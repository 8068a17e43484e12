//! Plain Rust, for every machine: registers of eight float32 that the compiler makes of what there is.

use half::{bf16, f16};

use crate::outline::{Function, Outlined};
use crate::simd::Simd;

/// Plain Rust.
#[derive(Debug, Clone, Copy)]
pub struct Portable;

const LANES: usize = 8;

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
    type F32 = [f32; LANES];

    fn outlined<F: Function<Self>>() -> Outlined<Self, F> {
        F::run
    }

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
    unsafe fn round_f16(x: [f32; LANES]) -> [f32; LANES] {
        each!(|i| f16::from_f32_const(x[i]).to_f32_const())
    }

    #[inline(always)]
    unsafe fn read_bf16(from: *const bf16) -> [f32; LANES] {
        let high = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        each!(|i| f32::from_bits((high[i] as u32) << 16))
    }

    #[inline(always)]
    unsafe fn write_bf16(to: *mut bf16, x: [f32; LANES]) {
        let mut high = [bf16::ZERO; LANES];
        for (i, high) in high.iter_mut().enumerate() {
            *high = bf16::from_f32_const(x[i]);
        }
        unsafe { to.cast::<[bf16; LANES]>().write_unaligned(high) }
    }

    #[inline(always)]
    unsafe fn round_bf16(x: [f32; LANES]) -> [f32; LANES] {
        each!(|i| bf16::from_f32_const(x[i]).to_f32_const())
    }

    #[inline(always)]
    unsafe fn i8_of_four(lanes: [f32; LANES], i: usize) -> [f32; LANES] {
        each!(|lane| ((u32::from_le(lanes[lane].to_bits()) << (24 - 8 * i)) as i32 >> 24) as f32)
    }

    #[inline(always)]
    unsafe fn i4_of_eight(lanes: [f32; LANES], i: usize) -> [f32; LANES] {
        each!(|lane| ((u32::from_le(lanes[lane].to_bits()) << (28 - 4 * i)) as i32 >> 28) as f32)
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
}

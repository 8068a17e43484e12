//! Plain Rust, for every machine: registers of eight float32 that the compiler makes of what there is.

use half::f16;

use crate::simd::{Function, Outlined, Simd};

/// Plain Rust.
#[derive(Debug, Clone, Copy)]
pub struct Portable;

const LANES: usize = 8;

/// An expression of each lane's number. (A macro, since what a closure does need not be inlined.)
macro_rules! each {
    (|$i:ident| $lane:expr) => {
        each!(0.0, |$i| $lane)
    };
    ($zero:expr, |$i:ident| $lane:expr) => {{
        let mut lanes = [$zero; LANES];
        let mut $i = 0;
        while $i < LANES {
            lanes[$i] = $lane;
            $i += 1;
        }
        lanes
    }};
}

/// Functions of registers that are an expression of one lane of each.
macro_rules! lane_by_lane {
    ($($name:ident($($x:ident),*) = $lane:expr;)*) => { $(
        #[inline(always)]
        unsafe fn $name($($x: [f32; LANES]),*) -> [f32; LANES] {
            each!(|i| {
                $(let $x = $x[i];)*
                $lane
            })
        }
    )* };
}

// SAFETY of every block: pointers are valid for a register (see Simd).
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
impl Simd for Portable {
    const LANES: usize = LANES;
    type F32 = [f32; LANES];
    type U16 = [u16; LANES];

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
    unsafe fn read_u16(from: *const u16) -> [u16; LANES] {
        unsafe { from.cast::<[u16; LANES]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn write_u16(to: *mut u16, x: [u16; LANES]) {
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(x) }
    }

    #[inline(always)]
    unsafe fn from_f16(x: [u16; LANES]) -> [f32; LANES] {
        each!(|i| f16::from_bits(x[i]).to_f32_const())
    }

    #[inline(always)]
    unsafe fn to_f16(x: [f32; LANES]) -> [u16; LANES] {
        each!(0, |i| f16::from_f32_const(x[i]).to_bits())
    }

    #[inline(always)]
    unsafe fn from_high_halves(x: [u16; LANES]) -> [f32; LANES] {
        each!(|i| f32::from_bits((x[i] as u32) << 16))
    }

    #[inline(always)]
    unsafe fn high_halves(x: [f32; LANES]) -> [u16; LANES] {
        each!(0, |i| (x[i].to_bits() >> 16) as u16)
    }

    #[inline(always)]
    unsafe fn swap<const DISTANCE: usize>(x: [f32; LANES]) -> [f32; LANES] {
        each!(|lane| x[lane ^ DISTANCE])
    }

    #[inline(always)]
    unsafe fn i8_of_four(lanes: [f32; LANES], i: usize) -> [f32; LANES] {
        each!(|lane| ((u32::from_le(lanes[lane].to_bits()) << (24 - 8 * i)) as i32 >> 24) as f32)
    }

    #[inline(always)]
    unsafe fn i4_of_eight(lanes: [f32; LANES], i: usize) -> [f32; LANES] {
        each!(|lane| ((u32::from_le(lanes[lane].to_bits()) << (28 - 4 * i)) as i32 >> 28) as f32)
    }

    lane_by_lane! {
        add(a, b) = a + b;
        sub(a, b) = a - b;
        mul(a, b) = a * b;
        div(a, b) = a / b;
        // Rounded twice, unless all machines that this is compiled for have the instruction: without it one rounding
        // takes longer than all else.
        mul_add(a, b, c) = if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
            a.mul_add(b, c)
        } else {
            a * b + c
        };
        max(a, b) = if a > b { a } else { b };
        if_equal(a, b, then, otherwise) = if a == b { then } else { otherwise };
        add_bits(a, b) = f32::from_bits(a.to_bits().wrapping_add(b.to_bits()));
        and_bits(a, b) = f32::from_bits(a.to_bits() & b.to_bits());
        or_bits(a, b) = f32::from_bits(a.to_bits() | b.to_bits());
    }

    #[inline(always)]
    unsafe fn shift_right<const BITS: i32>(x: [f32; LANES]) -> [f32; LANES] {
        each!(|i| f32::from_bits(x[i].to_bits() >> BITS))
    }
}

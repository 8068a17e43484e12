//! float8e4m3fn, one by one: a sign, 4 bits of exponent with a bias of 7, 3 bits of mantissa. There are no infinities,
//! and NaN is 0x7f and 0xff.

/// The largest number.
pub const E4M3_MAX: f32 = 448.0;

/// Biased exponent of float32 of the smallest normal number, 2^-6, in its place.
pub const E4M3_LEAST_NORMAL: u32 = 121 << 23;

/// Adding the power of two that is 20 binades up rounds a float32 to float8e4m3fn's mantissa: 20, as exponent bits.
pub const E4M3_ROUNDER: u32 = 20 << 23;

/// The number of each code.
static NUMBERS: [f32; 256] = {
    let mut numbers = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let magnitude = code & 0x7f;
        let number = match magnitude {
            0x7f => f32::NAN,
            0..8 => magnitude as f32 / 512.0,
            _ => f32::from_bits((magnitude << 20) + (120 << 23)),
        };
        numbers[code as usize] = if code < 128 { number } else { -number };
        code += 1;
    }
    numbers
};

/// The number of a code, exactly.
#[inline]
pub fn e4m3_to_f32(code: u8) -> f32 {
    NUMBERS[usize::from(code)]
}

/// The code of a number: to nearest, ties to even, with the largest number for what is beyond it; 0x7f for NaN.
#[inline]
pub fn e4m3_from_f32(x: f32) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let magnitude = x.abs().min(E4M3_MAX);
    let exponent = (magnitude.to_bits() & 0x7f80_0000).max(E4M3_LEAST_NORMAL);
    // The sum has no bits below a code's last place: its own bits count from the rounder's in these places.
    let rounder = exponent + E4M3_ROUNDER;
    let places = (magnitude + f32::from_bits(rounder)).to_bits() - rounder;
    ((x.to_bits() >> 24) & 0x80 | (places + ((exponent - E4M3_LEAST_NORMAL) >> 20))) as u8
}

//! Gated rows: a row of x (2K) is K gates, then the K elements that they gate.
//!
//! ```text
//! t = g for SiLU, or g * fma(g * g, C[1], C[0]) for GELU, with g the gate
//! e = exp(-|t|)
//!     n = -|t| * log2 e, rounded to the nearest integer; r = fma(-ln 2's rest, n, fma(-ln 2's head, n, -|t|))
//!     p = ((((P0 * r + P1) * r + P2) * r + P3) * r + P4), by fma; e = fma(fma(p * r, r, r), 2^n, 2^n), or 0 if -|t| is
//!     less than -87.33654
//! x' = (g * e if t < 0, else g) / (1 + e) * the gated element
//! ```

/// What the first half of a row of x becomes before the second half is multiplied by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gate {
    /// Rows are not gated: they have K elements.
    None,
    /// `g / (1 + e^-g)`
    Silu,
    /// `g / (1 + e^-t)` with `t = 2 sqrt(2 / pi) (g + 0.044715 g^3)`: GELU, approximated by the hyperbolic tangent.
    Gelu,
}

impl Gate {
    /// All, in the order of the operator's attribute.
    pub const ALL: [Self; 3] = [Self::None, Self::Silu, Self::Gelu];

    /// Elements of x for each k.
    pub(crate) const fn parts(self) -> usize {
        if matches!(self, Self::None) { 1 } else { 2 }
    }
}

/// 2 sqrt(2 / pi), and its product with 0.044715.
const GELU: [f32; 2] = [1.595_769_2, 0.071_354_814];

/// Below it, the exponential function is 0.
const UNDERFLOW: f32 = -87.336_54;

/// 1.5 * 2^23: a sum with it has no bits after the point.
const INTEGER: f32 = 12_582_912.0;

/// ln 2 in two parts; products of the first with integers below 2^15 are exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// `(e^r - 1 - r) / r^2` for |r| <= ln 2 / 2 (minimax), the highest power first.
const POLYNOMIAL: [f32; 5] = [0.001_392_625, 0.008_363_233, 0.041_666_552, 0.166_665_76, 0.5];

/// The element that a gate, which is not [`Gate::None`], makes of g and the gated one. Every operation is rounded to
/// float32, so it has the same bits wherever it is compiled.
#[inline(always)]
pub(crate) fn gated(gate: Gate, g: f32, gated: f32) -> f32 {
    let t = if gate == Gate::Silu { g } else { g * (g * g).mul_add(GELU[1], GELU[0]) };
    let x = -t.abs();
    let integer = x.mul_add(std::f32::consts::LOG2_E, INTEGER);
    let n = integer - INTEGER;
    let r = n.mul_add(-LN_2[1], n.mul_add(-LN_2[0], x));
    let p = POLYNOMIAL[1..].iter().fold(POLYNOMIAL[0], |p, &c| p.mul_add(r, c));
    let power = f32::from_bits(integer.to_bits().wrapping_sub(INTEGER.to_bits()).wrapping_add(127) << 23);
    let e = if x < UNDERFLOW { 0.0 } else { (p * r).mul_add(r, r).mul_add(power, power) };
    (if t < 0.0 { g * e } else { g }) / (1.0 + e) * gated
}

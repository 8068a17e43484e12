//! PV products over panels of values: sums of weighted values for many queries at once.

use kvcache_simd::Function;

use super::rows::{BLOCK, Next};
use super::softmax::HIDDEN;
use super::tiles::Tiles;

/// Registers of a row of values that are summed together.
const COLUMNS: usize = 2;

/// Rows of values, and the panels to write: for some registers of a row those of all rows, one after the other.
pub(crate) struct PackRows<'a> {
    /// Rows of `width` float32, whole registers, by how many bytes behind `from` they begin.
    pub(crate) from: *const u8,
    pub(crate) offsets: &'a [usize],
    pub(crate) width: usize,
    /// What is read soon.
    pub(crate) next: Next<'a>,
    /// As many elements as there are in all rows.
    pub(crate) panels: *mut f32,
}

/// Packs values into panels.
pub(crate) struct PackValues;

impl<S: Tiles> Function<S> for PackValues {
    type Arguments<'a> = PackRows<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run(&PackRows { from, offsets, width, next, panels }: &PackRows<'_>) {
        let step = COLUMNS * S::LANES;
        let (mut cursor, lines) = next.prefetches(offsets.len(), offsets.len());
        for (t, &offset) in offsets.iter().enumerate() {
            cursor.advance(lines);
            let row = from.wrapping_add(offset).cast::<f32>();
            for first in (0..width).step_by(step) {
                let len = step.min(width - first);
                for at in (0..len).step_by(S::LANES) {
                    // SAFETY: `first + at` is a register of the row, and one of the panel that begins with `first`.
                    unsafe {
                        let to = panels.add(first * offsets.len() + t * len + at);
                        S::write_f32(to, S::read_f32(row.add(first + at)));
                    }
                }
            }
        }
    }
}

/// Weights of some queries, panels of values, and the sums that they are added to.
pub(crate) struct WeightedPanels<'a> {
    /// For each query a row of weights, one for each key; one row each [`BLOCK`] elements.
    pub(crate) weights: *const f32,
    /// How many keys, the first ones, each query sees.
    pub(crate) seen: &'a [usize],
    /// Whether there are other keys that a query does not see, whose weight is [`HIDDEN`].
    pub(crate) hidden: bool,
    /// What [`PackValues`] makes of so many keys.
    pub(crate) panels: *const f32,
    pub(crate) keys: usize,
    /// Elements of a row of values, whole registers.
    pub(crate) width: usize,
    /// For each query what its sums are multiplied with before, and a row of `width` sums.
    pub(crate) rescale: *const f32,
    pub(crate) sums: *mut f32,
}

/// Adds weighted values to rescaled sums: fused multiply-adds from the first key to the last.
pub(crate) struct PvPanels;

impl<S: Tiles> Function<S> for PvPanels {
    type Arguments<'a> = WeightedPanels<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run(values: &WeightedPanels<'_>) {
        let step = COLUMNS * S::LANES;
        for first in (0..values.width).step_by(step) {
            // SAFETY: these registers are there.
            unsafe {
                match (values.width - first) / S::LANES {
                    1 => panel::<S, 1>(values, first),
                    _ => panel::<S, COLUMNS>(values, first),
                }
            }
        }
    }
}

/// The sums of all queries over one panel.
#[inline(always)]
unsafe fn panel<S: Tiles, const C: usize>(values: &WeightedPanels<'_>, first: usize) {
    let (mut query, queries) = (0, values.seen.len());
    // SAFETY: the queries from `query` on are there.
    unsafe {
        while queries - query >= 12 && S::ACCUMULATORS >= 16 {
            tile::<S, 12, C>(values, first, query);
            query += 12;
        }
        while queries - query >= 4 {
            tile::<S, 4, C>(values, first, query);
            query += 4;
        }
        while queries > query {
            tile::<S, 1, C>(values, first, query);
            query += 1;
        }
    }
}

#[inline(always)]
unsafe fn tile<S: Tiles, const Q: usize, const C: usize>(values: &WeightedPanels<'_>, first: usize, query: usize) {
    let step = C * S::LANES;
    // SAFETY: Q queries from `query` on are there, and C registers from `first` on in each row of values.
    unsafe {
        let seen = &values.seen[query..][..Q];
        let (least, most) = seen.iter().fold((usize::MAX, 0), |(least, most), &n| (least.min(n), most.max(n)));
        let of_all = if values.hidden { 0 } else { least };
        let (panel, to) = (values.panels.add(first * values.keys), values.sums.add(query * values.width + first));
        let weights = values.weights.add(query * BLOCK);
        let mut sums = [[S::splat(0.0); C]; Q];
        for (i, sums) in sums.iter_mut().enumerate() {
            let rescale = S::splat(*values.rescale.add(query + i));
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = S::mul(S::read_f32(to.add(i * values.width + c * S::LANES)), rescale);
            }
        }
        for t in 0..of_all {
            let row = registers::<S, C>(panel.add(t * step));
            for (i, sums) in sums.iter_mut().enumerate() {
                let weight = S::splat(*weights.add(i * BLOCK + t));
                for (c, sum) in sums.iter_mut().enumerate() {
                    *sum = S::mul_add(weight, row[c], *sum);
                }
            }
        }
        for t in of_all..most {
            let row = registers::<S, C>(panel.add(t * step));
            for (i, sums) in sums.iter_mut().enumerate() {
                if t < seen[i] && (*weights.add(i * BLOCK + t)).to_bits() != HIDDEN.to_bits() {
                    let weight = S::splat(*weights.add(i * BLOCK + t));
                    for (c, sum) in sums.iter_mut().enumerate() {
                        *sum = S::mul_add(weight, row[c], *sum);
                    }
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for (c, &sum) in sums.iter().enumerate() {
                S::write_f32(to.add(i * values.width + c * S::LANES), sum);
            }
        }
    }
}

/// C registers.
#[inline(always)]
unsafe fn registers<S: Tiles, const C: usize>(from: *const f32) -> [S::F32; C] {
    // SAFETY: C registers can be read.
    unsafe {
        let mut registers = [S::splat(0.0); C];
        for (c, register) in registers.iter_mut().enumerate() {
            *register = S::read_f32(from.add(c * S::LANES));
        }
        registers
    }
}

//! PV products over panels of values: sums of weighted values for many queries at once.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use kvcache_simd::Function;

use super::rows::{BLOCK, Rows};
use super::softmax::MASKED;
use super::stored::Stored;
use super::tiles::Tiles;

/// Registers of a row of values that are summed together.
const COLUMNS: usize = 2;

/// Elements of a row in a panel: [`COLUMNS`] registers, or one register where several would be parts of two groups.
fn columns<S: Tiles>(group: usize) -> usize {
    if group.is_multiple_of(COLUMNS * S::LANES) { COLUMNS * S::LANES } else { S::LANES }
}

/// Rows of values, and the panels to write: a panel has the same few registers of every row, row after row.
pub(crate) struct PackRows<'a> {
    /// Rows of `width` elements, whole registers.
    pub(crate) rows: Rows<'a>,
    pub(crate) width: usize,
    /// Elements that share a scale; 0 without.
    pub(crate) group: usize,
    /// Room for the elements of all rows.
    pub(crate) panels: *mut f32,
}

/// Packs values, stored as V, into panels.
pub(crate) struct PackValues<V>(PhantomData<V>);

impl<S: Tiles, V: Stored<S>> Function<S> for PackValues<V> {
    type Arguments<'a> = PackRows<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run(&PackRows { ref rows, width, group, panels }: &PackRows<'_>) {
        let step = columns::<S>(group);
        let count = rows.offsets.len();
        let (mut cursor, lines) = rows.prefetch.in_steps(count, count);
        for (t, &offset) in rows.offsets.iter().enumerate() {
            cursor.advance(lines);
            for first in (0..width).step_by(step) {
                let len = step.min(width - first);
                for at in (0..len).step_by(S::LANES) {
                    // SAFETY: `first + at` is a register of the row, and one of the panel that begins with `first`.
                    unsafe {
                        let [register] = V::read(rows, V::row(rows, offset, 0), first + at);
                        S::write_f32(panels.add(first * count + t * len + at), register);
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
    /// The number of keys that each query sees, the first ones.
    pub(crate) seen: &'a [usize],
    /// Whether there are other keys that a query does not see, whose weight is [`MASKED`].
    pub(crate) masked: bool,
    /// What [`PackValues`] makes of that many keys.
    pub(crate) panels: *const f32,
    pub(crate) keys: usize,
    /// Elements of a row of values, whole registers.
    pub(crate) width: usize,
    /// Elements that share a scale, and for each group a scale of each key, one row each [`BLOCK`] elements, that its
    /// weights are multiplied with; 0 and none without.
    pub(crate) group: usize,
    pub(crate) scales: Option<*const f32>,
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
        let WeightedPanels { width, group, .. } = *values;
        let step = columns::<S>(group);
        for first in (0..width).step_by(step) {
            // SAFETY: these registers are there.
            unsafe {
                match step.min(width - first) / S::LANES {
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
        while queries - query >= 6 && S::ACCUMULATORS < 16 {
            tile::<S, 6, C>(values, first, query);
            query += 6;
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
        let of_all = if values.masked { 0 } else { least };
        let (panel, to) = (values.panels.add(first * values.keys), values.sums.add(query * values.width + first));
        let weights = values.weights.add(query * BLOCK);
        let mut products = MaybeUninit::<[[f32; BLOCK]; Q]>::uninit();
        let scaled = match values.scales {
            None => weights,
            Some(scales) => {
                let (scales, to) = (scales.add(first / values.group * BLOCK), products.as_mut_ptr().cast::<f32>());
                for i in 0..Q {
                    for t in (0..most).step_by(S::LANES) {
                        let product = S::mul(S::read_f32(weights.add(i * BLOCK + t)), S::read_f32(scales.add(t)));
                        S::write_f32(to.add(i * BLOCK + t), product);
                    }
                }
                to.cast_const()
            }
        };
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
                let weight = S::splat(*scaled.add(i * BLOCK + t));
                for (c, sum) in sums.iter_mut().enumerate() {
                    *sum = S::mul_add(weight, row[c], *sum);
                }
            }
        }
        for t in of_all..most {
            let row = registers::<S, C>(panel.add(t * step));
            for (i, sums) in sums.iter_mut().enumerate() {
                if t < seen[i] && (*weights.add(i * BLOCK + t)).to_bits() != MASKED.to_bits() {
                    let weight = S::splat(*scaled.add(i * BLOCK + t));
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

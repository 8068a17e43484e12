//! QK scores over panels of integer codes: inner products of queries and keys, group by group.

use std::marker::PhantomData;

use kvcache_simd::{Function, Simd};

use super::panel::PANEL;
use super::rows::{BLOCK, Cursor, Prefetch};
use super::tiles::Tiles;

/// What a lane of a panel holds.
///
/// # Safety
/// The conditions of [`Simd`] hold.
pub(crate) trait Lane<S: Simd> {
    /// Codes in a lane.
    const CODES: usize;

    /// Keys in a panel.
    const KEYS: usize;

    /// The `i`-th code of each lane.
    unsafe fn code(lanes: S::F32, i: usize) -> S::F32;
}

/// A word of codes of that many bits.
pub(crate) struct Word<const BITS: usize>;

impl<S: Simd, const BITS: usize> Lane<S> for Word<BITS> {
    const CODES: usize = 32 / BITS;
    const KEYS: usize = BLOCK;

    #[inline(always)]
    unsafe fn code(lanes: S::F32, i: usize) -> S::F32 {
        // SAFETY: the function's own conditions.
        unsafe { if BITS == 8 { S::i8_of_four(lanes, i) } else { S::i4_of_eight(lanes, i) } }
    }
}

/// A code as float32.
impl<S: Simd> Lane<S> for f32 {
    const CODES: usize = 1;
    const KEYS: usize = PANEL;

    #[inline(always)]
    unsafe fn code(lanes: S::F32, _: usize) -> S::F32 {
        lanes
    }
}

/// Queries, a panel of codes, their scales, and where the products are written.
pub(crate) struct CodeScores<'a> {
    /// `queries` rows of `head_dim` float32, one each `query_step` elements.
    pub(crate) query: *const f32,
    pub(crate) query_step: usize,
    pub(crate) queries: usize,
    pub(crate) head_dim: usize,
    /// Codes that share a scale; they divide `head_dim`.
    pub(crate) group: usize,
    /// Lanes of [`Lane::KEYS`] keys, of which the first ones are used, in whole registers, one row after the other.
    pub(crate) panel: *const f32,
    pub(crate) keys: usize,
    /// For each group a scale of each key, one row each [`BLOCK`] elements.
    pub(crate) scales: *const f32,
    /// For each query a row of as many products, one row each [`BLOCK`] elements.
    pub(crate) scores: *mut f32,
    /// What to prefetch meanwhile.
    pub(crate) prefetch: Prefetch<'a>,
}

/// Multiplies each query with each key, whose codes are in lanes L. The products of a group are added by fused
/// multiply-adds from the first element to the last; their sum times the scale is added to the earlier groups' sum by a
/// fused multiply-add.
pub(crate) struct QkCodes<L>(PhantomData<L>);

impl<S: Tiles, L: Lane<S>> Function<S> for QkCodes<L> {
    type Arguments<'a> = CodeScores<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run(products: &CodeScores<'_>) {
        let mut query = 0;
        // SAFETY: the queries from `query` on are there.
        unsafe {
            // Fewer keys at once leave room for more queries.
            while products.queries - query >= 6 && S::ACCUMULATORS >= 16 && L::KEYS < 4 * S::LANES {
                queries::<S, L, 6>(products, query);
                query += 6;
            }
            while products.queries - query >= 4 {
                queries::<S, L, 4>(products, query);
                query += 4;
            }
            if products.queries - query == 3 {
                return queries::<S, L, 3>(products, query);
            }
            if products.queries - query == 2 {
                return queries::<S, L, 2>(products, query);
            }
            if products.queries > query {
                queries::<S, L, 1>(products, query);
            }
        }
    }
}

/// Q queries with all keys, as many registers of them at once as there are accumulators for.
#[inline(always)]
unsafe fn queries<S: Tiles, L: Lane<S>, const Q: usize>(products: &CodeScores<'_>, query: usize) {
    let (mut key, end) = (0, products.keys);
    // The first queries prefetch.
    let prefetch = if query == 0 { products.prefetch } else { Prefetch::NONE };
    let at_once = if 4 * Q <= S::ACCUMULATORS && L::KEYS >= 4 * S::LANES { 4 * S::LANES } else { 2 * S::LANES };
    let steps = end.div_ceil(at_once) * products.head_dim / L::CODES;
    let (mut cursor, lines) = prefetch.in_steps(end, steps);
    // SAFETY: the keys from `key` on are there.
    unsafe {
        while at_once == 4 * S::LANES && end - key >= at_once {
            tile::<S, L, Q, 4>(products, query, key, (&mut cursor, lines));
            key += 4 * S::LANES;
        }
        while end - key >= 2 * S::LANES {
            tile::<S, L, Q, 2>(products, query, key, (&mut cursor, lines));
            key += 2 * S::LANES;
        }
        if key < end {
            tile::<S, L, Q, 1>(products, query, key, (&mut cursor, lines));
        }
    }
}

/// Q queries with N registers of keys.
#[inline(always)]
unsafe fn tile<S: Tiles, L: Lane<S>, const Q: usize, const N: usize>(
    products: &CodeScores<'_>,
    query: usize,
    key: usize,
    (cursor, lines): (&mut Cursor<'_>, usize),
) {
    let &CodeScores { query_step, head_dim, group, .. } = products;
    // SAFETY: Q queries from `query` on and N registers of keys from `key` on are there; a group is part of a row.
    unsafe {
        let (queries, panel) = (products.query.add(query * query_step), products.panel.add(key));
        let scores = products.scores.add(query * BLOCK + key);
        let mut totals = [[S::splat(0.0); N]; Q];
        for first in (0..head_dim).step_by(group) {
            let mut sums = [[S::splat(0.0); N]; Q];
            let mut queries = queries.add(first);
            if group.is_multiple_of(L::CODES) {
                let mut lanes = panel.add(first / L::CODES * L::KEYS);
                for _ in 0..group / L::CODES {
                    cursor.advance(lines);
                    let mut i = 0;
                    while i < L::CODES {
                        add::<S, L, Q, N>(queries.add(i), query_step, lanes, i, &mut sums);
                        i += 1;
                    }
                    lanes = lanes.add(L::KEYS);
                    queries = queries.add(L::CODES);
                }
            } else {
                for d in first..first + group {
                    add::<S, L, Q, N>(queries, query_step, panel.add(d / L::CODES * L::KEYS), d % L::CODES, &mut sums);
                    queries = queries.add(1);
                }
            }
            let scales = products.scales.add(first / group * BLOCK + key);
            for (q, totals) in totals.iter_mut().enumerate() {
                for (n, total) in totals.iter_mut().enumerate() {
                    *total = S::mul_add(sums[q][n], S::read_f32(scales.add(n * S::LANES)), *total);
                }
            }
        }
        for (q, totals) in totals.iter().enumerate() {
            for (n, &total) in totals.iter().enumerate() {
                S::write_f32(scores.add(q * BLOCK + n * S::LANES), total);
            }
        }
    }
}

/// Adds the products of one element, the `i`-th code of its lanes.
#[inline(always)]
unsafe fn add<S: Tiles, L: Lane<S>, const Q: usize, const N: usize>(
    queries: *const f32,
    query_step: usize,
    lanes: *const f32,
    i: usize,
    sums: &mut [[S::F32; N]; Q],
) {
    // SAFETY: Q queries and N registers of the panel have this element.
    unsafe {
        let mut codes = [S::splat(0.0); N];
        for (n, codes) in codes.iter_mut().enumerate() {
            *codes = L::code(S::read_f32(lanes.add(n * S::LANES)), i);
        }
        for (q, sums) in sums.iter_mut().enumerate() {
            let query = S::splat(*queries.add(q * query_step));
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = S::mul_add(query, codes[n], *sum);
            }
        }
    }
}

/// Words of codes, and where they become float32.
pub(crate) struct Widen {
    /// Words of [`BLOCK`] keys.
    pub(crate) words: *const f32,
    /// Codes of a key.
    pub(crate) head_dim: usize,
    /// Room for the float32 of [`PANEL`] keys, the first ones of the words.
    pub(crate) panel: *mut f32,
}

/// Converts words of BITS.
pub(crate) struct WidenCodes<const BITS: usize>;

impl<S: Tiles, const BITS: usize> Function<S> for WidenCodes<BITS> {
    type Arguments<'a> = Widen;
    type Output = ();

    #[inline(always)]
    unsafe fn run(&Widen { words, head_dim, panel }: &Widen) {
        let each = 32 / BITS;
        for word in 0..head_dim.div_ceil(each) {
            for key in (0..PANEL).step_by(S::LANES) {
                // SAFETY: these words are there, and room for the float32.
                unsafe {
                    let lanes = S::read_f32(words.add(word * BLOCK + key));
                    for i in 0..each.min(head_dim - word * each) {
                        let code = <Word<BITS> as Lane<S>>::code(lanes, i);
                        S::write_f32(panel.add((word * each + i) * PANEL + key), code);
                    }
                }
            }
        }
    }
}

//! How a run of tokens is cut into tiles, by layout and sizes, and what is prefetched while a tile is moved: pure
//! functions of a call's geometry.

use std::ops::Range;

use kvcache_simd::is_amd;

use crate::problem::Geometry;

/// The order in which a tile's rows are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Token by token, each with all its heads.
    TokensOuter,
    /// Head by head, each with all the tile's tokens.
    HeadsOuter,
}

/// How a run is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tiling {
    /// Tokens of a tile, of which first the keys are moved and then the values.
    pub(crate) tokens: usize,
    /// The order of a tile's rows.
    pub(crate) order: Order,
    /// Rows that a token has: one for each head, or one for all.
    pub(crate) rows: usize,
    /// Whether all tokens of a tile are one row.
    pub(crate) one_row: bool,
    /// Tokens between what is moved and what is prefetched, in [`Order::TokensOuter`]; none leaves it to the processor.
    /// In [`Order::HeadsOuter`] the next head is prefetched.
    pub(crate) prefetch: Option<usize>,
}

/// Rows that are moved together, at one distance from what is prefetched with them. Tokens are counted in the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// 0 for keys, 1 for values.
    pub(crate) kv: usize,
    /// The tokens.
    pub(crate) tokens: Range<usize>,
    /// The rows of each.
    pub(crate) rows: Range<usize>,
    /// What is prefetched while the first row is moved: 0 for a key or 1 for a value, its token, which after the run's
    /// end is one of the next run's, and its row.
    pub(crate) prefetch: Option<(usize, usize, usize)>,
}

impl Tiling {
    /// Calls `visit` with each part of a run of `len` tokens, in the order in which they are moved.
    #[inline(always)]
    pub(crate) fn for_each_part(self, len: usize, mut visit: impl FnMut(Part)) {
        let mut start = 0;
        while start < len {
            let end = len.min(start.saturating_add(self.tokens));
            self.for_each_half(0, start, end, &mut visit);
            self.for_each_half(1, start, end, &mut visit);
            start = end;
        }
    }

    /// The keys or values of a tile, in two parts: the second has what is prefetched outside of what is moved.
    #[inline(always)]
    fn for_each_half(self, kv: usize, start: usize, end: usize, visit: &mut impl FnMut(Part)) {
        let part = |tokens: Range<usize>, rows: Range<usize>, prefetch| Part { kv, tokens, rows, prefetch };
        let Some(distance) = self.prefetch else {
            return visit(part(start..end, 0..self.rows, None));
        };
        // What is moved after this: the tile's values, or the next tile's keys.
        let next = Some(if kv == 0 { (1, start, 0) } else { (0, end, 0) });
        match self.order {
            Order::HeadsOuter => {
                if self.rows > 1 {
                    visit(part(start..end, 0..self.rows - 1, Some((kv, start, 1))));
                }
                visit(part(start..end, self.rows - 1..self.rows, next));
            }
            Order::TokensOuter => {
                let last = end - distance.min(end - start);
                if start < last {
                    visit(part(start..last, 0..self.rows, Some((kv, start + distance, 0))));
                }
                visit(part(last..end, 0..self.rows, next));
            }
        }
    }
}

/// Bytes of the cache in a head's part of a tile, where a load by plain stores goes head by head.
const HEAD_TILE_BYTES: usize = 4096;

/// Bytes of T1 in a tile of a store: all heads go through it, one after the other, and it stays in the first-level
/// cache.
const STORE_TILE_BYTES: usize = 32 << 10;

/// Bytes of T1 in a tile of a load by plain stores.
const PLAIN_TILE_BYTES: usize = 32 << 10;

/// Bytes of the outputs from which on a load by plain stores prefetches.
const PREFETCH_BYTES: usize = 256 << 10;

impl Tiling {
    /// The tiling of a load of heads that have `num_repeat` copies in the outputs, by plain stores, of that many bytes
    /// in all.
    pub(crate) fn plain_load(geometry: &Geometry, num_repeat: usize, output_bytes: usize) -> Self {
        let tiling = Self::plain_tiling(geometry, num_repeat);
        // What is smaller was just stored, or will be loaded again soon: it is in a cache.
        if output_bytes < PREFETCH_BYTES { Self { prefetch: None, ..tiling } } else { tiling }
    }

    fn plain_tiling(geometry: &Geometry, num_repeat: usize) -> Self {
        if is_head_major(geometry) {
            return Self::head_by_head(geometry, HEAD_TILE_BYTES);
        }
        let one_row = is_one_row(geometry, num_repeat);
        let tokens = if one_row { usize::MAX } else { tokens_in(PLAIN_TILE_BYTES, token_bytes(geometry)) };
        let prefetch = (!one_row).then_some(tokens);
        Self { tokens, order: Order::TokensOuter, rows: rows(geometry, num_repeat), one_row, prefetch }
    }

    /// The tiling of a load by non-temporal stores; `whole_lines` says whether each head of the outputs is whole lines.
    pub(crate) fn streamed_load(geometry: &Geometry, num_repeat: usize, whole_lines: bool, tuning: Tuning) -> Self {
        if is_head_major(geometry) {
            let token_by_token = |distances| Self::token_by_token(geometry, distances, geometry.num_heads, false);
            return match tuning.head_major {
                HeadMajor::Heads(tile) if whole_lines => Self::head_by_head(geometry, tile),
                // Only token by token does a row follow the one before it in the outputs, and can share its last line.
                HeadMajor::Heads(_) => token_by_token((32, 8)),
                HeadMajor::Tokens(distances) => token_by_token(distances),
            };
        }
        let (once, copied) = (num_repeat == 1, geometry.t1 == geometry.t2);
        let [copies, others] = match (geometry.cache.token, 2 * token_len(geometry)) {
            (token, both) if token > both && once => tuning.strided,
            (token, both) if token > both => [tuning.strided[1]; 2],
            (token, both) if token == both && once => tuning.adjacent,
            _ => tuning.contiguous,
        };
        let distances = if copied { copies } else { others };
        // A copy prefetches line by line; other rows all that they need at once, so these are better short.
        let one_row = copied && is_one_row(geometry, num_repeat);
        Self::token_by_token(geometry, distances, rows(geometry, num_repeat), one_row)
    }

    /// The tiling of a store by non-temporal stores if `stream`. `whole_lines` says whether each head of the cache is
    /// whole lines.
    pub(crate) fn store(geometry: &Geometry, stream: bool, whole_lines: bool) -> Self {
        let quantizes = geometry.quant.is_some();
        let tokens = tokens_in(STORE_TILE_BYTES, token_bytes(geometry));
        if is_head_major(geometry) {
            let order = if quantizes || (stream && !whole_lines) { Order::HeadsOuter } else { Order::TokensOuter };
            return Self { tokens, order, rows: geometry.num_heads, one_row: false, prefetch: None };
        }
        // What is quantized and streamed passes through a staging buffer, token by token.
        let one_row = is_one_row(geometry, 1) && !(quantizes && stream);
        let tokens = if one_row { usize::MAX } else { tokens };
        Self { tokens, order: Order::TokensOuter, rows: rows(geometry, 1), one_row, prefetch: None }
    }

    fn token_by_token(geometry: &Geometry, (tile, prefetch): Distances, rows: usize, one_row: bool) -> Self {
        let [tokens, prefetch] = [tile, prefetch].map(|kib| tokens_in(kib << 10, token_bytes(geometry)));
        let prefetch = Some(prefetch);
        Self { tokens, order: Order::TokensOuter, rows, one_row, prefetch }
    }

    fn head_by_head(geometry: &Geometry, tile: usize) -> Self {
        let Geometry { num_heads, head_dim, t2, cache, .. } = *geometry;
        let tokens = if cache.token == head_dim { tokens_in(tile, t2.byte_len(head_dim)) } else { 1 };
        Self { tokens, order: Order::HeadsOuter, rows: num_heads, one_row: false, prefetch: Some(0) }
    }
}

/// Rows of a token whose heads have that many copies.
fn rows(geometry: &Geometry, copies: usize) -> usize {
    if copies == 1 && !has_static_scales(geometry) { 1 } else { geometry.num_heads }
}

/// Whether all tokens are one row.
fn is_one_row(geometry: &Geometry, copies: usize) -> bool {
    copies == 1 && !has_static_scales(geometry) && geometry.cache.token == token_len(geometry)
}

/// Whether scales are no slot's: neighboring heads or tokens are then not one row.
fn has_static_scales(geometry: &Geometry) -> bool {
    geometry.quant.is_some_and(|quant| quant.has_static_scales())
}

/// Whether the heads of a token are no neighbors in the cache.
fn is_head_major(geometry: &Geometry) -> bool {
    geometry.num_heads > 1 && geometry.cache.head != geometry.head_dim
}

fn token_len(geometry: &Geometry) -> usize {
    geometry.num_heads * geometry.head_dim
}

/// Bytes of T1 of a token's keys, or of its values.
fn token_bytes(geometry: &Geometry) -> usize {
    geometry.t1.byte_len(token_len(geometry))
}

/// The number of tokens in that many bytes, at least one.
fn tokens_in(bytes: usize, token_bytes: usize) -> usize {
    (bytes / token_bytes.max(1)).max(1)
}

/// A tile's size, and the distance between what is moved and what is prefetched, in KiB of T1 of keys or of values; each
/// is a token at least.
type Distances = (usize, usize);

/// How large loads with non-temporal stores are cut on a machine: measured there, since machines differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tuning {
    /// A layer whose tokens are contiguous, or nearly: copied; converted or dequantized.
    pub(crate) contiguous: [Distances; 2],
    /// A layer whose tokens are strided (layout 0): copied once; converted, dequantized or repeated.
    pub(crate) strided: [Distances; 2],
    /// A layer whose values follow the keys of each token (layout 1): copied once; converted or dequantized once.
    pub(crate) adjacent: [Distances; 2],
    /// Head-major layouts.
    pub(crate) head_major: HeadMajor,
}

/// How loads of head-major layouts with non-temporal stores go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadMajor {
    /// Token by token.
    Tokens(Distances),
    /// Head by head: that many bytes of the cache in a head's part of a tile.
    Heads(usize),
}

impl Tuning {
    /// How large loads are cut on this machine, by the maker of its processor.
    pub(crate) fn of_machine() -> Self {
        if is_amd() { Self::AMD } else { Self::INTEL }
    }

    /// Intel's Emerald Rapids (Xeon, family 6, model 207). Several streams are read at once, whatever the
    /// layout; short rows, so that prefetches come in small portions.
    pub(crate) const INTEL: Self = Self {
        contiguous: [(128, 8), (128, 8)],
        strided: [(64, 64), (32, 4)],
        adjacent: [(128, 8), (128, 8)],
        head_major: HeadMajor::Tokens((256, 8)),
    };

    /// AMD's Zen 5 (EPYC, family 26). A single stream is twice as fast as four: what is adjacent is read in order, the
    /// key and the value of one token after the other where they are copied, and head-major tiles are long.
    pub(crate) const AMD: Self = Self {
        contiguous: [(16, 16), (32, 8)],
        strided: [(256, 4), (8, 8)],
        adjacent: [(0, 0), (8, 8)],
        head_major: HeadMajor::Heads(16 << 10),
    };
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(tiling: Tiling, len: usize) -> Vec<Part> {
        let mut parts = Vec::new();
        tiling.for_each_part(len, |part| parts.push(part));
        parts
    }

    fn tilings() -> impl Strategy<Value = Tiling> {
        let order = prop_oneof![Just(Order::TokensOuter), Just(Order::HeadsOuter)];
        (1..9usize, order, 1..4usize, prop::option::of(1..12usize)).prop_map(|(tokens, order, rows, prefetch)| Tiling {
            tokens,
            order,
            rows,
            one_row: false,
            prefetch,
        })
    }

    proptest! {
        /// Every row of every token is moved once, tile by tile, the keys of a tile before its values.
        #[test]
        fn parts_cover_a_run(tiling in tilings(), len in 0..40usize) {
            let mut moved: Vec<_> = parts(tiling, len)
                .into_iter()
                .flat_map(|part| {
                    let Part { kv, tokens, rows, .. } = part;
                    tokens.flat_map(move |t| rows.clone().map(move |row| (t / tiling.tokens, kv, t, row)))
                })
                .collect();
            prop_assert!(moved.is_sorted_by_key(|&(tile, kv, ..)| (tile, kv)));
            moved.sort_unstable();
            let mut expected: Vec<_> = (0..len)
                .flat_map(|t| (0..2).map(move |kv| (t / tiling.tokens, kv, t)))
                .flat_map(|(tile, kv, t)| (0..tiling.rows).map(move |row| (tile, kv, t, row)))
                .collect();
            expected.sort_unstable();
            prop_assert_eq!(moved, expected);
        }

        /// Token by token, each row is prefetched once before it is moved, but for the first tile's first ones.
        #[test]
        fn everything_is_prefetched(tokens in 1..9usize, distance in 1..12usize, len in 1..40usize) {
            let order = Order::TokensOuter;
            let tiling = Tiling { tokens, order, rows: 2, one_row: false, prefetch: Some(distance) };
            let (mut moved, mut prefetched) = (Vec::new(), Vec::new());
            for part in parts(tiling, len) {
                let (kv, token, _) = part.prefetch.unwrap();
                for (i, t) in part.tokens.clone().enumerate() {
                    moved.push((part.kv, t));
                    prefetched.push((kv, token + i));
                }
            }
            // Tiles of other lengths than the one after them prefetch less, or further than the run.
            if len % tokens == 0 {
                let distance = distance.min(tokens);
                prop_assert_eq!(&prefetched[..moved.len() - distance], &moved[distance..]);
                prop_assert!(prefetched[moved.len() - distance..].iter().all(|&(kv, t)| kv == 0 && t >= len));
            }
        }
    }
}

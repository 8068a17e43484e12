//! How a run of tokens is cut into tiles, by layout and sizes, and what is prefetched while a tile is moved.
//!
//! Nothing here touches memory.

use std::ops::Range;

use kvcache_schema::CacheStrides;

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
    /// What is prefetched while the first row is moved.
    pub(crate) prefetch: Option<PrefetchTarget>,
}

/// A row that is prefetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PrefetchTarget {
    /// 0 for keys, 1 for values.
    pub(crate) kv: usize,
    /// The token, counted in the run: behind its end it is a token of the next run.
    pub(crate) token: usize,
    /// The row.
    pub(crate) row: usize,
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
        let prefetch = |kv, token, row| Some(PrefetchTarget { kv, token, row });
        // What is moved after this: the tile's values, or the next tile's keys.
        let next = if kv == 0 { prefetch(1, start, 0) } else { prefetch(0, end, 0) };
        match self.order {
            Order::HeadsOuter => {
                if self.rows > 1 {
                    visit(part(start..end, 0..self.rows - 1, prefetch(kv, start, 1)));
                }
                visit(part(start..end, self.rows - 1..self.rows, next));
            }
            Order::TokensOuter => {
                let last = end - distance.min(end - start);
                if start < last {
                    visit(part(start..last, 0..self.rows, prefetch(kv, start + distance, 0)));
                }
                visit(part(last..end, 0..self.rows, next));
            }
        }
    }
}

/// What a tiling depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Heads of a token.
    pub(crate) num_heads: usize,
    /// Elements of a head.
    pub(crate) head_dim: usize,
    /// The cache's strides, in elements.
    pub(crate) strides: CacheStrides,
    /// Bytes of a head's values (T1).
    pub(crate) head_bytes: usize,
    /// Bytes of a head in the cache (T2).
    pub(crate) cache_head_bytes: usize,
    /// How the cache holds the values.
    pub(crate) kind: Kind,
}

/// How the cache holds the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// As they are.
    Copied,
    /// In another float type.
    Converted,
    /// As codes with scales.
    Quantized,
    /// As codes with scales that are no slot's: neighboring heads or tokens are not one row.
    StaticScales,
}

/// A tile's size and a prefetch distance, in bytes of T1 of keys or of values; each is a token at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Distances {
    /// Of a tile.
    pub(crate) tile: usize,
    /// Between what is moved and what is prefetched.
    pub(crate) prefetch: usize,
}

const fn kib(tile: usize, prefetch: usize) -> Distances {
    Distances { tile: tile << 10, prefetch: prefetch << 10 }
}

/// How large loads with non-temporal stores are cut on a machine: measured there, since machines differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tuning {
    /// A layer whose tokens are contiguous, or nearly: copied; converted or dequantized.
    pub(crate) contiguous: [Distances; 2],
    /// A layer whose tokens are strided (layout 0): copied once; converted, dequantized or repeated.
    pub(crate) strided: [Distances; 2],
    /// A layer whose values are behind the keys of each token (layout 1): copied once; converted or dequantized once.
    pub(crate) adjacent: [Distances; 2],
    /// Head-major layouts.
    pub(crate) head_major: HeadMajor,
}

/// How loads of head-major layouts with non-temporal stores go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadMajor {
    /// Token by token.
    Tokens(Distances),
    /// Head by head: so many bytes of the cache in a head's part of a tile.
    Heads(usize),
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

impl Tuning {
    /// Intel's Emerald Rapids (Xeon, family 6, model 207). Several streams are read at once, whatever the
    /// layout; short rows, so that prefetches come in small portions.
    pub(crate) const INTEL: Self = Self {
        contiguous: [kib(128, 8), kib(128, 8)],
        strided: [kib(64, 64), kib(32, 4)],
        adjacent: [kib(128, 8), kib(128, 8)],
        head_major: HeadMajor::Tokens(kib(256, 8)),
    };

    /// AMD's Zen 5 (EPYC, family 26). A single stream is twice as fast as four: what is adjacent is read in order, the
    /// key and the value of one token after the other where they are copied, and head-major tiles are long.
    pub(crate) const AMD: Self = Self {
        contiguous: [kib(16, 16), kib(32, 8)],
        strided: [kib(256, 4), kib(8, 8)],
        adjacent: [kib(0, 0), kib(8, 8)],
        head_major: HeadMajor::Heads(16 << 10),
    };
}

impl Shape {
    /// The tiling of a load of heads that have `num_repeat` copies in the outputs, by plain stores, of so many bytes in
    /// all.
    pub(crate) fn plain_load(self, num_repeat: usize, output_bytes: usize) -> Tiling {
        let tiling = self.plain_tiling(num_repeat);
        // What is smaller was just stored, or will be loaded again soon: it is in a cache.
        if output_bytes < PREFETCH_BYTES { Tiling { prefetch: None, ..tiling } } else { tiling }
    }

    fn plain_tiling(self, num_repeat: usize) -> Tiling {
        if self.is_head_major() {
            return self.head_by_head(HEAD_TILE_BYTES);
        }
        let one_row = self.is_one_row(num_repeat);
        let tokens = if one_row { usize::MAX } else { tokens_in(PLAIN_TILE_BYTES, self.token_bytes()) };
        let prefetch = (!one_row).then_some(tokens);
        Tiling { tokens, order: Order::TokensOuter, rows: self.rows(num_repeat), one_row, prefetch }
    }

    /// The tiling of a load by non-temporal stores; `whole_lines` says whether each head of the outputs is whole lines.
    pub(crate) fn streamed_load(self, num_repeat: usize, whole_lines: bool, tuning: Tuning) -> Tiling {
        if self.is_head_major() {
            return match tuning.head_major {
                HeadMajor::Heads(tile) if whole_lines => self.head_by_head(tile),
                // Only token by token does a row follow the one before it in the outputs, and can share its last line.
                HeadMajor::Heads(_) => self.token_by_token(kib(32, 8), self.num_heads, false),
                HeadMajor::Tokens(distances) => self.token_by_token(distances, self.num_heads, false),
            };
        }
        let (once, copied) = (num_repeat == 1, self.kind == Kind::Copied);
        let [copies, others] = match self.strides.token {
            token if token > 2 * self.token_len() && once => tuning.strided,
            token if token > 2 * self.token_len() => [tuning.strided[1]; 2],
            token if token == 2 * self.token_len() && once => tuning.adjacent,
            _ => tuning.contiguous,
        };
        let distances = if copied { copies } else { others };
        // A copy prefetches line by line; other rows all that they need at once, so these are better short.
        self.token_by_token(distances, self.rows(num_repeat), copied && self.is_one_row(num_repeat))
    }

    /// The tiling of a store by non-temporal stores if `stream`. `whole_lines` says whether each head of the cache is
    /// whole lines.
    pub(crate) fn store(self, stream: bool, whole_lines: bool) -> Tiling {
        let quantizes = matches!(self.kind, Kind::Quantized | Kind::StaticScales);
        let tokens = tokens_in(STORE_TILE_BYTES, self.token_bytes());
        if self.is_head_major() {
            let order = if quantizes || (stream && !whole_lines) { Order::HeadsOuter } else { Order::TokensOuter };
            return Tiling { tokens, order, rows: self.num_heads, one_row: false, prefetch: None };
        }
        // What is quantized and streamed passes through a stage, token by token.
        let one_row = self.is_one_row(1) && !(quantizes && stream);
        let tokens = if one_row { usize::MAX } else { tokens };
        Tiling { tokens, order: Order::TokensOuter, rows: self.rows(1), one_row, prefetch: None }
    }

    /// Rows of a token whose heads have so many copies.
    fn rows(self, copies: usize) -> usize {
        if copies == 1 && self.kind != Kind::StaticScales { 1 } else { self.num_heads }
    }

    /// Whether all tokens are one row.
    fn is_one_row(self, copies: usize) -> bool {
        copies == 1 && self.kind != Kind::StaticScales && self.strides.token == self.token_len()
    }

    fn token_by_token(self, distances: Distances, rows: usize, one_row: bool) -> Tiling {
        let tokens = tokens_in(distances.tile, self.token_bytes());
        let prefetch = Some(tokens_in(distances.prefetch, self.token_bytes()));
        Tiling { tokens, order: Order::TokensOuter, rows, one_row, prefetch }
    }

    fn head_by_head(self, tile: usize) -> Tiling {
        let neighbors = self.strides.token == self.head_dim;
        let tokens = if neighbors { tokens_in(tile, self.cache_head_bytes) } else { 1 };
        Tiling { tokens, order: Order::HeadsOuter, rows: self.num_heads, one_row: false, prefetch: Some(0) }
    }

    /// Whether the heads of a token are no neighbors in the cache.
    fn is_head_major(self) -> bool {
        self.num_heads > 1 && self.strides.head != self.head_dim
    }

    fn token_len(self) -> usize {
        self.num_heads * self.head_dim
    }

    fn token_bytes(self) -> usize {
        self.num_heads * self.head_bytes
    }
}

/// How many tokens have so many bytes, at least one.
fn tokens_in(bytes: usize, token_bytes: usize) -> usize {
    (bytes / token_bytes.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use kvcache_schema::{CacheDims, CacheLayout};
    use proptest::prelude::*;

    use super::*;

    fn shape(layout: CacheLayout, num_layer: usize, num_heads: usize, kind: Kind) -> Shape {
        let head_dim = 128;
        let strides = layout.strides(CacheDims { max_t: 1024, num_layer, num_heads, inner: head_dim }).unwrap();
        Shape { num_heads, head_dim, strides, head_bytes: 256, cache_head_bytes: 256, kind }
    }

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
                let prefetch = part.prefetch.unwrap();
                for (i, t) in part.tokens.clone().enumerate() {
                    moved.push((part.kv, t));
                    prefetched.push((prefetch.kv, prefetch.token + i));
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

    #[test]
    fn machines_differ_in_head_major_loads_alone_of_orders() {
        for layout in CacheLayout::ALL {
            let of = |tuning, whole_lines| shape(layout, 2, 8, Kind::Copied).streamed_load(1, whole_lines, tuning);
            for tiling in [of(Tuning::INTEL, true), of(Tuning::INTEL, false), of(Tuning::AMD, false)] {
                assert_eq!(tiling.order, Order::TokensOuter, "{layout:?}");
            }
            let (tiling, head_major) = (of(Tuning::AMD, true), layout == CacheLayout::HeadMajor);
            assert_eq!(tiling.order == Order::HeadsOuter, head_major, "{layout:?}");
            assert_eq!(tiling.rows, if head_major { 8 } else { 1 }, "{layout:?}");
        }
    }

    #[test]
    fn only_copies_of_neighbors_are_one_row() {
        let one_row =
            |layout, num_layer, kind| shape(layout, num_layer, 8, kind).streamed_load(1, true, Tuning::INTEL).one_row;
        assert!(one_row(CacheLayout::KvMajor, 4, Kind::Copied));
        assert!(!one_row(CacheLayout::KvMajor, 4, Kind::Quantized));
        assert!(!one_row(CacheLayout::LayerMajor, 4, Kind::Copied));
        assert!(!shape(CacheLayout::KvMajor, 4, 8, Kind::Copied).streamed_load(4, true, Tuning::INTEL).one_row);
        // One head: its tokens are contiguous.
        assert!(shape(CacheLayout::HeadMajor, 4, 1, Kind::Copied).streamed_load(1, true, Tuning::INTEL).one_row);
    }

    #[test]
    fn a_tile_has_a_token_at_least() {
        let wide = Shape {
            head_bytes: 1 << 30,
            cache_head_bytes: 1 << 30,
            ..shape(CacheLayout::HeadMajor, 1, 8, Kind::Copied)
        };
        for tuning in [Tuning::INTEL, Tuning::AMD] {
            assert_eq!(wide.streamed_load(1, true, tuning).tokens, 1);
        }
        assert_eq!((wide.plain_load(1, 1 << 30).tokens, wide.store(true, true).tokens), (1, 1));
    }
}

//! The sizes of tiles and the prefetch distances of loads with non-temporal stores, as machines were measured.

/// A tile's size and a prefetch distance, in bytes of T1 of keys or of values; each is a token at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Distances {
    /// The size of a tile.
    pub(crate) tile: usize,
    /// The distance between what is moved and what is prefetched.
    pub(crate) prefetch: usize,
}

pub(crate) const fn kib(tile: usize, prefetch: usize) -> Distances {
    Distances { tile: tile << 10, prefetch: prefetch << 10 }
}

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

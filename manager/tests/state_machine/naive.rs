//! The naive model: per sequence its rows, each with a position and a tag that its bytes follow from.

use kvcache_manager::{Append, SeqId};

/// A sequence of the model.
#[derive(Debug, Clone)]
pub struct Naive {
    pub id: SeqId,
    pub salt: u8,
    /// Position and tag.
    pub rows: Vec<(i64, u64)>,
    /// The tokens, as long as all are known and positions are rows.
    pub tokens: Vec<u32>,
}

/// The row that a model would store: all bytes follow from its tag.
pub fn bytes(tag: u64, len: usize) -> Vec<u8> {
    let mut x = tag | 1;
    let next = |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 24) as u8
    };
    (0..len).map(next).collect()
}

/// The tag of a row behind known tokens: equal prompts give equal rows.
pub fn tag(salt: u8, tokens: &[u32]) -> u64 {
    let mix = |hash: u64, x: u32| (hash ^ u64::from(x)).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
    tokens.iter().fold(0xcbf2_9ce4_8422_2325 + u64::from(salt), |hash, &token| mix(hash, token))
}

/// A step's appends as the model has them.
pub struct Planned {
    pub seq: usize,
    pub n: usize,
    pub tokens: Option<Vec<u32>>,
    pub first_pos: Option<i64>,
}

impl Planned {
    pub fn append(&self, id: SeqId) -> Append<'_> {
        let append = match &self.tokens {
            Some(tokens) => Append::tokens(id, tokens),
            None => Append::count(id, self.n),
        };
        self.first_pos.map_or(append, |first_pos| append.at(first_pos))
    }
}

impl Naive {
    pub fn next(&self) -> i64 {
        self.rows.last().map_or(0, |row| row.0 + 1)
    }

    /// An append's tokens, if they follow known ones and their positions are rows.
    pub fn known(&self, append: &Planned) -> Option<Vec<u32>> {
        let len = self.rows.len();
        let first = append.first_pos.unwrap_or_else(|| self.next());
        append.tokens.clone().filter(|_| self.tokens.len() == len && first == len as i64)
    }
}

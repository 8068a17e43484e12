//! From a token and a key head to the address of its row: packed, or in the cache.

use std::ops::Range;

use kvcache_kernels::{Addressing, CacheBytes, TensorBytes};

use super::generic::rows::BLOCK;
use crate::problem::{AttentionProblem, Keys};

/// The rows of keys and values of a call. All that it names is inside of the tensors.
pub(super) struct Source<'a> {
    /// Where the first head of the first row begins, of keys and of values; and its scales, if there are any.
    cache: [*const u8; 2],
    scale: [*const u8; 2],
    /// Bytes from one row or head to the next.
    cache_bytes: TensorBytes,
    scale_bytes: TensorBytes,
    rows: TokenRows<'a>,
}

/// The row of each token.
enum TokenRows<'a> {
    /// One after the other: shape (B + 1), where each sequence starts.
    Packed(&'a [i64]),
    Slots(Addressing<'a>),
}

/// The bytes from a head's first row to the rows of a block's tokens, and to their scales. Entries after the last
/// token are the last token's.
#[derive(Clone, Copy)]
pub(super) struct Offsets {
    pub(super) cache: [usize; BLOCK],
    pub(super) scale: [usize; BLOCK],
    /// The number of tokens in each run of slots.
    runs: [u8; BLOCK],
    run_count: usize,
}

impl Offsets {
    /// The tokens of each run of slots, whose rows are at equal distances.
    pub(super) fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        let mut end = 0;
        self.runs[..self.run_count].iter().map(move |&len| {
            let start = end;
            end += usize::from(len);
            start..end
        })
    }

    /// The number of tokens in the first run of slots.
    pub(super) fn first_run(&self) -> usize {
        usize::from(self.runs[0])
    }
}

impl Default for Offsets {
    fn default() -> Self {
        Self { cache: [0; BLOCK], scale: [0; BLOCK], runs: [0; BLOCK], run_count: 0 }
    }
}

impl<'a> Source<'a> {
    pub(super) fn new(problem: &'a AttentionProblem<'_>) -> Self {
        let geometry = problem.geometry();
        match problem.keys() {
            Keys::Packed { pointers, indices } => {
                let head_len = geometry.head_dim * problem.t1_bytes();
                let token = geometry.num_kv_heads * head_len;
                Self {
                    cache: *pointers,
                    scale: [std::ptr::null(); 2],
                    cache_bytes: TensorBytes { head_len, token, layer: 0, kv: 0, head: head_len },
                    scale_bytes: TensorBytes::default(),
                    rows: TokenRows::Packed(indices.kvstarts),
                }
            }
            Keys::Cache(stored) => {
                let CacheBytes { cache, scale, layer_idx } = CacheBytes::new(stored.geometry());
                let pointers = stored.pointers();
                let first = |data: *mut u8, bytes: &TensorBytes| {
                    [0, 1].map(|kv| data.wrapping_add(bytes.offset(0, layer_idx, kv, 0)).cast_const())
                };
                Self {
                    cache: first(pointers.cache, &cache),
                    scale: first(pointers.scale, &scale),
                    cache_bytes: cache,
                    scale_bytes: scale,
                    rows: TokenRows::Slots(stored.indices().addressing),
                }
            }
        }
    }

    /// The first row of a head, and its scales; `kv` is 0 for keys and 1 for values.
    pub(super) fn head(&self, kv: usize, h: usize) -> (*const u8, *const u8) {
        let offset = |data: *const u8, bytes: &TensorBytes| data.wrapping_add(h * bytes.head);
        (offset(self.cache[kv], &self.cache_bytes), offset(self.scale[kv], &self.scale_bytes))
    }

    /// Bytes from the row of one slot to the row of the next, and between their scales.
    pub(super) fn steps(&self) -> [usize; 2] {
        [self.cache_bytes.token, self.scale_bytes.token]
    }

    /// Bytes of a head's row, and of its scales.
    pub(super) fn head_len(&self) -> [usize; 2] {
        [self.cache_bytes.head_len, self.scale_bytes.head_len]
    }

    /// Whether the rows of a token's heads are nearer to each other than to the next token's rows.
    pub(super) fn heads_are_adjacent(&self) -> bool {
        self.cache_bytes.head < self.cache_bytes.token
    }

    /// The rows of at most [`BLOCK`] tokens of sequence `b`.
    pub(super) fn offsets(&self, b: usize, tokens: Range<usize>, to: &mut Offsets) {
        let Offsets { cache, scale, runs, run_count } = to;
        let len = tokens.len();
        let [cache_step, scale_step] = self.steps();
        let mut at = 0;
        *run_count = 0;
        let mut run = |first: usize, len: usize| {
            let mut next = [first * cache_step, first * scale_step];
            for (cache, scale) in cache[at..][..len].iter_mut().zip(&mut scale[at..]) {
                [*cache, *scale] = next;
                next = [next[0] + cache_step, next[1] + scale_step];
            }
            runs[*run_count] = len as u8;
            *run_count += 1;
            at += len;
        };
        match self.rows {
            TokenRows::Packed(kvstarts) => run(kvstarts[b] as usize + tokens.start, len),
            TokenRows::Slots(addressing) => addressing.runs(b, tokens).for_each(|slots| run(slots.slot, slots.len)),
        }
        if let Some(last) = len.checked_sub(1) {
            let last = (cache[last], scale[last]);
            cache[len..].fill(last.0);
            scale[len..].fill(last.1);
        }
    }
}

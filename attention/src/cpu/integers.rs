//! A block of keys and values that are integer codes, which are multiplied as they are: scales enter the sums.

use super::attention_args::AttentionArgs;
use super::block_rows::{BlockMemory, BlockRows, KEY, Queries, VALUE, pv_visible_rows};
use super::generic::panel::{PANEL, Pack};
use super::generic::pv_rows::WeightedRows;
use super::generic::qk_codes::{CodeScores, Widen};
use super::generic::rows::{BLOCK, Prefetch, Rows};
use super::generic::scales::Scaled;
use super::generic::softmax::SUMS;
use super::read::Integers;

/// From that many queries on, codes become float32 before they are multiplied.
const WIDENED: usize = 8;

/// Keys of a block, packed.
pub(super) struct PackedKeys<'a> {
    words: *const f32,
    /// Where words of some keys become float32, if there are many queries.
    panel: Option<*mut f32>,
    scales: *const f32,
    prefetch: Prefetch<'a>,
}

impl<'a> PackedKeys<'a> {
    /// Packs that many keys of a block, whole registers, for as many queries.
    ///
    /// # Safety
    /// The conditions of [`attend_decode`](super::decode::attend_decode) hold.
    pub(super) unsafe fn new(
        args: &'a AttentionArgs<'_>,
        integers: &Integers,
        keys: usize,
        queries: usize,
        [here, next]: [BlockRows<'a>; 2],
        memory: BlockMemory,
    ) -> Self {
        let words = memory.panel;
        // A word is four codes or more, and takes at most a quarter of as many float32.
        let panel = (queries >= WIDENED).then_some(words.wrapping_add(BLOCK * args.width / 2));
        // SAFETY: see `# Safety`. The rows from `keys` on are as the last.
        unsafe {
            let scales = here.group_scales(args, (KEY, integers), keys, memory);
            let rows = here.stored(args, KEY, 0..BLOCK, next);
            let (prefetch, rows) = (rows.prefetch, Rows { prefetch: Prefetch::NONE, ..rows });
            (integers.functions.pack_keys)(&Pack { rows, keys, panel: words });
            Self { words, panel, scales, prefetch }
        }
    }

    /// QK scores of queries, rows of float32, and that many keys from `first` on, whole registers.
    ///
    /// # Safety
    /// The conditions of [`attend_decode`](super::decode::attend_decode) hold.
    pub(super) unsafe fn scores(
        &self,
        args: &AttentionArgs<'_>,
        integers: &Integers,
        (query, queries): (*const f32, usize),
        [first, keys]: [usize; 2],
        scores: *mut f32,
    ) {
        let functions = &integers.functions;
        let head_dim = args.geometry.head_dim;
        let products = |at: usize, keys: usize, panel: *const f32| CodeScores {
            query,
            query_step: args.width,
            queries,
            head_dim,
            group: integers.group,
            panel,
            keys,
            scales: self.scales.wrapping_add(at),
            scores: scores.wrapping_add(at),
            prefetch: self.prefetch.from(at),
        };
        // SAFETY: see `# Safety`: the keys are those that are packed.
        unsafe {
            let Some(panel) = self.panel else {
                return (functions.qk_words)(&products(first, keys, self.words.add(first)));
            };
            for at in (first..first + keys).step_by(PANEL) {
                (functions.widen)(&Widen { words: self.words.add(at), head_dim, panel });
                (functions.qk_floats)(&products(at, PANEL.min(first + keys - at), panel));
            }
        }
    }
}

/// Adds PV products of few queries and that many values: weights are multiplied with scales, and then with codes.
///
/// # Safety
/// The conditions of [`attend_decode`](super::decode::attend_decode) hold.
pub(super) unsafe fn add_integer_values(
    args: &AttentionArgs<'_>,
    integers: &Integers,
    &Queries { rows: queries, state, .. }: &Queries<'_>,
    keys: usize,
    masked: bool,
    [here, next]: [BlockRows<'_>; 2],
    memory: BlockMemory,
) {
    let &Integers { functions, group, groups, .. } = integers;
    let queries = queries.len();
    let BlockMemory { weights, scaled, rescale, ones, .. } = memory;
    let padded = keys.next_multiple_of(SUMS);
    // SAFETY: see `# Safety`. The scales from `keys` on are as the last.
    unsafe {
        let scales = here.group_scales(args, (VALUE, integers), padded, memory);
        (functions.scale_weights)(&Scaled { weights, queries, keys: padded, scales, groups, to: scaled });
        let values = WeightedRows {
            weights: scaled,
            queries,
            rows: here.stored(args, VALUE, 0..keys, next),
            width: args.width,
            group,
            group_step: queries * BLOCK,
            rescale,
            sums: state.values,
        };
        match masked {
            false => (functions.pv_rows)(&values),
            true => pv_visible_rows(functions.pv_rows, &values, weights, ones),
        }
    }
}

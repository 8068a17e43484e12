//! Dynamic batching: the slots that tokens have, and what a call stores and loads there.

use kvcache_schema::{Attributes, Axis, CacheLayout, STATIC_SCALES};

use crate::case::StepInputs;
use crate::oracle::call::{Call, Heads, Inputs, Load, Plan, Sequence, SharedAttributes, indices, number};
use crate::oracle::decisions::{Behavior, Layout, LoadedTokens, OutputRows, Position, Slots, StoredTokens};
use crate::oracle::rules;
use crate::tensor::Tensor;

/// The index inputs of a call, of whatever shapes they are, and what they depend on.
#[derive(Debug, Clone)]
pub(super) struct Batch {
    pub(super) seqstarts: Vec<i64>,
    pub(super) kvstarts: Vec<i64>,
    /// Row-major where it is a page table.
    pub(super) cachestarts: Vec<i64>,
    pub(super) start_pos: Vec<i64>,
    pub(super) max_seqlen: i64,
    pub(super) max_kvlen: i64,
    pub(super) paged: bool,
    /// The entries of a sequence in the page table (MaxP); 0 in offset mode.
    pub(super) max_p: usize,
    pub(super) page_size: i64,
    /// The slots of the cache (MaxT), as far as its shape says.
    pub(super) max_t: usize,
    pub(super) tokens: usize,
}

impl Inputs<Attributes> for StepInputs {
    fn shared(attributes: &Attributes) -> SharedAttributes {
        let &Attributes { num_layer, layer_idx, quant_bit, quant_type, quant_group, num_repeat, cache_mode, .. } =
            attributes;
        SharedAttributes {
            num_layer,
            layer_idx,
            quant_bit,
            quant_type,
            quant_group,
            num_repeat,
            cache_mode: Some(cache_mode),
        }
    }

    fn kvlen(&self) -> i64 {
        let starts = indices(&self.kvstarts);
        starts.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or_default()
    }

    fn broken_rules(call: &Call<'_, Attributes, Self>) -> Vec<&'static str> {
        rules::dynamic_batching(call).err().unwrap_or_default()
    }

    fn plan(call: &Call<'_, Attributes, Self>, behavior: &Behavior) -> Plan {
        let batch = Batch::new(call);
        let [_, num_heads, head_dim] = *call.inputs.current_key.shape() else {
            unreachable!("a legal call's current_key has three axes");
        };
        // A row that a wrong plan puts outside of a tensor is left out.
        let mut rows_outside = false;
        let mut inside = |row: i64, rows: usize| {
            let row = usize::try_from(row).ok().filter(|&row| row < rows);
            rows_outside |= row.is_none();
            row
        };
        let output_rows = usize::try_from(batch.output_rows(behavior)).unwrap_or_default();
        let mut sequence = |b: usize| {
            let (first, position) = batch.current(behavior, b);
            let place = |t: i64| [0, batch.slot(behavior.slots, b, t)];
            let stores = (0..batch.stored(behavior, b))
                .filter_map(|t| Some((inside(first.saturating_add(t), batch.tokens)?, place(position + t))));
            let stores = stores.collect();
            let (first, start_pos) = (batch.output_row(behavior, b), batch.start_pos[b]);
            let loads = batch.loaded(behavior, b).zip(first..).filter_map(|(t, row)| {
                let current = (t >= start_pos).then(|| batch.seqstarts[b] + t - start_pos);
                let current = current.and_then(|row| usize::try_from(row).ok());
                Some(Load { row: inside(row, output_rows)?, place: place(t), current })
            });
            Sequence { stores, loads: loads.collect() }
        };
        let sequences = (0..batch.len()).map(&mut sequence).collect();
        let num_repeat = call.attributes.num_repeat as usize;
        let cache = heads(call, behavior.layout);
        let scale = match call.scale.map(Tensor::shape) {
            Some(&[layers, kvs, heads]) if call.attributes.quant_type == STATIC_SCALES => {
                Heads::of_static_scales([layers, kvs, heads], &cache)
            }
            _ => heads(call, behavior.scale_layout),
        };
        Plan {
            sequences,
            rows_outside,
            output_shape: vec![output_rows, num_heads * num_repeat, head_dim],
            num_heads,
            head_dim,
            cache,
            scale,
        }
    }
}

impl Batch {
    pub(super) fn new(call: &Call<'_, Attributes, StepInputs>) -> Self {
        let (inputs, paged) = (call.inputs, call.attributes.cache_mode == 1);
        let max_t = match (CacheLayout::from_code(call.attributes.cache_layout), call.cache.shape()) {
            (Some(layout), &[a, b, c, d, e]) => layout.dims([a, b, c, d, e]).max_t,
            _ => 0,
        };
        Self {
            seqstarts: indices(&inputs.seqstarts),
            kvstarts: indices(&inputs.kvstarts),
            cachestarts: indices(&inputs.cachestarts),
            start_pos: indices(&inputs.start_pos),
            max_seqlen: number(&inputs.max_seqlen),
            max_kvlen: number(&inputs.max_kvlen),
            paged,
            max_p: if paged { inputs.cachestarts.shape().get(1).copied().unwrap_or_default() } else { 0 },
            page_size: call.attributes.page_size,
            max_t,
            tokens: inputs.current_key.shape().first().copied().unwrap_or_default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.start_pos.len()
    }

    pub(super) fn seqlen(&self, b: usize) -> i64 {
        self.seqstarts[b + 1].wrapping_sub(self.seqstarts[b])
    }

    /// How many tokens a sequence has: those before this call, and those that it stores.
    pub(super) fn kvlen(&self, b: usize) -> i64 {
        self.kvstarts[b + 1].wrapping_sub(self.kvstarts[b])
    }

    /// The slot of the token at a position of a sequence; where there is no such page, one outside of any cache.
    pub(super) fn slot(&self, slots: Slots, b: usize, t: i64) -> i64 {
        if !self.paged {
            return self.cachestarts[b].saturating_add(t);
        }
        let size = self.page_size;
        let (p, offset) = (t / size, t % size);
        let page = |p: i64| match usize::try_from(p) {
            Ok(p) if p < self.max_p => self.cachestarts[b * self.max_p + p],
            _ => i64::MIN / 2,
        };
        match slots {
            Slots::PagesTimesSize => page(p).saturating_mul(size).saturating_add(offset),
            Slots::FirstPageAlone => page(0).saturating_add(t),
            Slots::PagesAlignedDown => (page(p) - page(p).rem_euclid(size)).saturating_add(offset),
            Slots::ByMode => page(p).saturating_add(offset),
        }
    }

    /// How many tokens a sequence stores, by other decisions.
    fn stored(&self, behavior: &Behavior, b: usize) -> i64 {
        let all = self.seqlen(b);
        match behavior.stored_tokens {
            StoredTokens::All => all,
            StoredTokens::EqualLengths => self.tokens as i64 / self.len() as i64,
            StoredTokens::MaxSeqlen => self.max_seqlen.min(self.tokens as i64),
        }
    }

    /// The row of its first current token in `current_key` and `current_value`, and the position of that.
    fn current(&self, behavior: &Behavior, b: usize) -> (i64, i64) {
        let row = match behavior.stored_tokens {
            StoredTokens::EqualLengths => self.stored(behavior, b) * b as i64,
            _ => self.seqstarts[b],
        };
        let position = match behavior.position {
            Position::StartPos => self.start_pos[b],
            Position::Zero => 0,
            Position::OfFirstSequence => self.start_pos[0],
        };
        (row, position)
    }

    fn loaded(&self, behavior: &Behavior, b: usize) -> std::ops::Range<i64> {
        let kvlen = self.kvlen(b);
        match behavior.loaded_tokens {
            LoadedTokens::All => 0..kvlen,
            LoadedTokens::CurrentAlone => self.start_pos[b]..kvlen,
            LoadedTokens::MaxKvlen => 0..self.max_kvlen.min(self.max_t as i64),
        }
    }

    /// The row of the first of them in `key` and `value`.
    fn output_row(&self, behavior: &Behavior, b: usize) -> i64 {
        match (behavior.loaded_tokens, behavior.output_rows) {
            (LoadedTokens::CurrentAlone, _) | (_, OutputRows::Seqstarts) => self.seqstarts[b],
            (_, OutputRows::Kvstarts) => self.kvstarts[b],
            (_, OutputRows::Padded) => self.longest() * b as i64,
        }
    }

    fn output_rows(&self, behavior: &Behavior) -> i64 {
        match (behavior.loaded_tokens, behavior.output_rows) {
            (LoadedTokens::CurrentAlone, _) => self.seqstarts[self.len()],
            (_, OutputRows::Padded) => self.longest() * self.len() as i64,
            _ => self.kvstarts[self.len()],
        }
    }

    /// The tokens of the longest sequence.
    fn longest(&self) -> i64 {
        (0..self.len()).map(|b| self.kvlen(b)).max().unwrap_or(0)
    }
}

/// The heads of a legal call's cache, or scale.
fn heads(call: &Call<'_, Attributes, StepInputs>, layout: Layout) -> Heads {
    let (code, &[a, b, c, d, e]) = (call.attributes.cache_layout as usize, call.cache.shape()) else {
        unreachable!("a legal call's cache has five axes");
    };
    let dims = CacheLayout::ALL[code].dims([a, b, c, d, e]);
    let taken = match layout {
        Layout::First => 0,
        Layout::OfAttribute => code,
    };
    Heads::new(CacheLayout::ALL[taken].axes().into_iter().map(|axis| match axis {
        Axis::Token => (1, dims.len(axis)),
        Axis::Layer => (2, dims.len(axis)),
        Axis::Kv => (3, dims.len(axis)),
        Axis::Head => (4, dims.len(axis)),
    }))
}

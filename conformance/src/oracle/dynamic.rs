//! Dynamic batching: what a call stores and loads, and where.

use std::cell::Cell;

use kvcache_schema::{Attributes, Axis as LayoutAxis, CacheLayout};

use crate::case::StepInputs;
use crate::oracle::batch::Batch;
use crate::oracle::call::{Call, Inputs, SharedAttributes};
use crate::oracle::decisions::{
    Behavior, CurrentRows, Layout, LoadedTokens, OutputRows, Outside, Position, StoredTokens,
};
use crate::oracle::plan::{Axis, Load, Place, Plan, Rows, Sequence};
use crate::oracle::refusal::Refusal;
use crate::oracle::rules;

impl Inputs<Attributes> for StepInputs {
    fn shared(attributes: &Attributes) -> SharedAttributes {
        let &Attributes { num_layer, layer_idx, quant_bit, quant_group, num_repeat, cache_mode, .. } = attributes;
        SharedAttributes { num_layer, layer_idx, quant_bit, quant_group, num_repeat, cache_mode: Some(cache_mode) }
    }

    fn kvlen(&self) -> i64 {
        let starts = crate::oracle::call::indices(&self.kvstarts);
        starts.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or_default()
    }

    fn broken_rules(call: &Call<'_, Attributes, Self>) -> Vec<Refusal> {
        rules::broken_rules(call)
    }

    fn plan(call: &Call<'_, Attributes, Self>, behavior: &Behavior) -> Plan {
        let batch = Batch::new(call);
        let [_, num_heads, head_dim] = *call.inputs.current_key.shape() else {
            unreachable!("a legal call's current_key has three axes");
        };
        let place = |slots, b, position| Place { sequence: 0, slot: batch.slot_by(slots, b, position) };
        // A row that a wrong plan puts outside of a tensor is left out.
        let rows_outside = Cell::new(false);
        let row = |first: i64, i: i64, rows: usize| {
            let row = match behavior.outside {
                Outside::Clamped if rows > 0 => first.saturating_add(i).clamp(0, rows as i64 - 1),
                _ => first.saturating_add(i),
            };
            let row = usize::try_from(row).ok().filter(|&row| row < rows);
            rows_outside.set(rows_outside.get() || row.is_none());
            row
        };
        let output_rows = usize::try_from(batch.output_rows(behavior)).unwrap_or_default();
        let sequence = |b: usize| {
            let (first, position) = (batch.current_row(behavior, b), batch.position(behavior, b));
            let stored_slots = behavior.stored_slots.unwrap_or(behavior.slots);
            let stores = (0..batch.stored(behavior, b))
                .filter_map(|t| Some((row(first, t, batch.tokens)?, place(stored_slots, b, position + t))));
            let loads = batch.loaded(behavior, b).enumerate().filter_map(|(i, t)| {
                let row = row(batch.output_row(behavior, b), i as i64, output_rows)?;
                let is_current = t >= batch.start_pos[b];
                let current = is_current.then(|| batch.seqstarts[b] + t - batch.start_pos[b]);
                let current = current.and_then(|current| usize::try_from(current).ok());
                Some(Load { row, place: place(behavior.slots, b, t), current })
            });
            Sequence { stores: stores.collect(), loads: loads.collect() }
        };
        let sequences = (0..batch.len()).map(sequence).collect();
        let num_repeat = call.attributes.num_repeat as usize;
        Plan {
            sequences,
            rows_outside: rows_outside.get(),
            output_shape: vec![output_rows, behavior.repeats.output_heads(num_heads, num_repeat), head_dim],
            num_heads,
            head_dim,
            cache: rows(call, behavior.layout, behavior.n),
            scale: rows(call, behavior.scale_layout, behavior.n),
        }
    }
}

impl Batch {
    /// How many tokens a sequence stores.
    fn stored(&self, behavior: &Behavior, b: usize) -> i64 {
        let all = self.seqlen(b);
        match behavior.stored_tokens {
            StoredTokens::All => all,
            StoredTokens::EqualLengths => self.equal_length(self.tokens as i64),
            StoredTokens::First => all.min(behavior.n as i64),
            StoredTokens::LastAlone => all.min(1),
            StoredTokens::LastMissing => all - 1,
            StoredTokens::MaxSeqlen => self.max_seqlen.min(self.tokens as i64),
        }
    }

    /// The row of its first current token in `current_key` and `current_value`.
    fn current_row(&self, behavior: &Behavior, b: usize) -> i64 {
        let first = self.seqstarts[b];
        match (behavior.stored_tokens, behavior.current_rows) {
            (StoredTokens::EqualLengths, _) => self.equal_length(self.tokens as i64) * b as i64,
            (StoredTokens::LastAlone, _) => (self.seqstarts[b + 1] - 1).max(first),
            (_, CurrentRows::Seqstarts) => first,
            (_, CurrentRows::Zero) => 0,
            (_, CurrentRows::Kvstarts) => self.kvstarts[b],
            (_, CurrentRows::Padded) => self.max_seqlen.saturating_mul(b as i64),
        }
    }

    /// The position of its first current token.
    fn position(&self, behavior: &Behavior, b: usize) -> i64 {
        let start_pos = self.start_pos[b];
        match (behavior.stored_tokens, behavior.position) {
            (StoredTokens::LastAlone, _) => (self.kvlen(b) - 1).max(start_pos),
            (_, Position::StartPos) => start_pos,
            (_, Position::Zero) => 0,
            (_, Position::OfFirstSequence) => self.start_pos[0],
            (_, Position::OneFurther) => start_pos + 1,
        }
    }

    /// The positions that it loads.
    fn loaded(&self, behavior: &Behavior, b: usize) -> std::ops::Range<i64> {
        let (kvlen, n) = (self.kvlen(b), behavior.n as i64);
        match behavior.loaded_tokens {
            LoadedTokens::All => 0..kvlen,
            LoadedTokens::First => 0..kvlen.min(n),
            LoadedTokens::WholeMultiples => 0..kvlen / n * n,
            LoadedTokens::CurrentAlone => self.start_pos[b]..kvlen,
            LoadedTokens::PastAlone => 0..self.start_pos[b],
            LoadedTokens::LastMissing => 0..kvlen - 1,
            LoadedTokens::FullPages => 0..if self.paged { kvlen / self.page_size * self.page_size } else { kvlen },
            LoadedTokens::NotOfIdle => 0..if self.seqlen(b) == 0 { 0 } else { kvlen },
            LoadedTokens::MaxKvlen => 0..self.max_kvlen.min(self.max_t as i64),
        }
    }

    /// The row of the first of them in `key` and `value`.
    fn output_row(&self, behavior: &Behavior, b: usize) -> i64 {
        match (behavior.loaded_tokens, behavior.output_rows) {
            (LoadedTokens::CurrentAlone, _) | (_, OutputRows::Seqstarts) => self.seqstarts[b],
            (_, OutputRows::Kvstarts) => self.kvstarts[b],
            (_, OutputRows::Padded) => self.longest() * b as i64,
            (_, OutputRows::Zero) => 0,
        }
    }

    /// How many rows `key` and `value` have.
    fn output_rows(&self, behavior: &Behavior) -> i64 {
        match (behavior.loaded_tokens, behavior.output_rows) {
            (LoadedTokens::CurrentAlone, _) => self.seqstarts[self.len()],
            (_, OutputRows::Padded) => self.longest() * self.len() as i64,
            _ => self.kvstarts[self.len()],
        }
    }
}

/// The heads of a legal call's cache, or scale.
fn rows(call: &Call<'_, Attributes, StepInputs>, layout: Layout, n: usize) -> Rows {
    let (code, &[a, b, c, d, e]) = (call.attributes.cache_layout as usize, call.cache.shape()) else {
        unreachable!("a legal call's cache has five axes");
    };
    let dims = CacheLayout::ALL[code].dims([a, b, c, d, e]);
    let taken = match layout {
        Layout::First => 0,
        Layout::Swapped if code == n / 10 => n % 10,
        Layout::Swapped if code == n % 10 => n / 10,
        _ => code,
    };
    Rows::of(CacheLayout::ALL[taken].axes().into_iter().map(|axis| {
        let of: fn(&mut Rows) -> &mut Axis = match axis {
            LayoutAxis::Token => |rows| &mut rows.slot,
            LayoutAxis::Layer => |rows| &mut rows.layer,
            LayoutAxis::Kv => |rows| &mut rows.kv,
            LayoutAxis::Head => |rows| &mut rows.head,
        };
        (dims.len(axis), of)
    }))
}

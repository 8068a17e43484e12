//! Dynamic batching: which tokens a ragged batch has, and the slots that they have in the cache.

use std::cell::Cell;

use kvcache_schema::{Attributes, Axis as LayoutAxis, CacheLayout};

use crate::case::StepInputs;
use crate::oracle::behavior::{Behavior, Outside};
use crate::oracle::inputs::{Call, Inputs, SharedAttributes, indices};
use crate::oracle::plan::{Axis, Load, Place, Plan, Rows, Sequence, Store};
use crate::oracle::refusal::Refusal;
use crate::oracle::rules;
use crate::tensor::Tensor;

/// A layout for each value of `cache_layout`.
pub type Layouts = [CacheLayout; CacheLayout::ALL.len()];

/// The decisions of dynamic batching.
#[derive(Debug, Clone, Copy)]
pub struct Dynamic {
    /// The layout that `cache` has: the one of the attribute's code.
    pub cache_layouts: Layouts,
    /// The same for `scale`.
    pub scale_layouts: Layouts,
    /// The slot of the token at a position of a sequence.
    pub slot: fn(&Batch, b: usize, position: i64) -> i64,
    /// The slot of a current token where it is stored: the same, where there is no such function.
    pub stored_slot: Option<fn(&Batch, b: usize, position: i64) -> i64>,
    /// The slots of the layer that are cleared before anything is stored: none.
    pub cleared_first: fn(&Batch) -> Vec<i64>,
    /// The same when everything is stored, and nothing loaded yet.
    pub cleared_last: fn(&Batch) -> Vec<i64>,
    /// How many tokens a sequence stores: seqlen.
    pub stored: fn(&Batch, b: usize) -> i64,
    /// The row of its first current token in `current_key` and `current_value`.
    pub current_row: fn(&Batch, b: usize) -> i64,
    /// The position of its first current token.
    pub position: fn(&Batch, b: usize) -> i64,
    /// The positions that it loads: all.
    pub loaded: fn(&Batch, b: usize) -> std::ops::Range<i64>,
    /// The row of the first of them in `key` and `value`.
    pub output_row: fn(&Batch, b: usize) -> i64,
    /// How many rows `key` and `value` have.
    pub output_rows: fn(&Batch) -> i64,
    /// Whether a call that breaks this rule is accepted nevertheless: never.
    pub accepts: fn(&Batch, &Refusal) -> bool,
    /// Whether a legal call is refused nevertheless: never.
    pub refuses: fn(&Batch) -> bool,
}

impl Default for Dynamic {
    fn default() -> Self {
        Self {
            cache_layouts: CacheLayout::ALL,
            scale_layouts: CacheLayout::ALL,
            slot: Batch::slot,
            stored_slot: None,
            cleared_first: |_| Vec::new(),
            cleared_last: |_| Vec::new(),
            stored: Batch::seqlen,
            current_row: |batch, b| batch.seqstarts[b],
            position: |batch, b| batch.start_pos[b],
            loaded: |batch, b| 0..batch.kvlen(b),
            output_row: |batch, b| batch.kvstarts[b],
            output_rows: |batch| batch.kvstarts[batch.len()],
            accepts: |_, _| false,
            refuses: |_| false,
        }
    }
}

/// The index inputs of a call, and what they depend on.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the fields have the specification's names")]
pub struct Batch {
    pub seqstarts: Vec<i64>,
    pub kvstarts: Vec<i64>,
    /// Row-major where it is a page table.
    pub cachestarts: Vec<i64>,
    pub start_pos: Vec<i64>,
    pub max_seqlen: i64,
    pub max_kvlen: i64,
    /// Whether `cache_mode` is 1.
    pub paged: bool,
    /// The entries of a sequence in the page table (MaxP); 0 in offset mode.
    pub max_p: usize,
    pub page_size: i64,
    pub attributes: Attributes,
    /// The slots of the cache (MaxT), as far as its shape says.
    pub max_t: usize,
    /// The tokens of `current_key`.
    pub tokens: usize,
    /// The last axis of `current_key`.
    pub head_dim: usize,
    /// Whether the bounds come as scalars, and not in shape `[1]`.
    pub scalar_bounds: [bool; 2],
    /// Whether there is a scale.
    pub has_scale: bool,
}

impl Batch {
    /// The index inputs of a call, of whatever shapes they are.
    pub(super) fn new(call: &Call<'_, Attributes, StepInputs>, behavior: &Behavior) -> Self {
        let read = |tensor: &Tensor| indices(tensor, behavior);
        let inputs = call.inputs;
        let bound = |tensor: &Tensor| read(tensor).first().copied().unwrap_or_default();
        let scalar = |tensor: &Tensor| tensor.shape().is_empty();
        let paged = call.attributes.cache_mode == 1;
        let max_t = match (CacheLayout::from_code(call.attributes.cache_layout), call.cache.shape()) {
            (Some(layout), &[a, b, c, d, e]) => layout.dims([a, b, c, d, e]).max_t,
            _ => 0,
        };
        Self {
            seqstarts: read(&inputs.seqstarts),
            kvstarts: read(&inputs.kvstarts),
            cachestarts: read(&inputs.cachestarts),
            start_pos: read(&inputs.start_pos),
            max_seqlen: bound(&inputs.max_seqlen),
            max_kvlen: bound(&inputs.max_kvlen),
            paged,
            max_p: if paged { inputs.cachestarts.shape().get(1).copied().unwrap_or_default() } else { 0 },
            page_size: call.attributes.page_size,
            attributes: call.attributes.clone(),
            max_t,
            tokens: inputs.current_key.shape().first().copied().unwrap_or_default(),
            head_dim: inputs.current_key.shape().last().copied().unwrap_or_default(),
            scalar_bounds: [scalar(&inputs.max_seqlen), scalar(&inputs.max_kvlen)],
            has_scale: call.scale.is_some(),
        }
    }

    /// The number of sequences.
    pub fn len(&self) -> usize {
        self.start_pos.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many tokens a sequence stores.
    pub fn seqlen(&self, b: usize) -> i64 {
        self.seqstarts[b + 1].wrapping_sub(self.seqstarts[b])
    }

    /// How many tokens a sequence has: those before this call, and those that it stores.
    pub fn kvlen(&self, b: usize) -> i64 {
        self.kvstarts[b + 1].wrapping_sub(self.kvstarts[b])
    }

    /// The entry of the page table for a page of a sequence; of a page that it does not have, a slot outside of any
    /// cache.
    pub fn page(&self, b: usize, page: i64) -> i64 {
        let inside = usize::try_from(page).ok().filter(|&page| page < self.max_p);
        inside.and_then(|page| self.cachestarts.get(b * self.max_p + page).copied()).unwrap_or(i64::MIN / 2)
    }

    /// The slot of the token at a position of a sequence.
    pub fn slot(&self, b: usize, position: i64) -> i64 {
        if self.paged {
            self.page(b, position / self.page_size).saturating_add(position % self.page_size)
        } else {
            self.cachestarts[b].saturating_add(position)
        }
    }

    /// The slots that a sequence uses of one of its pages.
    pub fn slots_used(&self, b: usize, page: usize) -> i64 {
        let before = i128::from(self.page_size) * page as i128;
        (i128::from(self.kvlen(b)) - before).clamp(0, self.page_size.into()) as i64
    }
}

/// The attributes that both operators have.
pub(super) fn attributes_shared(attributes: &Attributes) -> SharedAttributes {
    let &Attributes { num_layer, layer_idx, quant_bit, quant_group, num_repeat, .. } = attributes;
    SharedAttributes { num_layer, layer_idx, quant_bit, quant_group, num_repeat }
}

impl Inputs<Attributes> for StepInputs {
    fn of<T>(dynamic: T, _static_batching: T) -> T {
        dynamic
    }

    fn read_attributes(attributes: &Attributes, behavior: &Behavior) -> Attributes {
        let mut read = attributes.clone();
        for spec in &Attributes::SPEC {
            let known = read.set(spec.name, (behavior.attribute)(spec.value(attributes)));
            debug_assert!(known, "an attribute's own name");
        }
        read
    }

    fn named_attributes(attributes: &Attributes) -> Vec<(&'static str, i64)> {
        Attributes::SPEC.iter().map(|spec| (spec.name, spec.value(attributes))).collect()
    }

    fn shared(attributes: &Attributes) -> SharedAttributes {
        attributes_shared(attributes)
    }

    fn current(&self) -> [&Tensor; 2] {
        [&self.current_key, &self.current_value]
    }

    fn broken_rules(call: &Call<'_, Attributes, Self>, behavior: &Behavior) -> Vec<Refusal> {
        rules::broken_rules(call, behavior)
    }

    fn plan(call: &Call<'_, Attributes, Self>, behavior: &Behavior) -> Plan {
        let dynamic = &behavior.dynamic;
        let batch = Batch::new(call, behavior);
        let [_, num_heads, head_dim] = *call.inputs.current_key.shape() else {
            unreachable!("a legal call's current_key has three axes");
        };
        let at = |b: usize, position: i64| Place { sequence: 0, slot: (dynamic.slot)(&batch, b, position) };
        // A row that a wrong plan puts outside of a tensor is left out.
        let row =
            |first: i64, i: i64, rows: usize| usize::try_from(first.saturating_add(i)).ok().filter(|&row| row < rows);
        let rows_outside = Cell::new(false);
        let row = |first: i64, i: i64, rows: usize| {
            let row = match behavior.outside {
                Outside::Clamped if rows > 0 => Some(first.saturating_add(i).clamp(0, rows as i64 - 1) as usize),
                _ => row(first, i, rows),
            };
            rows_outside.set(rows_outside.get() || row.is_none());
            row
        };
        let output_rows = usize::try_from((dynamic.output_rows)(&batch)).unwrap_or_default();
        let sequence = |b: usize| {
            let (first, position) = ((dynamic.current_row)(&batch, b), (dynamic.position)(&batch, b));
            let stored_slot = dynamic.stored_slot.unwrap_or(dynamic.slot);
            let stores = (0..(dynamic.stored)(&batch, b)).filter_map(|t| {
                let row = row(first, t, batch.tokens)?;
                Some(Store { row, place: Place { sequence: 0, slot: stored_slot(&batch, b, position + t) } })
            });
            let loads = (dynamic.loaded)(&batch, b).enumerate().filter_map(|(i, t)| {
                let current = (t >= batch.start_pos[b]).then(|| batch.seqstarts[b] + t - batch.start_pos[b]);
                let row = row((dynamic.output_row)(&batch, b), i as i64, output_rows)?;
                Some(Load { row, place: at(b, t), current: current.and_then(|current| usize::try_from(current).ok()) })
            });
            Sequence { stores: stores.collect(), loads: loads.collect() }
        };
        let places = |slots: Vec<i64>| slots.into_iter().map(|slot| Place { sequence: 0, slot }).collect();
        let num_repeat = call.attributes.num_repeat as usize;
        let sequences = (0..batch.len()).map(sequence).collect();
        Plan {
            sequences,
            cleared_first: places((dynamic.cleared_first)(&batch)),
            cleared_last: places((dynamic.cleared_last)(&batch)),
            rows_outside: rows_outside.get(),
            output_shape: vec![output_rows, (behavior.output_heads)(num_heads, num_repeat), head_dim],
            num_heads,
            head_dim,
            cache: rows(call, &dynamic.cache_layouts),
            scale: rows(call, &dynamic.scale_layouts),
        }
    }

    fn accepts(call: &Call<'_, Attributes, Self>, refusal: &Refusal, behavior: &Behavior) -> bool {
        (behavior.dynamic.accepts)(&Batch::new(call, behavior), refusal)
    }

    fn refuses(call: &Call<'_, Attributes, Self>, behavior: &Behavior) -> bool {
        (behavior.dynamic.refuses)(&Batch::new(call, behavior))
    }
}

/// The heads of a legal call's cache, or scale, in the layout that stands for the attribute's in `layouts`.
fn rows(call: &Call<'_, Attributes, StepInputs>, layouts: &Layouts) -> Rows {
    let (code, &[a, b, c, d, e]) = (call.attributes.cache_layout as usize, call.cache.shape()) else {
        unreachable!("a legal call's cache has five axes");
    };
    let dims = CacheLayout::ALL[code].dims([a, b, c, d, e]);
    let mut rows = Rows { sequence: Axis { len: 1, stride: 0 }, ..Rows::default() };
    let mut stride = 1;
    for axis in layouts[code].axes().into_iter().rev() {
        let len = dims.len(axis);
        *match axis {
            LayoutAxis::Token => &mut rows.slot,
            LayoutAxis::Layer => &mut rows.layer,
            LayoutAxis::Kv => &mut rows.kv,
            LayoutAxis::Head => &mut rows.head,
        } = Axis { len, stride };
        stride *= len;
    }
    rows
}

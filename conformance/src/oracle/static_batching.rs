//! Static batching: which tokens a batch has, and the places that they have in the cache.

use kvcache_schema::{StaticAttributes, StaticAxis, StaticCacheLayout};

use crate::oracle::behavior::Behavior;
use crate::oracle::inputs::{Call, Inputs, SharedAttributes, indices};
use crate::oracle::plan::{Axis, Load, Place, Plan, Rows, Sequence, Store};
use crate::oracle::refusal::Refusal;
use crate::oracle::static_rules;
use crate::static_batching::StepInputs;
use crate::tensor::Tensor;

/// The decisions of static batching.
#[derive(Debug, Clone, Copy)]
pub struct StaticBatching {
    /// The layout that `cache` has, for each value of `cache_layout`: the one of that code.
    pub cache_layouts: [StaticCacheLayout; 2],
    /// The same for `scale`.
    pub scale_layouts: [StaticCacheLayout; 2],
    /// The order of the axes of sequences and of positions in memory: that of the layout, not turned around.
    pub axes_swapped: bool,
    /// The position of the first current token, by `start_pos`.
    pub position: fn(start_pos: i64) -> i64,
    /// The positions that are loaded and given back, by `start_pos` and S: all.
    pub loaded: fn(start_pos: i64, seqlen: i64) -> std::ops::Range<i64>,
    /// Whether a call that breaks this rule is accepted nevertheless: never.
    pub accepts: fn(&StaticShape, &Refusal) -> bool,
    /// Whether a legal call is refused nevertheless: never.
    pub refuses: fn(&StaticShape) -> bool,
}

impl Default for StaticBatching {
    fn default() -> Self {
        Self {
            cache_layouts: StaticCacheLayout::ALL,
            scale_layouts: StaticCacheLayout::ALL,
            axes_swapped: false,
            position: |start_pos| start_pos,
            loaded: |start_pos, seqlen| 0..start_pos + seqlen,
            accepts: |_, _| false,
            refuses: |_| false,
        }
    }
}

/// What a call of static batching says of its size.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the fields have the specification's names")]
pub struct StaticShape {
    /// Sequences (B).
    pub batch: usize,
    /// Current tokens of each (S).
    pub seqlen: usize,
    pub start_pos: i64,
    /// Sequences of the cache (MaxB).
    pub max_b: usize,
    /// Whether `start_pos` is a scalar, and not of shape `[1]`.
    pub scalar_start_pos: bool,
    /// The last axis of `current_key`.
    pub head_dim: usize,
    /// Whether there is a scale.
    pub has_scale: bool,
    pub quant_bit: i64,
    pub quant_group: i64,
}

/// The attributes that both operators have.
pub(super) fn attributes_shared(attributes: &StaticAttributes) -> SharedAttributes {
    let &StaticAttributes { num_layer, layer_idx, quant_bit, quant_group, num_repeat, .. } = attributes;
    SharedAttributes { num_layer, layer_idx, quant_bit, quant_group, num_repeat }
}

/// The value of `start_pos`; 0 if it has none.
pub(super) fn start_pos(inputs: &StepInputs, behavior: &Behavior) -> i64 {
    indices(&inputs.start_pos, behavior).first().copied().unwrap_or_default()
}

/// What a call says of its size, of whatever shapes its tensors are.
fn static_shape(call: &Call<'_, StaticAttributes, StepInputs>, behavior: &Behavior) -> StaticShape {
    let axis = |axis: usize| call.inputs.current_key.shape().get(axis).copied().unwrap_or_default();
    let max_b = match (StaticCacheLayout::from_code(call.attributes.cache_layout), call.cache.shape()) {
        (Some(layout), &[a, b, c, d, e, f]) => layout.dims([a, b, c, d, e, f]).max_b,
        _ => 0,
    };
    StaticShape {
        batch: axis(0),
        seqlen: axis(1),
        start_pos: start_pos(call.inputs, behavior),
        max_b,
        scalar_start_pos: call.inputs.start_pos.shape().is_empty(),
        head_dim: axis(3),
        has_scale: call.scale.is_some(),
        quant_bit: call.attributes.quant_bit,
        quant_group: call.attributes.quant_group,
    }
}

impl Inputs<StaticAttributes> for StepInputs {
    fn of<T>(_dynamic: T, static_batching: T) -> T {
        static_batching
    }

    fn read_attributes(attributes: &StaticAttributes, behavior: &Behavior) -> StaticAttributes {
        let mut read = attributes.clone();
        for spec in &StaticAttributes::SPEC {
            let known = read.set(spec.name, (behavior.attribute)(spec.value(attributes)));
            debug_assert!(known, "an attribute's own name");
        }
        read
    }

    fn named_attributes(attributes: &StaticAttributes) -> Vec<(&'static str, i64)> {
        StaticAttributes::SPEC.iter().map(|spec| (spec.name, spec.value(attributes))).collect()
    }

    fn shared(attributes: &StaticAttributes) -> SharedAttributes {
        attributes_shared(attributes)
    }

    fn current(&self) -> [&Tensor; 2] {
        [&self.current_key, &self.current_value]
    }

    fn broken_rules(call: &Call<'_, StaticAttributes, Self>, behavior: &Behavior) -> Vec<Refusal> {
        static_rules::broken_rules(call, behavior)
    }

    fn plan(call: &Call<'_, StaticAttributes, Self>, behavior: &Behavior) -> Plan {
        let decisions = &behavior.static_batching;
        let [batch, seqlen, num_heads, head_dim] = *call.inputs.current_key.shape() else {
            unreachable!("a legal call's current_key has four axes");
        };
        let start_pos = start_pos(call.inputs, behavior);
        let first = (decisions.position)(start_pos);
        let positions = (decisions.loaded)(start_pos, seqlen as i64);
        let loaded = positions.clone().count();
        let at = |b: usize, position: i64| Place { sequence: b as i64, slot: position };
        let sequence = |b: usize| Sequence {
            stores: (0..seqlen).map(|t| Store { row: b * seqlen + t, place: at(b, first + t as i64) }).collect(),
            loads: (positions.clone().enumerate())
                .map(|(i, t)| Load {
                    row: b * loaded + i,
                    place: at(b, t),
                    current: usize::try_from(t - start_pos).ok().map(|t| b * seqlen + t),
                })
                .collect(),
        };
        let num_repeat = call.attributes.num_repeat as usize;
        Plan {
            sequences: (0..batch).map(sequence).collect(),
            cleared_first: Vec::new(),
            cleared_last: Vec::new(),
            rows_outside: false,
            output_shape: vec![batch, loaded, (behavior.output_heads)(num_heads, num_repeat), head_dim],
            num_heads,
            head_dim,
            cache: rows(call, &decisions.cache_layouts, decisions.axes_swapped),
            scale: rows(call, &decisions.scale_layouts, decisions.axes_swapped),
        }
    }

    fn accepts(call: &Call<'_, StaticAttributes, Self>, refusal: &Refusal, behavior: &Behavior) -> bool {
        (behavior.static_batching.accepts)(&static_shape(call, behavior), refusal)
    }

    fn refuses(call: &Call<'_, StaticAttributes, Self>, behavior: &Behavior) -> bool {
        (behavior.static_batching.refuses)(&static_shape(call, behavior))
    }
}

/// The heads of a legal call's cache, or scale, in the layout that stands for the attribute's in `layouts`.
fn rows(call: &Call<'_, StaticAttributes, StepInputs>, layouts: &[StaticCacheLayout; 2], axes_swapped: bool) -> Rows {
    let (code, &[a, b, c, d, e, f]) = (call.attributes.cache_layout as usize, call.cache.shape()) else {
        unreachable!("a legal call's cache has six axes");
    };
    let dims = StaticCacheLayout::ALL[code].dims([a, b, c, d, e, f]);
    let mut rows = Rows::default();
    let mut stride = 1;
    for axis in layouts[code].axes().into_iter().rev() {
        let axis = match axis {
            StaticAxis::Batch if axes_swapped => StaticAxis::Position,
            StaticAxis::Position if axes_swapped => StaticAxis::Batch,
            axis => axis,
        };
        let len = dims.len(axis);
        *match axis {
            StaticAxis::Batch => &mut rows.sequence,
            StaticAxis::Position => &mut rows.slot,
            StaticAxis::Layer => &mut rows.layer,
            StaticAxis::Kv => &mut rows.kv,
            StaticAxis::Head => &mut rows.head,
        } = Axis { len, stride };
        stride *= len;
    }
    rows
}

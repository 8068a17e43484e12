//! Static batching: what a call stores and loads, and where.

use kvcache_schema::{StaticAttributes, StaticAxis, StaticCacheLayout};

use crate::oracle::call::{Call, Heads, Inputs, Load, Plan, Sequence, SharedAttributes, number};
use crate::oracle::decisions::{Behavior, Layout, LoadedTokens, Position};
use crate::oracle::rules;
use crate::static_batching::StepInputs;

impl Inputs<StaticAttributes> for StepInputs {
    fn shared(attributes: &StaticAttributes) -> SharedAttributes {
        let &StaticAttributes { num_layer, layer_idx, quant_bit, quant_type, quant_group, num_repeat, .. } = attributes;
        SharedAttributes { num_layer, layer_idx, quant_bit, quant_type, quant_group, num_repeat, cache_mode: None }
    }

    fn kvlen(&self) -> i64 {
        let seqlen = self.current_key.shape().get(1).copied().unwrap_or_default();
        number(&self.start_pos).saturating_add(seqlen as i64)
    }

    fn broken_rules(call: &Call<'_, StaticAttributes, Self>) -> Vec<&'static str> {
        rules::static_batching(call).err().unwrap_or_default()
    }

    fn plan(call: &Call<'_, StaticAttributes, Self>, behavior: &Behavior) -> Plan {
        let [batch, seqlen, num_heads, head_dim] = *call.inputs.current_key.shape() else {
            unreachable!("a legal call's current_key has four axes");
        };
        let start_pos = number(&call.inputs.start_pos);
        let stored = if behavior.position == Position::Zero { 0 } else { start_pos };
        let current_alone = behavior.loaded_tokens == LoadedTokens::CurrentAlone;
        let positions = if current_alone { start_pos } else { 0 }..start_pos + seqlen as i64;
        let loaded = positions.clone().count();
        let sequence = |b: usize| Sequence {
            stores: (0..seqlen).map(|t| (b * seqlen + t, [b as i64, stored + t as i64])).collect(),
            loads: (positions.clone().enumerate())
                .map(|(i, t)| Load {
                    row: b * loaded + i,
                    place: [b as i64, t],
                    current: usize::try_from(t - start_pos).ok().map(|t| b * seqlen + t),
                })
                .collect(),
        };
        let num_repeat = call.attributes.num_repeat as usize;
        Plan {
            sequences: (0..batch).map(sequence).collect(),
            rows_outside: false,
            output_shape: vec![batch, loaded, num_heads * num_repeat, head_dim],
            num_heads,
            head_dim,
            cache: heads(call, behavior.layout),
            scale: heads(call, behavior.scale_layout),
        }
    }
}

/// The heads of a legal call's cache, or scale.
fn heads(call: &Call<'_, StaticAttributes, StepInputs>, layout: Layout) -> Heads {
    let (code, &[a, b, c, d, e, f]) = (call.attributes.cache_layout as usize, call.cache.shape()) else {
        unreachable!("a legal call's cache has six axes");
    };
    let dims = StaticCacheLayout::ALL[code].dims([a, b, c, d, e, f]);
    let taken = match layout {
        Layout::First => 0,
        Layout::OfAttribute => code,
    };
    Heads::new(StaticCacheLayout::ALL[taken].axes().into_iter().map(|axis| match axis {
        StaticAxis::Batch => (0, dims.len(axis)),
        StaticAxis::Position => (1, dims.len(axis)),
        StaticAxis::Layer => (2, dims.len(axis)),
        StaticAxis::Kv => (3, dims.len(axis)),
        StaticAxis::Head => (4, dims.len(axis)),
    }))
}

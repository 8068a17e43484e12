//! What a script has called, by the names and arguments that a binding has for it, and what came of each call: a script
//! in a form that another language can replay.

use kvcache_manager::schema::QuantBit;
use kvcache_manager::{Error, KeyForm, MaskSpec, Mode, SeqId, Stats, Step};
use serde_json::{Value, json};

use crate::manager::run::{HEAD_DIM, NUM_HEADS, NUM_LAYER, Run};
use crate::manager::script::Cache;
use crate::manager::types::TYPES;

impl Run {
    /// A sequence's number: how many there were before it.
    pub fn number(&mut self, seq: SeqId) -> Value {
        let number = self.created.iter().rposition(|&other| other == seq);
        if number.is_none() {
            self.created.push(seq);
        }
        json!(number.unwrap_or(self.created.len() - 1))
    }

    /// Notes a call: `call` and `args`, then `result` or `error`, and what is known of all sequences then.
    pub fn note(&mut self, call: &str, args: Value, outcome: Result<Value, &Error>) {
        let Some(mut trace) = self.trace.take() else { return };
        let mut sequences = Vec::new();
        for id in self.ids.clone() {
            let (number, manager) = (self.number(id), &self.manager);
            let positions: Vec<i64> = manager.positions(id).unwrap().collect();
            let slots: Vec<usize> = manager.slots(id).unwrap().collect();
            let pending: Vec<i64> = manager.pending(id).unwrap().collect();
            sequences.push(json!([number, positions, slots, pending]));
        }
        let (name, outcome) = match outcome {
            Ok(result) => ("result", result),
            Err(error) => ("error", json!(error.kind())),
        };
        let stats = stats(&self.manager.stats());
        trace.push(json!({ "call": call, "args": args, name: outcome, "sequences": sequences, "stats": stats }));
        self.trace = Some(trace);
    }
}

fn stats(stats: &Stats) -> Value {
    json!({
        "used": stats.used, "free": stats.free, "cached": stats.cached, "shared": stats.shared, "head": stats.head,
        "largest_free_run": stats.largest_free_run, "n_kv": stats.n_kv, "prefix_hits": stats.prefix_hits,
    })
}

/// The tensors of a step, and where its mask is visible.
pub fn tensors(step: &Step<'_>) -> Value {
    let mut key_positions = Vec::new();
    step.key_positions_into(&mut key_positions);
    let shape = step.mask_shape(&MaskSpec::causal());
    let mut mask = vec![0.0_f32; shape.iter().product()];
    step.mask_into(&MaskSpec::causal(), &mut mask).unwrap();
    let visible: Vec<usize> = (0..mask.len()).filter(|&i| mask[i] == 0.0).collect();
    json!({
        "token_ids": step.token_ids(), "positions": step.positions(), "seqstarts": step.seqstarts(),
        "kvstarts": step.kvstarts(), "start_pos": step.start_pos(), "max_seqlen": step.max_seqlen(),
        "cachestarts": step.cachestarts().iter().collect::<Vec<_>>(), "max_kvlen": step.max_kvlen(),
        "key_positions": key_positions, "order": step.order(), "cached": step.cached(),
        "decoding_batches": step.decoding_batches(), "mask_shape": shape[1..], "visible": visible,
    })
}

impl Cache {
    /// The arguments of `CacheSpec` in Python.
    pub fn arguments(&self) -> Value {
        let spec = self.spec();
        let (bit, group, scale, cache) = TYPES[self.types];
        let bit = scale.map_or(0, |_| if bit == QuantBit::Eight { 8 } else { 4 });
        let mode = match self.mode {
            Mode::Runs => "runs",
            Mode::Cells => "cells",
            _ => "paged",
        };
        let rope = self.turns.map(|turns| {
            let style = if turns.neox { "neox" } else { "gptj" };
            json!({"n_rot": turns.n_rot, "base": turns.base, "scale": turns.scale, "style": style})
        });
        json!({
            "num_layers": NUM_LAYER, "num_kv_heads": NUM_HEADS, "head_dim": HEAD_DIM, "max_tokens": self.max_t,
            "dtype": scale.unwrap_or(cache).name(), "cache_dtype": cache.name(),
            "scale_dtype": scale.map(|scale| scale.name()), "quant_bit": bit, "quant_group": group.max(1), "cache_layout": self.layout.code(), "mode": mode,
            "page_size": self.page_size(), "max_pages": self.max_pages, "rope": rope, "window": spec.window(),
            "key_form": if spec.key_form() == KeyForm::Raw { "raw" } else { "roped" }, "sink": spec.sink(),
            "slack": spec.slack(), "pad": self.pad, "defrag_threshold": self.defrag_threshold,
            "shift_limit": spec.shift_limit(), "prefix_sharing": self.prefix_sharing,
        })
    }
}

//! The operators, and a call of each.

use std::collections::BTreeMap;

use kvcache_conformance::Tensor;
use kvcache_conformance::backends::{self, check_attention, read, write};
use kvcache_op::{
    AttentionAttributes, AttentionBackend, Attributes, Backend, CacheAttentionAttributes, Error, KeyValueCache,
    Outputs, Serial, StaticAttributes, StaticInputs, StaticKeyValueCache, TensorMut,
};

pub type Numbers = BTreeMap<String, i64>;
pub type Operands = BTreeMap<String, Tensor>;

pub struct Operator {
    pub file: &'static str,
    /// The attributes of the call, but for mode and layout.
    pub attributes: &'static [(&'static str, i64)],
    /// What formulas come to in the call. No two lengths are equal where formulas could be confused.
    pub lengths: &'static [(&'static str, usize)],
    /// The values of the indices; `cachestarts` by mode.
    pub indices: &'static [(&'static str, &'static [i64])],
    pub run: fn(&Numbers, &mut Operands) -> Result<(), Error>,
}

/// Two sequences, of 1 and 2 new tokens after 3 and 0.
const RAGGED: [(&str, &[i64]); 6] = [
    ("seqstarts", &[0, 1, 3]),
    ("kvstarts", &[0, 4, 6]),
    ("start_pos", &[3, 0]),
    ("decoding_batches", &[1]),
    ("max_seqlen", &[2]),
    ("max_kvlen", &[4]),
];
pub const CACHESTARTS: [&[i64]; 2] = [&[7, 4], &[9, 0, -1, -1, 2, -1, -1, -1]];

/// What formulas come to in calls of these.
const LENGTHS: [(&str, usize); 15] = [
    ("B", 2),
    ("B+1", 3),
    ("seqstarts[B]", 3),
    ("kvstarts[B]", 6),
    ("L", 3),
    ("2", 2),
    ("MaxT", 11),
    ("MaxP", 4),
    ("H", 7),
    ("Hq", 14),
    ("Hk", 7),
    ("Dh", 12),
    ("Dh/quant_group", 3),
    ("H*num_repeat", 35),
    ("W", 9),
];

pub static OPERATORS: [Operator; 4] = [
    Operator {
        file: "key_value_cache.yaml",
        attributes: &[
            ("num_layer", 3),
            ("layer_idx", 2),
            ("quant_bit", 8),
            ("quant_group", 4),
            ("num_repeat", 5),
            ("page_size", 2),
        ],
        lengths: &LENGTHS,
        indices: &RAGGED,
        run: run_stored,
    },
    Operator {
        file: "multi_head_attention.yaml",
        attributes: &[("num_heads", 14), ("num_kv_heads", 7), ("head_dim", 12)],
        lengths: &LENGTHS,
        indices: &RAGGED,
        run: run_packed,
    },
    Operator {
        file: "multi_head_cache_attention.yaml",
        attributes: &[
            ("num_heads", 14),
            ("num_kv_heads", 7),
            ("head_dim", 12),
            ("num_layer", 3),
            ("layer_idx", 2),
            ("quant_bit", 8),
            ("quant_group", 4),
            ("page_size", 2),
        ],
        lengths: &LENGTHS,
        indices: &RAGGED,
        run: run_fused,
    },
    Operator {
        file: "static_key_value_cache.yaml",
        attributes: &[("num_layer", 4), ("layer_idx", 2), ("quant_bit", 8), ("quant_group", 4), ("num_repeat", 5)],
        lengths: &[
            ("B", 2),
            ("S", 3),
            ("start_pos+S", 8),
            ("L", 4),
            ("2", 2),
            ("MaxB", 6),
            ("MaxS", 9),
            ("H", 7),
            ("H*num_repeat", 35),
            ("Dh", 12),
            ("Dh/quant_group", 3),
        ],
        indices: &[("start_pos", &[5])],
        run: run_static,
    },
];

/// The attributes of an operator with those of a call. An unknown name is a mistake of this test or of the schema.
fn with<A: Default>(set: impl Fn(&mut A, &str, i64) -> bool, numbers: &Numbers) -> A {
    let mut attributes = A::default();
    for (name, &value) in numbers {
        assert!(set(&mut attributes, name, value), "{name} is no attribute");
    }
    attributes
}

fn run_stored(attributes: &Numbers, operands: &mut Operands) -> Result<(), Error> {
    with_cache(operands, |operands, cache, scale, outputs| {
        KeyValueCache::new(with(Attributes::set, attributes))?.run(
            &backends::stored(operands),
            cache,
            scale,
            outputs,
            &Serial,
        )
    })
}

/// Runs a call that attends; afterwards what it has written is among the operands again.
fn run_attention(attributes: CacheAttentionAttributes, operands: &mut Operands) -> Result<(), Error> {
    let mut output = operands.remove("attn_output").unwrap();
    let [mut cache, mut scale, mut mass] = ["cache", "scale", "attention_mass"].map(|name| operands.remove(name));
    let reference = (AttentionBackend::Reference, Backend::Reference);
    let result = check_attention(&attributes, operands, [cache.as_mut(), scale.as_mut()], reference).and_then(|call| {
        match &mut mass {
            Some(mass) => call.run_with_mass(write(&mut output), write(mass), &Serial),
            None => call.run(write(&mut output), &Serial),
        }
    });
    let written = [("attn_output", Some(output)), ("cache", cache), ("scale", scale), ("attention_mass", mass)];
    operands.extend(written.into_iter().filter_map(|(name, tensor)| Some((name.to_owned(), tensor?))));
    result
}

fn run_packed(attributes: &Numbers, operands: &mut Operands) -> Result<(), Error> {
    let attention = with(AttentionAttributes::set, attributes);
    run_attention(CacheAttentionAttributes { attention, ..Default::default() }, operands)
}

fn run_fused(attributes: &Numbers, operands: &mut Operands) -> Result<(), Error> {
    run_attention(with(CacheAttentionAttributes::set, attributes), operands)
}

fn run_static(attributes: &Numbers, operands: &mut Operands) -> Result<(), Error> {
    with_cache(operands, |operands, cache, scale, outputs| {
        let input = |name: &str| read(&operands[name]);
        let inputs = StaticInputs {
            current_key: input("current_key"),
            current_value: input("current_value"),
            start_pos: input("start_pos"),
        };
        StaticKeyValueCache::new(with(StaticAttributes::set, attributes))?.run(&inputs, cache, scale, outputs, &Serial)
    })
}

/// Runs a call that stores and loads; afterwards what it has written is among the operands again.
fn with_cache(
    operands: &mut Operands,
    run: impl FnOnce(&Operands, TensorMut<'_>, Option<TensorMut<'_>>, Outputs<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let [mut cache, mut key, mut value] = ["cache", "key", "value"].map(|name| operands.remove(name).unwrap());
    let mut scale = operands.remove("scale");
    let outputs = Outputs { key: write(&mut key), value: write(&mut value) };
    let result = run(operands, write(&mut cache), scale.as_mut().map(write), outputs);
    operands.extend([("cache", cache), ("key", key), ("value", value)].map(|(name, x)| (name.to_owned(), x)));
    operands.extend(scale.map(|scale| ("scale".to_owned(), scale)));
    result
}

//! Typical work: decoding and prefill, over caches of every kind.

use std::path::PathBuf;

use half::f16;
use kvcache_schema::{Attributes, CacheDims, CacheLayout, CacheMode, ElementType};

use crate::case::{Case, Expected, NanRule, Step, StepInputs, Types};
use crate::tensor::Tensor;

/// The bytes that a call must read and write: of the current keys and values, of the cache and its scale, and of the
/// outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that are read.
    pub read: u64,
    /// Bytes that are written.
    pub written: u64,
}

/// A call to be timed: the second of two layers, heads of 128 elements.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// Sequences in the batch.
    batch: usize,
    /// New tokens of each.
    seqlen: usize,
    /// Tokens that each has already.
    start_pos: usize,
    /// Heads of the cache.
    num_heads: usize,
    /// Heads of the outputs for each of the cache.
    num_repeat: usize,
    cache_mode: CacheMode,
    cache_layout: CacheLayout,
    types: Types,
}

const HEAD_DIM: usize = 128;
const NUM_LAYER: usize = 2;
const QUANT_GROUP: usize = 8;
const PAGE_SIZE: usize = 128;

/// One token for each of four sequences of 256, in float16 in pages: more than the nearer caches hold, and yet little
/// enough for the oracle.
const DECODE: Workload = Workload {
    name: "decode",
    batch: 4,
    seqlen: 1,
    start_pos: 255,
    num_heads: 8,
    num_repeat: 1,
    cache_mode: CacheMode::Paged,
    cache_layout: CacheLayout::HeadMajor,
    types: HALF,
};

const HALF: Types = Types { t1: ElementType::Float16, t2: ElementType::Float16, t3: None };
const SINGLE: Types = Types { t1: ElementType::Float32, t2: ElementType::Float32, t3: None };
const INT8: Types = Types { t1: ElementType::Float16, t2: ElementType::Int8, t3: Some(ElementType::Float16) };
const INT4: Types = Types { t1: ElementType::Float16, t2: ElementType::Int4, t3: Some(ElementType::Float16) };

/// The calls that are timed.
pub fn workloads() -> Vec<Workload> {
    let prefill = Workload { name: "prefill", batch: 1, seqlen: 512, start_pos: 0, ..DECODE };
    let offset = Workload { cache_mode: CacheMode::Offset, cache_layout: CacheLayout::TokenMajor, ..DECODE };
    vec![
        DECODE,
        Workload { name: "decode, one short sequence", batch: 1, start_pos: 15, ..DECODE },
        Workload { name: "decode, offset, token-major", ..offset },
        Workload { name: "decode, float32", types: SINGLE, ..DECODE },
        Workload { name: "decode, int8", types: INT8, ..DECODE },
        Workload { name: "decode, int4", types: INT4, ..DECODE },
        Workload { name: "decode, heads repeated", num_heads: 2, num_repeat: 4, ..DECODE },
        prefill,
        Workload { name: "prefill, offset, token-major", batch: 1, seqlen: 512, start_pos: 0, ..offset },
        Workload { name: "prefill, int8", types: INT8, ..prefill },
        Workload { name: "prefill, int4", types: INT4, ..prefill },
    ]
}

impl Workload {
    /// What the call must read and write, whatever the implementation.
    pub fn traffic(&self) -> Traffic {
        let rows = |tokens: usize, bytes: usize| (2 * self.batch * tokens * self.num_heads * bytes) as u64;
        let Types { t1, t2, t3 } = self.types;
        let bytes = |element: ElementType, len: usize| len * element.bits() / 8;
        let row = bytes(t1, HEAD_DIM);
        let cached = bytes(t2, HEAD_DIM) + t3.map_or(0, |t3| bytes(t3, HEAD_DIM / QUANT_GROUP));
        let (seqlen, kvlen) = (self.seqlen, self.kvlen());
        Traffic {
            read: rows(seqlen, row) + rows(kvlen, cached),
            written: rows(seqlen, cached) + rows(kvlen, row * self.num_repeat),
        }
    }

    /// The call as a case, which expects `expected`.
    pub fn case(&self, expected: Expected) -> Case {
        let mut random = Random(self.name.len() as u64);
        let (batch, kvlen) = (self.batch, self.kvlen());
        let pages = kvlen.div_ceil(PAGE_SIZE);
        let max_t = batch * pages * PAGE_SIZE;
        let Types { t1, t2, t3 } = self.types;
        let cache_shape = |inner| {
            let dims = CacheDims { max_t, num_layer: NUM_LAYER, num_heads: self.num_heads, inner };
            self.cache_layout.shape(dims).to_vec()
        };
        let scale = t3.map(|t3| random.scale(t3, cache_shape(HEAD_DIM / QUANT_GROUP)));
        let cache = random.values(t2, cache_shape(HEAD_DIM));
        let rows = || vec![batch * self.seqlen, self.num_heads, HEAD_DIM];
        let (current_key, current_value) = (random.values(t1, rows()), random.values(t1, rows()));
        let starts = |len: usize| indices(vec![batch + 1], (0..=batch).map(|b| b * len));
        let cachestarts = match self.cache_mode {
            CacheMode::Offset => indices(vec![batch], (0..batch).map(|b| b * pages * PAGE_SIZE)),
            // No sequence has neighboring pages.
            CacheMode::Paged => {
                let page = move |b: usize| (0..pages).map(move |i| (i * batch + b) * PAGE_SIZE);
                indices(vec![batch, pages], (0..batch).flat_map(page))
            }
        };
        let inputs = StepInputs {
            current_key,
            current_value,
            seqstarts: starts(self.seqlen),
            kvstarts: starts(kvlen),
            cachestarts,
            start_pos: indices(vec![batch], std::iter::repeat_n(self.start_pos, batch)),
            max_seqlen: indices(vec![], [self.seqlen]),
            max_kvlen: indices(vec![], [kvlen]),
        };
        let attributes = Attributes {
            num_layer: NUM_LAYER as i64,
            layer_idx: NUM_LAYER as i64 - 1,
            quant_bit: if t3.is_some() { t2.bits() as i64 } else { 0 },
            quant_group: QUANT_GROUP as i64,
            num_repeat: self.num_repeat as i64,
            cache_mode: self.cache_mode as i64,
            cache_layout: self.cache_layout.code(),
            page_size: PAGE_SIZE as i64,
        };
        Case {
            name: self.name.to_owned(),
            folder: PathBuf::new(),
            about: "Typical work, to be timed.".to_owned(),
            rules: Vec::new(),
            types: self.types,
            attributes,
            nan: NanRule::Exact,
            cache,
            scale,
            steps: vec![Step { inputs, expected }],
        }
    }

    fn kvlen(&self) -> usize {
        self.start_pos + self.seqlen
    }
}

fn tensor(element: ElementType, shape: Vec<usize>, bytes: &[u8]) -> Tensor {
    match Tensor::new(element, shape, bytes) {
        Some(tensor) => tensor,
        None => unreachable!("as many bytes as the shape has"),
    }
}

fn indices(shape: Vec<usize>, values: impl IntoIterator<Item = usize>) -> Tensor {
    let bytes: Vec<u8> = values.into_iter().flat_map(|value| (value as i64).to_le_bytes()).collect();
    tensor(ElementType::Int64, shape, &bytes)
}

/// Random numbers, the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Floats from -4 to 4, or any integers.
    fn values(&mut self, element: ElementType, shape: Vec<usize>) -> Tensor {
        self.floats_or_bytes(element, shape, |random| (random as f32 / (1u32 << 30) as f32 - 1.0) * 4.0)
    }

    /// Scales around 1/64.
    fn scale(&mut self, element: ElementType, shape: Vec<usize>) -> Tensor {
        self.floats_or_bytes(element, shape, |random| (random as f32 / (1u32 << 31) as f32 + 0.5) / 64.0)
    }

    /// A few thousand random elements, again and again: a prime number, so that no axis has the same period.
    fn floats_or_bytes(&mut self, element: ElementType, shape: Vec<usize>, float: impl Fn(u64) -> f32) -> Tensor {
        const PERIOD: usize = 4099;
        let period: Vec<u8> = match element {
            ElementType::Float32 => (0..PERIOD).flat_map(|_| float(self.next()).to_le_bytes()).collect(),
            ElementType::Float16 => (0..PERIOD).flat_map(|_| f16::from_f32(float(self.next())).to_le_bytes()).collect(),
            _ => (0..PERIOD).map(|_| self.next() as u8).collect(),
        };
        let len = shape.iter().product::<usize>() * element.bits() / 8;
        let mut bytes = period.repeat(len.div_ceil(period.len()));
        bytes.truncate(len);
        tensor(element, shape, &bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_what_the_tensors_of_a_call_have() {
        for workload in workloads() {
            let case = workload.case(Expected::Refusal { kind: String::new(), mentions: Vec::new() });
            let bytes = |tensor: &Tensor| tensor.bytes().len() as u64;
            let inputs = &case.steps[0].inputs;
            let current = bytes(&inputs.current_key) + bytes(&inputs.current_value);
            let slots = case.cache.shape().iter().product::<usize>() / (NUM_LAYER * 2 * workload.num_heads * HEAD_DIM);
            // Of one layer, for each slot of the cache.
            let cached = (bytes(&case.cache) + case.scale.as_ref().map_or(0, bytes)) / (NUM_LAYER * slots) as u64;
            let (stored, loaded) = (workload.batch * workload.seqlen, workload.batch * workload.kvlen());
            let outputs = current / stored as u64 * (loaded * workload.num_repeat) as u64;
            let expected =
                Traffic { read: current + cached * loaded as u64, written: cached * stored as u64 + outputs };
            assert_eq!(workload.traffic(), expected, "{}", workload.name);
        }
    }
}

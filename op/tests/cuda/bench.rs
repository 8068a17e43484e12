//! Calls beside device-to-device copies of as many bytes: with `--bench` large ones on a GPU, else small ones, to see
//! that this works.
//!
//! A figure is the median of replays of a CUDA graph that holds a call on several sets of tensors, so that the device's
//! cache holds none of what it reads, and the host is out of the way. First an answer is compared with the CPU's.

use std::slice;

use kvcache_conformance::random::{Plan, Unstructured};
use kvcache_conformance::{Call, Operator, Tensor, run_cases};
use kvcache_op::cuda::cudarc::driver::CudaGraph;
use kvcache_op::cuda::cudarc::driver::sys::CUevent_flags;
use kvcache_op::cuda::primary_context;
use kvcache_op::schema::TypeCombination;
use kvcache_op::{CacheLayout, CacheMode, ElementType};
use libtest_mimic::{Failed, Measurement};

use crate::attention::is_near_the_cpu;
use crate::call::{How, Uploaded, Written, captured};
use crate::device::{Gpu, Result};
use crate::golden::OnDevice;

/// Heads of a cache, as models of eight billion parameters have them.
const NUM_HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const GROUP: usize = 8;
const PAGE_SIZE: usize = 128;

/// Sets of tensors hold several times what the device's cache holds, if one alone does not.
const ROTATED_BYTES: usize = 256 << 20;
const SAMPLES: usize = 21;
/// Microseconds that a sample takes at least, in replays: short ones say little.
const SAMPLE_US: f32 = 300.0;

/// A call of sequences that are all alike.
#[derive(Debug, Clone, Copy)]
pub struct Bench {
    types: TypeCombination,
    layout: CacheLayout,
    batch: usize,
    /// Past and current tokens of each sequence.
    past: usize,
    current: usize,
    /// Query heads for each key head, or none: then the call is one of `KeyValueCache`.
    queries: usize,
}

/// Decoding and prompts of every type, decoding in every layout, and one token, below which no call comes.
pub fn all() -> Vec<Bench> {
    let half = ElementType::Float16;
    let types = [(0, half), (8, ElementType::Int8), (4, ElementType::Int4)].map(|(quant_bit, t2)| {
        let t3 = (quant_bit > 0).then_some(half);
        TypeCombination { quant_bit, t1: half, t2, t3 }
    });
    let layout = CacheLayout::HeadMajor;
    let decode =
        |types, batch, kvlen: usize, queries| Bench { types, layout, batch, past: kvlen - 1, current: 1, queries };
    let mut benches = vec![Bench { past: 0, ..decode(types[0], 1, 1, 0) }];
    for queries in [0, 4] {
        for types in types {
            let large = decode(types, 64, 4096, queries);
            benches.extend([decode(types, 1, 1024, queries), decode(types, 1, 32768, queries), large]);
            benches.push(Bench { past: 0, current: 2048, ..decode(types, 1, 1, queries) });
        }
        let others = CacheLayout::ALL.into_iter().filter(|other| *other != layout);
        benches.extend(others.map(|layout| Bench { layout, ..decode(types[0], 64, 4096, queries) }));
    }
    benches
}

impl Bench {
    pub fn name(&self) -> String {
        let Self { types, layout, batch, past, current, queries } = *self;
        let operator = if queries > 0 { "attention" } else { "cache" };
        let kind = if past == 0 { "prompt" } else { "decode" };
        format!("{operator}-{kind}-B{batch}-kvlen{}-layout{}-{}", past + current, layout.code(), types.t2)
    }

    /// The call. Its pages are all over the cache.
    fn call(&self) -> Call {
        let Self { types, layout, batch, past, current, queries } = *self;
        let random = &mut Unstructured::seed(1);
        let plan = Plan {
            types,
            layout,
            mode: CacheMode::Paged,
            num_heads: NUM_HEADS,
            inner: HEAD_DIM / GROUP,
            group: GROUP,
            max_head_dim: HEAD_DIM,
            num_repeat: 1,
            num_layer: 1,
            layer_idx: 0,
            page_size: PAGE_SIZE,
            sequences: vec![(past, current); batch],
            moderate: true,
        };
        let mut call = plan.call(random);
        let max_p = (past + current).div_ceil(PAGE_SIZE);
        let mut pages: Vec<_> = (0..batch * max_p).map(|page| (page * PAGE_SIZE) as i64).collect();
        random.shuffle(&mut pages);
        call.inputs.insert("cachestarts", Tensor::of_indices(&pages, &[batch, max_p]));
        call.inputs.insert("max_seqlen", Tensor::of_indices(&[current as i64], &[1]));
        if queries > 0 {
            let heads = NUM_HEADS * queries;
            call.operator = Operator::MultiHeadCacheAttention;
            let mut attributes = call.operator.attributes();
            attributes.iter_mut().for_each(|(name, value)| *value = *call.attributes.get(name).unwrap_or(value));
            let sizes = [("num_heads", heads), ("num_kv_heads", NUM_HEADS), ("head_dim", HEAD_DIM)];
            attributes.extend(sizes.map(|(name, size)| (name, size as i64)));
            (call.attributes, call.floats) = (attributes, call.operator.floats());
            let query = call.inputs["current_key"].bytes().repeat(queries);
            let query = Tensor::new(types.t1, vec![batch * current, heads, HEAD_DIM], &query);
            let decoding = if current == 1 { batch } else { 0 };
            call.inputs.insert("query", query.expect("the bytes of its shape"));
            call.inputs.insert("decoding_batches", Tensor::of_indices(&[decoding as i64], &[1]));
        }
        call
    }

    /// What a call reads and writes; of attention, keys and values.
    fn moved(&self) -> usize {
        let Self { types: TypeCombination { t1, t2, t3, .. }, batch, past, current, queries, .. } = *self;
        let values = 2 * NUM_HEADS * HEAD_DIM;
        let cached = t2.byte_len(values) + t3.map_or(0, |t3| t3.byte_len(values / GROUP));
        let loaded = batch * (past + current) * cached;
        if queries > 0 {
            return loaded;
        }
        loaded + batch * (current * (cached + t1.byte_len(values)) + (past + current) * t1.byte_len(values))
    }

    /// Whether it runs as a test too, one for each operator: other tests prove the answers.
    pub fn is_tested(&self) -> bool {
        self.batch > 1 && self.layout == CacheLayout::HeadMajor && self.types.quant_bit == 8
    }

    /// Measures; as a test a small call, whose time means nothing.
    pub fn run(self, is_test: bool) -> std::result::Result<Option<Measurement>, Failed> {
        let gpu = Gpu::capturable(primary_context(0)?)?;
        if is_test {
            Self { batch: 2, past: self.past.min(300), current: self.current.min(3), ..self }.measure(&gpu, 2, 1)?;
            return Ok(None);
        }
        let moved = self.moved();
        let [us, copy_us] = self.measure(&gpu, (ROTATED_BYTES / moved + 1).min(64), SAMPLES)?;
        println!("{us:.2} us, {:.0} GB/s, {:.2} of a copy's speed", moved as f32 / us / 1e3, copy_us / us);
        Ok(Some(Measurement { avg: (us * 1e3) as u64, variance: 0 }))
    }

    /// The microseconds of a call, and those of a copy of as many bytes.
    fn measure(&self, gpu: &Gpu, sets: usize, samples: usize) -> Result<[f32; 2]> {
        let replays = self.replays(gpu, sets)?;
        let us = median_us(gpu, &replays.graph, sets, samples)?;
        gpu.nothing_found()?;
        drop(replays);
        let half = self.moved().div_ceil(2);
        let pair = |_| Ok((gpu.stream.alloc_zeros::<u8>(half)?, gpu.stream.alloc_zeros::<u8>(half)?));
        let mut pairs = (0..sets).map(pair).collect::<Result<Vec<_>>>()?;
        gpu.stream.synchronize()?;
        let copies = || pairs.iter_mut().try_for_each(|(from, to)| Ok(gpu.stream.memcpy_dtod(from, to)?));
        Ok([us, median_us(gpu, &captured(gpu, copies)?, sets, samples)?])
    }

    /// A graph of the call on several sets of tensors, whose answer has been compared.
    fn replays(&self, gpu: &Gpu, sets: usize) -> Result<Replays> {
        let (call, how) = (self.call(), How::default());
        if self.queries > 0 {
            let got = Uploaded::new(gpu, &call, how)?.run(gpu, &call, how)?;
            assert!(is_near_the_cpu(&call, &got[0])?, "{}: the answer is not the CPU's", self.name());
        } else {
            let report = run_cases(&OnDevice { gpu, how }, slice::from_ref(&call.clone().case()));
            assert!(report.passed() == 1, "{}: {report}", self.name());
        }
        let uploaded = (0..sets).map(|_| Uploaded::new(gpu, &call, how)).collect::<Result<Vec<_>>>()?;
        let ready = uploaded.iter().map(|set| set.check(gpu, &call, None)?.with_outputs(gpu, self.types.t1, how));
        let (ready, written): (Vec<_>, Vec<_>) = ready.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let launch = || ready.into_iter().zip(&written).try_for_each(|(call, written)| call.launch(gpu, written));
        let graph = captured(gpu, launch)?;
        Ok(Replays { graph, _tensors: (uploaded, written) })
    }
}

/// A graph of calls, and the memory that it uses.
struct Replays {
    graph: CudaGraph,
    _tensors: (Vec<Uploaded>, Vec<Written>),
}

/// The median time in microseconds of one of the `count` pieces of work of a graph.
fn median_us(gpu: &Gpu, graph: &CudaGraph, count: usize, samples: usize) -> Result<f32> {
    let event = || gpu.context.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
    let (start, end) = (event()?, event()?);
    let sample = |replays: usize| -> Result<f32> {
        start.record(&gpu.stream)?;
        for _ in 0..replays {
            graph.launch()?;
        }
        end.record(&gpu.stream)?;
        end.synchronize()?;
        Ok(start.elapsed_ms(&end)? * 1e3 / (replays * count) as f32)
    };
    let first = sample(1)?;
    if samples == 1 {
        return Ok(first);
    }
    let replays = (SAMPLE_US / (sample(1)? * count as f32)).clamp(1.0, 200.0) as usize;
    let mut samples = (0..samples).map(|_| sample(replays)).collect::<Result<Vec<_>>>()?;
    samples.sort_by(f32::total_cmp);
    Ok(samples[samples.len() / 2])
}

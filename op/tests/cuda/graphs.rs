//! CUDA graphs: captured once, replayed with other values at the same addresses.

use kvcache_conformance::backends::read;
use std::error::Error;
use std::sync::Arc;

use kvcache_conformance::{Tensor, Tensors};
use kvcache_op::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use kvcache_op::cuda::cudarc::driver::{CudaContext, CudaGraph};
use kvcache_op::cuda::{OutputRows, cudarc};
use kvcache_op::schema::{CacheDims, TypeCombination};
use kvcache_op::{Attributes, CacheLayout, ElementType, KeyValueCache};
use libtest_mimic::Failed;

use crate::device::{Buffer, Gpu, Outputs, UNTOUCHED, Uploaded, launch};
use crate::oracle::Oracle;
use crate::status::of_numbers;

const NUM_HEADS: usize = 2;
const HEAD_DIM: usize = 32;
const MAX_T: usize = 48;

/// A stream that can be captured. Its slices are not tracked by events, which a capture must not wait for.
pub fn capturable() -> Result<Gpu, Box<dyn Error>> {
    let context = kvcache_op::cuda::primary_context(0)?;
    // SAFETY: these tests use one stream.
    unsafe { context.disable_event_tracking() };
    let gpu = Gpu::in_context(context)?;
    Ok(Gpu { stream: gpu.context.new_stream()?, ..gpu })
}

pub fn begin(gpu: &Gpu) -> Result<(), cudarc::driver::DriverError> {
    gpu.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
}

pub fn end(gpu: &Gpu) -> Result<CudaGraph, Box<dyn Error>> {
    Ok(gpu.stream.end_capture(CUgraphInstantiate_flags(0))?.ok_or("there is no graph")?)
}

fn tensor(element: ElementType, shape: &[usize], phase: usize) -> Tensor {
    let mut tensor = Tensor::zeros(element, shape.to_vec()).expect("small");
    let numbers = (0..).map(|i| ((i + phase * 1000) as f32 * 0.37).sin() * 3.0);
    match element {
        ElementType::Float32 => {
            tensor
                .bytes_mut()
                .chunks_exact_mut(4)
                .zip(numbers)
                .for_each(|(to, x)| to.copy_from_slice(&x.to_le_bytes()));
        }
        ElementType::Float16 => {
            let halves = numbers.map(half::f16::from_f32);
            tensor.bytes_mut().chunks_exact_mut(2).zip(halves).for_each(|(to, x)| to.copy_from_slice(&x.to_le_bytes()));
        }
        _ => tensor.bytes_mut().iter_mut().zip(phase..).for_each(|(to, i)| *to = (i * 7) as u8),
    }
    tensor
}

/// A node of these types on a paged cache.
fn attributes(quant_bit: i64) -> Attributes {
    Attributes { quant_bit, num_repeat: 2, cache_mode: 1, cache_layout: 3, page_size: 8, ..Attributes::default() }
}

fn state(types: TypeCombination) -> (Tensor, Option<Tensor>) {
    let dims = CacheDims { max_t: MAX_T, num_layer: 1, num_heads: NUM_HEADS, inner: HEAD_DIM };
    let cache = tensor(types.t2, &CacheLayout::HeadMajor.shape(dims), 5);
    let dims = CacheDims { inner: HEAD_DIM / 8, ..dims };
    (cache, types.t3.map(|t3| tensor(t3, &CacheLayout::HeadMajor.shape(dims), 6)))
}

/// Two sequences, of so many current and past tokens, in tensors of `rows` rows.
fn step(types: TypeCombination, rows: usize, seqlen: [i64; 2], start_pos: [i64; 2], phase: usize) -> Tensors {
    let current = [rows, NUM_HEADS, HEAD_DIM];
    let starts = |[a, b]: [i64; 2]| of_numbers(&[0, a, a + b], &[3]);
    Tensors::from([
        ("current_key", tensor(types.t1, &current, phase)),
        ("current_value", tensor(types.t1, &current, phase + 1)),
        ("seqstarts", starts(seqlen)),
        ("kvstarts", starts([start_pos[0] + seqlen[0], start_pos[1] + seqlen[1]])),
        ("cachestarts", of_numbers(&[32, 3, 20, 11, 40, -1], &[2, 3])),
        ("start_pos", of_numbers(&start_pos, &[2])),
        ("max_seqlen", of_numbers(&[24], &[])),
        ("max_kvlen", of_numbers(&[24], &[])),
    ])
}

/// What a step makes of the state: it changes `cache` and `scale`, and these are its outputs.
fn of_the_reference(
    attributes: &Attributes,
    inputs: &Tensors,
    (cache, scale): (&mut Tensor, Option<&mut Tensor>),
) -> Outputs {
    Oracle { attributes, inputs, cache, scale }.run().0
}

fn same(name: &str, got: &Tensor, expected: &Tensor) -> Result<(), Failed> {
    if got == expected { Ok(()) } else { Err(format!("{name} differs from the reference's").into()) }
}

/// A call whose outputs have their memory already.
struct Captured<'a> {
    gpu: &'a Gpu,
    op: &'a KeyValueCache,
    inputs: &'a Tensors,
    key: Buffer,
    value: Buffer,
}

impl<'a> Captured<'a> {
    fn new(
        gpu: &'a Gpu,
        op: &'a KeyValueCache,
        types: TypeCombination,
        inputs: &'a Tensors,
        rows: usize,
    ) -> Result<Self, Box<dyn Error>> {
        let shape = [rows, NUM_HEADS * 2, HEAD_DIM];
        let output = || Buffer::untouched(gpu, types.t1, &shape, 0);
        Ok(Self { gpu, op, inputs, key: output()?, value: output()? })
    }

    fn launch(
        &mut self,
        uploaded: &Uploaded,
        rows: OutputRows<'_>,
        state: (&mut Buffer, Option<&mut Buffer>),
    ) -> Result<(), Box<dyn Error>> {
        launch(self.gpu, self.op, (self.inputs, uploaded), rows, state, [&mut self.key, &mut self.value])
    }
}

pub fn replayed_while_sequences_grow(_: &Gpu) -> Result<(), Failed> {
    let gpu = capturable()?;
    let types = TypeCombination::LEGAL[7]; // float16, int8, float32
    assert_eq!(types.quant_bit, 8);
    let attributes = attributes(types.quant_bit);
    let op = KeyValueCache::new(attributes.clone())?;
    op.prepare_device(types.t1, types.t2, types.t3, &gpu.stream)?;
    let (mut host_cache, mut host_scale) = state(types);
    let mut cache = Buffer::of(&gpu, &host_cache, 0)?;
    let mut scale = host_scale.as_ref().map(|scale| Buffer::of(&gpu, scale, 0)).transpose()?;

    // Room for 4 new tokens and 32 altogether; what the steps have is less.
    const ROWS: usize = 4;
    const OUTPUT_ROWS: usize = 32;
    let steps = [
        ([4, 0], [0, 0]),
        ([1, 3], [4, 0]),
        ([1, 1], [5, 3]),
        ([0, 1], [6, 4]),
        ([2, 2], [6, 5]),
        ([0, 0], [0, 0]),
        ([1, 1], [8, 7]),
    ];
    let inputs = step(types, ROWS, [0, 0], [0, 0], 0);
    let mut uploaded = Uploaded::new(&gpu, &inputs, false)?;
    let mut call = Captured::new(&gpu, &op, types, &inputs, OUTPUT_ROWS)?;
    begin(&gpu)?;
    let launched = call.launch(&uploaded, OutputRows::AtMost(OUTPUT_ROWS), (&mut cache, scale.as_mut()));
    let graph = end(&gpu);
    launched?;
    let graph = graph?;
    for (phase, (seqlen, start_pos)) in steps.into_iter().enumerate() {
        let inputs = step(types, ROWS, seqlen, start_pos, 10 + 2 * phase);
        uploaded.current[0].upload(&gpu, &inputs["current_key"])?;
        uploaded.current[1].upload(&gpu, &inputs["current_value"])?;
        uploaded.seqstarts.upload(&gpu, &inputs["seqstarts"])?;
        uploaded.start_pos.upload(&gpu, &inputs["start_pos"])?;
        graph.launch()?;
        gpu.stream.synchronize()?;
        assert_eq!(gpu.status.take(), None, "step {phase}");
        let expected = of_the_reference(&attributes, &inputs, (&mut host_cache, host_scale.as_mut()));
        for (name, output, expected) in
            [("key", &mut call.key, &expected.key), ("value", &mut call.value, &expected.value)]
        {
            let got = output.download(&gpu)?;
            let (rows, rest) = got.bytes().split_at(expected.bytes().len());
            if rows != expected.bytes() {
                return Err(format!("{name} of step {phase} differs from the reference's").into());
            }
            if rest.iter().any(|&byte| byte != UNTOUCHED) {
                return Err(format!("step {phase} writes behind the last row of {name}").into());
            }
            output.upload(&gpu, &crate::device::untouched(got.element(), got.shape()))?;
        }
        same("cache", &cache.download(&gpu)?, &host_cache)?;
    }
    Ok(())
}

pub fn unprepared_kernels_do_not_break_a_capture(_: &Gpu) -> Result<(), Failed> {
    // A context of its own, which has loaded nothing.
    let context: Arc<CudaContext> = CudaContext::new_non_primary(0, 0)?;
    // SAFETY: one stream is used.
    unsafe { context.disable_event_tracking() };
    let gpu = Gpu::in_context(context)?;
    let gpu = Gpu { stream: gpu.context.new_stream()?, ..gpu };
    let types = TypeCombination::LEGAL[0];
    let op = KeyValueCache::new(attributes(0))?;
    let (host_cache, _) = state(types);
    let mut cache = Buffer::of(&gpu, &host_cache, 0)?;
    let inputs = step(types, 3, [2, 1], [5, 9], 0);
    let uploaded = Uploaded::new(&gpu, &inputs, false)?;
    let mut call = Captured::new(&gpu, &op, types, &inputs, 17)?;
    let rows = || OutputRows::Kvstarts(read(&inputs["kvstarts"]));

    begin(&gpu)?;
    let error = call.launch(&uploaded, rows(), (&mut cache, None)).unwrap_err();
    let graph = gpu.stream.end_capture(CUgraphInstantiate_flags(0));
    let kind = error.downcast::<kvcache_op::cuda::Error>().map(|error| error.kind());
    assert_eq!(kind.map_err(|error| error.to_string())?, "not_prepared");
    graph?;

    op.prepare_device(types.t1, types.t2, types.t3, &gpu.stream)?;
    begin(&gpu)?;
    let launched = call.launch(&uploaded, rows(), (&mut cache, None));
    let graph = end(&gpu);
    launched?;
    graph?.launch()?;
    gpu.stream.synchronize()?;
    assert_eq!(gpu.status.take(), None);
    Ok(())
}

//! CUDA graphs: captured once, replayed with other values at the same addresses.

use kvcache_conformance::random::index_inputs;
use kvcache_conformance::{Call, Operator, Tensor};
use kvcache_op::cuda::cudarc::driver::CudaContext;
use kvcache_op::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use kvcache_op::cuda::primary_context;
use kvcache_op::schema::{CacheDims, TypeCombination};
use kvcache_op::{Attributes, CacheLayout, ElementType, KeyValueCache};
use libtest_mimic::Failed;

use crate::call::{CallOptions, Uploaded, captured, written};
use crate::device::{Buffer, Gpu, UNTOUCHED, untouched};
use crate::oracle::expected;

const NUM_HEADS: usize = 2;
const HEAD_DIM: usize = 32;
const MAX_T: usize = 48;
/// Rows of `key`: room for what the steps have.
const ROWS: usize = 32;

fn tensor(element: ElementType, shape: &[usize], phase: usize) -> Tensor {
    let mut tensor = Tensor::zeros(element, shape.to_vec()).expect("small");
    let numbers = (0..).map(|i| ((i + phase * 1000) as f32 * 0.37).sin() * 3.0);
    match element {
        ElementType::Float32 => {
            let elements = tensor.bytes_mut().as_chunks_mut().0;
            elements.iter_mut().zip(numbers).for_each(|(to, x)| *to = x.to_le_bytes());
        }
        ElementType::Float16 => {
            let elements = tensor.bytes_mut().as_chunks_mut().0;
            elements.iter_mut().zip(numbers).for_each(|(to, x)| *to = half::f16::from_f32(x).to_le_bytes());
        }
        _ => tensor.bytes_mut().iter_mut().zip(phase..).for_each(|(to, i)| *to = (i * 7) as u8),
    }
    tensor
}

/// Two sequences, of so many current and past tokens, on a paged cache: in tensors of `rows` rows.
pub fn step(types: TypeCombination, rows: usize, seqlen: [usize; 2], start_pos: [usize; 2], phase: usize) -> Call {
    let dims = CacheDims { max_t: MAX_T, num_layer: 1, num_heads: NUM_HEADS, inner: HEAD_DIM };
    let scale_dims = CacheDims { inner: HEAD_DIM / 8, ..dims };
    let layout = CacheLayout::HeadMajor;
    let current = [rows, NUM_HEADS, HEAD_DIM];
    let mut inputs = index_inputs(&[0, 1].map(|b| (start_pos[b], seqlen[b])));
    inputs.extend([
        ("current_key", tensor(types.t1, &current, phase)),
        ("current_value", tensor(types.t1, &current, phase + 1)),
        ("cachestarts", Tensor::of_indices(&[32, 3, 20, 11, 40, -1], &[2, 3])),
    ]);
    inputs.extend(["max_seqlen", "max_kvlen"].map(|bound| (bound, Tensor::of_indices(&[24], &[]))));
    let mut attributes = Operator::KeyValueCache.attributes();
    attributes.extend([("quant_bit", types.quant_bit), ("num_repeat", 2)]);
    attributes.extend([("cache_mode", 1), ("cache_layout", 3), ("page_size", 8)]);
    Call {
        operator: Operator::KeyValueCache,
        attributes,
        floats: Operator::KeyValueCache.floats(),
        inputs,
        cache: Some(tensor(types.t2, &layout.shape(dims), 5)),
        scale: types.t3.map(|t3| tensor(t3, &layout.shape(scale_dims), 6)),
    }
}

fn prepare(gpu: &Gpu, types: TypeCombination) -> Result<(), Failed> {
    let op = KeyValueCache::new(Attributes { quant_bit: types.quant_bit, ..Attributes::default() })?;
    Ok(op.prepare_device(types.t1, types.t2, types.t3, &gpu.stream)?)
}

/// A graph of the call, with outputs of so many rows.
fn graph_of(
    gpu: &Gpu,
    call: &Call,
    uploaded: &Uploaded,
    outputs: &[Buffer],
    rows: Option<usize>,
) -> crate::device::Result<kvcache_op::cuda::cudarc::driver::CudaGraph> {
    let checked = uploaded.check(call, rows)?;
    captured(gpu, || Ok(checked.launch(written(gpu, outputs), None, &gpu.status, &gpu.stream)?))
}

pub fn outputs(gpu: &Gpu, element: ElementType, rows: usize) -> crate::device::Result<Vec<Buffer>> {
    (0..2).map(|_| Buffer::untouched(gpu, element, &[rows, NUM_HEADS * 2, HEAD_DIM], 0)).collect()
}

pub fn replayed_while_sequences_grow(_: &Gpu) -> Result<(), Failed> {
    let gpu = Gpu::capturable(primary_context(0)?)?;
    let types = TypeCombination::LEGAL[7]; // float16, int8, float32
    assert_eq!(types.quant_bit, 8);
    prepare(&gpu, types)?;
    // Room for 4 new tokens; what the steps have is less.
    let first = step(types, 4, [0, 0], [0, 0], 0);
    let mut uploaded = Uploaded::new(&gpu, &first, CallOptions::default())?;
    let mut outputs = outputs(&gpu, types.t1, ROWS)?;
    let graph = graph_of(&gpu, &first, &uploaded, &outputs, Some(ROWS))?;

    let steps = [
        ([4, 0], [0, 0]),
        ([1, 3], [4, 0]),
        ([1, 1], [5, 3]),
        ([0, 1], [6, 4]),
        ([2, 2], [6, 5]),
        ([0, 0], [0, 0]),
        ([1, 1], [8, 7]),
    ];
    let (mut cache, mut scale) = (first.cache, first.scale);
    for (phase, (seqlen, start_pos)) in steps.into_iter().enumerate() {
        let call = Call { cache, scale, ..step(types, 4, seqlen, start_pos, 10 + 2 * phase) };
        for name in ["current_key", "current_value", "seqstarts", "start_pos"] {
            uploaded.inputs.get_mut(name).expect("an input").upload(&gpu, &call.inputs[name])?;
        }
        graph.launch()?;
        gpu.stream.synchronize()?;
        assert_eq!(gpu.status.take(), None, "step {phase}");
        let (after, _) = expected(&call);
        for (name, output) in ["key", "value"].into_iter().zip(&mut outputs) {
            let (got, expected) = (output.download(&gpu)?, after[name].bytes());
            let (rows, rest) = got.bytes().split_at(expected.len());
            assert!(rows == expected, "{name} of step {phase} differs from the reference's");
            assert!(rest.iter().all(|&byte| byte == UNTOUCHED), "step {phase} writes behind the last row of {name}");
            output.upload(&gpu, &untouched(got.element(), got.shape()))?;
        }
        (cache, scale) = (after.get("cache").cloned(), after.get("scale").cloned());
        assert!(uploaded.state()? == [cache.clone(), scale.clone()], "step {phase}: another cache");
    }
    Ok(())
}

pub fn unprepared_kernels_do_not_break_a_capture(_: &Gpu) -> Result<(), Failed> {
    // A context of its own, which has loaded nothing.
    let gpu = Gpu::capturable(CudaContext::new_non_primary(0, 0)?)?;
    let types = TypeCombination::LEGAL[0];
    let call = step(types, 3, [2, 1], [5, 9], 0);
    let uploaded = Uploaded::new(&gpu, &call, CallOptions::default())?;
    let outputs = outputs(&gpu, types.t1, 17)?;
    let error = graph_of(&gpu, &call, &uploaded, &outputs, None).err().ok_or("nothing was prepared")?;
    let kind = error.downcast::<kvcache_op::cuda::Error>().map(|error| error.kind());
    assert_eq!(kind.map_err(|error| error.to_string())?, "not_prepared");

    // Nor does loading them break the capture of another stream.
    let beside = gpu.context.new_stream()?;
    beside.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL)?;
    prepare(&gpu, types)?;
    beside.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)?;
    graph_of(&gpu, &call, &uploaded, &outputs, None)?.launch()?;
    gpu.stream.synchronize()?;
    assert_eq!(gpu.status.take(), None);
    Ok(())
}

//! Modules, streams, addresses and slices: what the launcher takes, and what it refuses.

use std::sync::Arc;

use kvcache_conformance::{Call, Tensor};
use kvcache_op::cuda::cudarc::driver::sys::CUresult;
use kvcache_op::cuda::cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError, result};
use kvcache_op::cuda::{
    DeviceInputs, DeviceMut, DeviceOutputs, DeviceRef, Error, LaunchError, OutputRows, Status, StatusWord,
};
use kvcache_op::schema::TypeCombination;
use kvcache_op::{Attributes, Checked, ElementType, IndexInputs, KeyValueCache};
use libtest_mimic::Failed;

use crate::call::{CallOptions, Uploaded, written};
use crate::device::{Buffer, Gpu};
use crate::graphs::{self, step};
use crate::oracle;

/// One sequence of 2 new tokens after 3, in a cache (MaxT 8, L 1, 2, H 2, Dh 4).
const CURRENT: [usize; 3] = [2, 2, 4];
const CACHE: [usize; 5] = [8, 1, 2, 2, 4];
const OUTPUT: [usize; 3] = [5, 2, 4];

fn op() -> Result<KeyValueCache, Failed> {
    Ok(KeyValueCache::new(Attributes::default())?)
}

fn len(shape: &[usize]) -> usize {
    shape.iter().product()
}

fn numbers() -> Vec<f32> {
    (1..=len(&CURRENT)).map(|x| x as f32).collect()
}

/// What `key` must be of a call with [`numbers`] on a cache of zeros.
fn expected() -> Vec<f32> {
    [vec![0.0; len(&OUTPUT) - len(&CURRENT)], numbers()].concat()
}

pub fn every_module_is_taken_by_the_driver(gpu: &Gpu) -> Result<(), Failed> {
    for row in TypeCombination::all() {
        let (TypeCombination { quant_bit, t1, t2, t3 }, quant_type) = (row, row.quant_type());
        let op = KeyValueCache::new(Attributes { quant_bit, quant_type, ..Attributes::default() })?;
        op.prepare_device(t1, t2, t3, &gpu.stream)?;
    }
    let error = op()?.prepare_device(ElementType::Float32, ElementType::Int8, None, &gpu.stream).unwrap_err();
    assert_eq!(error.kind(), "illegal_types");
    Ok(())
}

/// A call with tensors of the host: two sequences on a paged cache.
fn small_call() -> Call {
    step(TypeCombination::LEGAL[0], 3, [2, 1], [5, 9], 0)
}

/// Contexts come and go: the primary one when its last user releases it, others with their makers.
pub fn contexts_come_and_go(_: &Gpu) -> Result<(), Failed> {
    for _ in 0..3 {
        for context in [kvcache_op::cuda::primary_context(0)?, CudaContext::new_non_primary(0, 0)?] {
            let (gpu, call) = (Gpu::in_context(context)?, small_call());
            let after = Uploaded::new(&gpu, &call, CallOptions::default())?.after(&call)?;
            gpu.nothing_found()?;
            assert_eq!(oracle::difference(&call, after, oracle::expected(&call).0), None);
        }
    }
    Ok(())
}

/// What is done for a call leaves the thread's context as it was, also where it is the last that uses a context.
pub fn the_current_context_stays(gpu: &Gpu) -> Result<(), Failed> {
    gpu.context.bind_to_thread()?;
    assert!(kvcache_op::cuda::primary_context(1 << 32).is_err(), "there is no such device");
    let primary: fn() -> _ = || kvcache_op::cuda::primary_context(0).map_err(|error| error.to_string());
    let other: fn() -> _ = || CudaContext::new_non_primary(0, 0).map_err(|error| error.to_string());
    for context in [primary, other] {
        for current in [gpu.context.cu_ctx(), std::ptr::null_mut()] {
            let context = context()?;
            // Contexts may lie below the current one: each new one is put on top.
            while result::ctx::get_current()?.is_some() {
                // SAFETY: no context is a legal current context.
                unsafe { result::ctx::set_current(std::ptr::null_mut()) }?;
            }
            // SAFETY: a context that lives, or none.
            unsafe { result::ctx::set_current(current) }?;
            op()?.prepare_device(ElementType::Float32, ElementType::Float32, None, &context.default_stream())?;
            let status = StatusWord::new(&context)?;
            // The word is the last that uses the context.
            drop(context);
            drop(status);
            assert_eq!(result::ctx::get_current()?.unwrap_or(std::ptr::null_mut()), current);
        }
    }
    Ok(gpu.context.bind_to_thread()?)
}

pub fn raw_addresses_on_a_foreign_stream(gpu: &Gpu) -> Result<(), Failed> {
    let call = small_call();
    let (uploaded, (after, _)) = (Uploaded::new(gpu, &call, CallOptions::default())?, oracle::expected(&call));
    let outputs = graphs::outputs(gpu, call.t1(), after["key"].shape()[0])?;
    let status = Buffer::of(gpu, &Tensor::of_indices(&[0], &[1]), 0)?;
    gpu.stream.synchronize()?;
    let checked = uploaded.check(&call, None)?;
    let (outputs_at, status_at) = (written(gpu, &outputs), status.address(gpu));

    gpu.context.bind_to_thread()?;
    let foreign = result::stream::create(result::stream::StreamKind::NonBlocking)?;
    // Nothing of the thread's context is taken for granted: the stream knows its own.
    // SAFETY: no context is a legal current context.
    unsafe { result::ctx::set_current(std::ptr::null_mut()) }?;
    // SAFETY: the buffers live until the stream has been synchronized, and nothing else uses them.
    let launched = unsafe { checked.launch_raw(outputs_at, None, status_at, foreign) };
    assert_eq!(result::ctx::get_current()?, None, "the thread's context is as it was");
    gpu.context.bind_to_thread()?;
    // SAFETY: the stream lives.
    unsafe { result::stream::synchronize(foreign) }?;
    launched?;
    for (output, expected) in outputs.iter().zip([&after["key"], &after["value"]]) {
        assert!(output.download(gpu)? == *expected);
    }
    assert_eq!(Status::from_word(status.download(gpu)?.indices()[0] as u64), None);
    // SAFETY: nothing uses the stream any more.
    unsafe { result::stream::destroy(foreign) }?;
    Ok(())
}

/// The tensors of a call, as slices of cudarc.
struct Slices {
    current: CudaSlice<f32>,
    indices: [CudaSlice<i64>; 3],
    cache: CudaSlice<f32>,
    outputs: [CudaSlice<f32>; 2],
}

impl Slices {
    fn new(stream: &Arc<CudaStream>) -> Result<Self, Failed> {
        let zeros = |shape: &[usize]| stream.alloc_zeros::<f32>(len(shape));
        Ok(Self {
            current: stream.clone_htod(&numbers())?,
            indices: [stream.clone_htod(&[0i64, 2])?, stream.clone_htod(&[1i64])?, stream.clone_htod(&[3i64])?],
            cache: zeros(&CACHE)?,
            outputs: [zeros(&OUTPUT)?, zeros(&OUTPUT)?],
        })
    }

    /// The call, whose seqstarts are made for `of_seqstarts`.
    fn check<'a>(
        &'a mut self,
        stream: &'a CudaStream,
        of_seqstarts: &'a CudaStream,
    ) -> Result<(Checked<'a>, DeviceOutputs<'a>), Failed> {
        let Self { current, indices, cache, outputs } = self;
        let current = [(); 2].map(|()| DeviceRef::new(CURRENT, &*current, stream));
        let call = checked(current, indices, cache, stream, of_seqstarts)?;
        assert_eq!(call.output_shape(), OUTPUT);
        let [key, value] = outputs.each_mut().map(|output| DeviceMut::new(OUTPUT, output, stream));
        Ok((call, DeviceOutputs { key, value }))
    }
}

fn checked<'a>(
    [current_key, current_value]: [DeviceRef<'a>; 2],
    [seqstarts, cachestarts, start_pos]: &'a [CudaSlice<i64>; 3],
    cache: &'a mut CudaSlice<f32>,
    stream: &'a CudaStream,
    of_seqstarts: &'a CudaStream,
) -> Result<Checked<'a>, kvcache_op::Error> {
    let indices = IndexInputs {
        seqstarts: DeviceRef::new([2], seqstarts, of_seqstarts),
        cachestarts: DeviceRef::new([1], cachestarts, stream),
        start_pos: DeviceRef::new([1], start_pos, stream),
        kvstarts: OutputRows::Kvstarts((&[0, 5]).into()),
        max_seqlen: (&2).into(),
        max_kvlen: (&5).into(),
    };
    let inputs = DeviceInputs { current_key, current_value, indices };
    KeyValueCache::new(Attributes::default())?.check_device(inputs, DeviceMut::new(CACHE, cache, stream), None)
}

pub fn calls_on_several_streams(gpu: &Gpu) -> Result<(), Failed> {
    let streams = [gpu.context.new_stream()?, gpu.context.new_stream()?, gpu.context.per_thread_stream()];
    // The same slices on one stream after the other: cudarc makes each wait for the one before.
    let mut slices = Slices::new(&gpu.stream)?;
    for stream in &streams {
        let (call, outputs) = slices.check(stream, stream)?;
        call.launch(outputs, None, &gpu.status, stream)?;
    }
    gpu.context.synchronize()?;
    assert_eq!(gpu.status.take(), None);
    for output in &slices.outputs {
        assert_eq!(gpu.stream.clone_dtoh(output)?, expected());
    }
    Ok(())
}

pub fn misuse_is_refused(gpu: &Gpu) -> Result<(), Failed> {
    let other = gpu.context.new_stream()?;
    let mut slices = Slices::new(&gpu.stream)?;
    let (call, outputs) = slices.check(&gpu.stream, &other)?;
    let error = call.launch(outputs, None, &gpu.status, &gpu.stream).unwrap_err();
    assert_eq!(error, Error::OtherStream { input: "seqstarts" });

    let elsewhere = CudaContext::new_non_primary(0, 0)?;
    let status = StatusWord::new(&elsewhere)?;
    let (call, outputs) = slices.check(&gpu.stream, &gpu.stream)?;
    let error = call.launch(outputs, None, &status, &gpu.stream).unwrap_err();
    assert_eq!(error, LaunchError::OtherContext.into());

    let stream = elsewhere.default_stream();
    let (call, outputs) = slices.check(&stream, &stream)?;
    let error = call.launch(outputs, None, &status, &stream).unwrap_err();
    assert_eq!(error, Error::OtherContext { input: "current_key" });

    gpu.stream.synchronize()?;
    let [key, _] = &slices.outputs;
    assert_eq!(gpu.stream.clone_dtoh(key)?, vec![0.0; len(&OUTPUT)], "a refused call writes nothing");
    Ok(())
}

/// cudarc keeps the failures of waits for a slice's earlier uses: a call that should have waited is not launched.
pub fn failed_waits_are_reported(gpu: &Gpu) -> Result<(), Failed> {
    let mut slices = Slices::new(&gpu.stream)?;
    let (call, outputs) = slices.check(&gpu.stream, &gpu.stream)?;
    gpu.context.record_err::<()>(Err(DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION)));
    let error = call.launch(outputs, None, &gpu.status, &gpu.stream).unwrap_err();
    assert_eq!(error.kind(), "cuda_driver");
    assert!(error.to_string().contains("an earlier use of the context"), "{error}");
    // It has been reported.
    let (call, outputs) = slices.check(&gpu.stream, &gpu.stream)?;
    call.launch(outputs, None, &gpu.status, &gpu.stream)?;
    Ok(gpu.stream.synchronize()?)
}

pub fn slices_of_another_length_are_refused(gpu: &Gpu) -> Result<(), Failed> {
    let stream = &*gpu.stream;
    let (mut slices, bytes) = (Slices::new(&gpu.stream)?, gpu.stream.alloc_zeros::<u8>(100)?);
    let current = || DeviceRef::from_bytes(ElementType::Float32, CURRENT, &bytes, stream);
    let error =
        checked([current(), current()], &slices.indices, &mut slices.cache, stream, stream).map(drop).unwrap_err();
    assert_eq!(error.kind(), "slice_length");
    assert_eq!(error.to_string(), "current_key is a slice of 100 bytes, expected 64 for shape [2, 2, 4]");
    Ok(())
}

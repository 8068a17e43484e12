//! Medians of graph replays.

use std::env;
use std::error::Error;
use std::sync::Arc;

use kvcache_op::cuda::cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use kvcache_op::cuda::cudarc::driver::{CudaContext, CudaStream};

const SAMPLES: usize = 21;
/// Microseconds that a sample takes at least, in replays: short ones say little.
const SAMPLE_US: f32 = 300.0;

/// Whether times mean nothing, because one wants to see only that everything works.
pub fn is_quick() -> bool {
    env::var_os("KVCACHE_BENCH_QUICK").is_some()
}

/// The median time in microseconds of one of `count` pieces of work, which `enqueue` puts into the stream together.
pub fn median_us(
    context: &Arc<CudaContext>,
    stream: &Arc<CudaStream>,
    count: usize,
    mut enqueue: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<f32, Box<dyn Error>> {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let enqueued = enqueue();
    let graph = stream.end_capture(CUgraphInstantiate_flags(0));
    enqueued?;
    let graph = graph?.ok_or("there is no graph")?;
    Ok(median_of_samples(context, stream, || Ok(graph.launch()?))? / count as f32)
}

/// The same without a graph: for what a graph may do in another way, and what is so large that the host is never late.
pub fn direct_median_us(
    context: &Arc<CudaContext>,
    stream: &Arc<CudaStream>,
    count: usize,
    enqueue: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<f32, Box<dyn Error>> {
    Ok(median_of_samples(context, stream, enqueue)? / count as f32)
}

/// The median time in microseconds of what `enqueue` puts into the stream.
fn median_of_samples(
    context: &Arc<CudaContext>,
    stream: &Arc<CudaStream>,
    mut enqueue: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<f32, Box<dyn Error>> {
    let event = || context.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
    let (start, end) = (event()?, event()?);
    let mut sample = |replays: usize| -> Result<f32, Box<dyn Error>> {
        start.record(stream)?;
        for _ in 0..replays {
            enqueue()?;
        }
        end.record(stream)?;
        end.synchronize()?;
        Ok(start.elapsed_ms(&end)? * 1e3 / replays as f32)
    };
    if is_quick() {
        return sample(1);
    }
    for _ in 0..3 {
        sample(1)?;
    }
    let replays = (SAMPLE_US / sample(1)?).clamp(1.0, 200.0) as usize;
    let mut samples = (0..SAMPLES).map(|_| sample(replays)).collect::<Result<Vec<_>, _>>()?;
    samples.sort_by(f32::total_cmp);
    Ok(samples[SAMPLES / 2])
}

//! The times of one case: medians of graph replays.

use std::env;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use kvcache_op::cuda::cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use kvcache_op::cuda::cudarc::driver::{CudaContext, CudaStream};

use crate::call::Bench;
use crate::case::{Case, HEAD_DIM};

/// Sets of tensors hold several times what the device's cache holds, if one alone does not.
const ROTATED_BYTES: usize = 256 << 20;
const MOST_SETS: usize = 64;
/// Answers are compared up to this size of a call: that of a prefill with every type, where warps take long rounds.
const COMPARED_BYTES: usize = 600 << 20;
/// Attention's are compared up to so many keys that all queries together see: the CPU takes long for more.
const COMPARED_KEYS: usize = 1 << 20;

/// What the columns of a line are.
pub const HEAD: &str = "times in us; GB/s of bytes read and written, of attention of keys and values; of copy: the \
                        time of a copy that moves as many bytes, by ours, 1 is its speed";

/// Times a case; gives a line, or says why it cannot be timed.
pub fn run(
    context: &Arc<CudaContext>,
    stream: &Arc<CudaStream>,
    case: &Case,
) -> Result<Result<String, String>, Box<dyn Error>> {
    let Case { batch, past, current, query_heads, .. } = *case;
    let attends = query_heads > 0;
    let kvlen = past + current;
    let moved = case.moved();
    let held = case.max_t() * case.cache_bytes() + moved;
    let (free, _) = context.mem_get_info()?;
    let (room, copied) = (free / 10 * 9, moved.div_ceil(2));
    if held + 2 * copied > room {
        let needed = (held + 2 * copied) >> 20;
        return Ok(Err(format!("needs {needed} MB of the device's memory, {} are free", free >> 20)));
    }
    let most = if is_quick() { 2 } else { (ROTATED_BYTES / moved + 1).min(MOST_SETS) };
    let sets = most.min((room - 2 * copied) / held).max(1);

    let mut bench = Bench::new(context, stream, case)?;
    let mut tensors = (0..sets).map(|i| bench.set(i)).collect::<Result<Vec<_>, _>>()?;
    let compared = if attends { batch * current * kvlen <= COMPARED_KEYS } else { moved <= COMPARED_BYTES };
    // Once outside of a graph, which must not allocate scratch memory.
    match compared {
        true => bench.compare(&mut tensors[0])?,
        false => bench.launch(&mut tensors[0])?,
    }
    stream.synchronize()?;
    let call = median_us(context, stream, sets, || tensors.iter_mut().try_for_each(|set| bench.launch(set)))?;
    let (rounds, calls) = if is_quick() { (1, 2) } else { (4, 50) };
    let mut host = 0.0;
    for _ in 0..rounds {
        // Not so many calls that the stream has no room for another, and what the device then needs is not counted.
        stream.synchronize()?;
        let start = Instant::now();
        for i in 0..calls {
            bench.launch(&mut tensors[i % sets])?;
        }
        host += start.elapsed().as_secs_f32() * 1e6 / (rounds * calls) as f32;
    }
    stream.synchronize()?;
    if let Some(status) = bench.status.take() {
        return Err(format!("{}: {status}", case.name()).into());
    }
    drop(tensors);

    let name = case.name();
    let of_copy = copy_us(context, stream, moved)? / call;
    let mut line = format!(
        "{name:<62} {call:>10.2} us {:>6.0} GB/s  of copy {of_copy:.2}  host {host:.2} us  {sets} sets",
        moved as f32 / call / 1e3
    );
    if attends {
        // Two operations for each element of a query and a key, and two for each of a weight and a value.
        let keys = if past == 0 { current * (current + 1) / 2 } else { current * kvlen };
        let flops = 4.0 * (batch * keys * query_heads * HEAD_DIM) as f32;
        line += &format!("  {:.2} TFLOP/s", flops / call / 1e6);
    }
    if !compared {
        line += "  (too large to be compared with the CPU)";
    }
    Ok(Ok(line))
}

/// The time of a device-to-device copy that reads and writes so many bytes.
fn copy_us(context: &Arc<CudaContext>, stream: &Arc<CudaStream>, moved: usize) -> Result<f32, Box<dyn Error>> {
    let len = moved.div_ceil(2).max(1);
    let rotated = (ROTATED_BYTES / moved.max(1) + 1).min(MOST_SETS);
    let mut pairs = Vec::new();
    for _ in 0..rotated {
        pairs.push((stream.alloc_zeros::<u8>(len)?, stream.alloc_zeros::<u8>(len)?));
    }
    stream.synchronize()?;
    let copies = || pairs.iter_mut().try_for_each(|(from, to)| Ok(stream.memcpy_dtod(from, to)?));
    median_us(context, stream, rotated, copies)
}

const SAMPLES: usize = 21;
/// Microseconds that a sample takes at least, in replays: short ones say little.
const SAMPLE_US: f32 = 300.0;

/// Whether times mean nothing, because one wants to see only that everything works.
fn is_quick() -> bool {
    env::var_os("KVCACHE_BENCH_QUICK").is_some()
}

/// The median time in microseconds of one of `count` pieces of work, which `enqueue` puts into the stream together.
fn median_us(
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
    let event = || context.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
    let (start, end) = (event()?, event()?);
    let sample = |replays: usize| -> Result<f32, Box<dyn Error>> {
        start.record(stream)?;
        for _ in 0..replays {
            graph.launch()?;
        }
        end.record(stream)?;
        end.synchronize()?;
        Ok(start.elapsed_ms(&end)? * 1e3 / (replays * count) as f32)
    };
    if is_quick() {
        return sample(1);
    }
    for _ in 0..3 {
        sample(1)?;
    }
    let replays = (SAMPLE_US / (sample(1)? * count as f32)).clamp(1.0, 200.0) as usize;
    let mut samples = (0..SAMPLES).map(|_| sample(replays)).collect::<Result<Vec<_>, _>>()?;
    samples.sort_by(f32::total_cmp);
    Ok(samples[SAMPLES / 2])
}

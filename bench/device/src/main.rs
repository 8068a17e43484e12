//! Times calls on a GPU against device-to-device copies of the same bytes.
//!
//! Each figure is the median of replays of a CUDA graph that holds the same call on several sets of tensors, so that
//! the device's cache holds none of what a call reads, and the host is out of the way. The copy moves as many bytes as
//! the call reads and writes. Before it is timed, a call's answer is compared with the CPU's.
//!
//! `KVCACHE_BENCH_FILTER` names the cases that count, by parts of their names with commas between them. With
//! `KVCACHE_BENCH_QUICK` each call is made a few times only, to see that all of this works; its times mean nothing.
//! Without a GPU the run ends with the exit code 77.

mod call;
mod case;

use std::env;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use kvcache_op::cuda::cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use kvcache_op::cuda::cudarc::driver::{CudaContext, CudaStream};
use kvcache_op::cuda::primary_context;

use crate::call::Bench;
use crate::case::Case;

/// Sets of tensors hold several times what the device's cache holds, if one alone does not.
const ROTATED_BYTES: usize = 256 << 20;
const MOST_SETS: usize = 64;
/// Answers are compared up to this size of a call: that of a prefill with every type, where warps take long rounds.
const COMPARED_BYTES: usize = 600 << 20;
/// Answers of attention are compared up to so many keys that all queries together see: the CPU takes long for more.
const COMPARED_KEYS: usize = 1 << 20;

const SAMPLES: usize = 21;
/// Microseconds that a sample takes at least, in replays: short ones say little.
const SAMPLE_US: f32 = 300.0;

fn main() -> ExitCode {
    let context = match primary_context(0) {
        Ok(context) => context,
        Err(reason) => {
            println!("NO GPU, nothing is measured: {reason}");
            return ExitCode::from(77);
        }
    };
    match bench(&context) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(context: &Arc<CudaContext>) -> Result<(), Box<dyn Error>> {
    let filter = env::var("KVCACHE_BENCH_FILTER").unwrap_or_default();
    // SAFETY: one stream is used.
    unsafe { context.disable_event_tracking() };
    println!("device: {}", context.name()?);
    println!("GB/s of bytes read and written, of attention of keys and values; of copy: 1 is a copy's speed");
    let stream = context.new_stream()?;
    let mut count = 0;
    let counts = |case: &Case| filter.split(',').any(|part| case.name().contains(part));
    for case in case::all().into_iter().filter(counts) {
        let moved = case.moved();
        let (needed, (free, _)) = (case.max_t() * case.cache_bytes() + 2 * moved, context.mem_get_info()?);
        if needed > free / 10 * 9 {
            println!("{:<62} SKIPPED: needs {} MB, {} are free", case.name(), needed >> 20, free >> 20);
            continue;
        }
        let sets = most_sets(moved).min((free / 10 * 9 - moved) / (needed - moved)).max(1);
        let (us, compared) = time_us(context, &stream, &case, sets)?;
        let of_copy = copy_us(context, &stream, moved)? / us;
        let speed = moved as f32 / us / 1e3;
        let beside = if compared { "" } else { "  (too large to be compared with the CPU)" };
        println!("{:<62} {us:>10.2} us {speed:>6.0} GB/s  of copy {of_copy:.2}  {sets} sets{beside}", case.name());
        count += 1;
    }
    match count {
        0 => Err("nothing was measured".into()),
        _ => Ok(()),
    }
}

/// How many sets of tensors calls go through that move so many bytes each.
fn most_sets(moved: usize) -> usize {
    if is_quick() { 2 } else { (ROTATED_BYTES / moved.max(1) + 1).min(MOST_SETS) }
}

/// The microseconds of a call, and whether its answer was compared with the CPU's.
fn time_us(
    context: &Arc<CudaContext>,
    stream: &Arc<CudaStream>,
    case: &Case,
    sets: usize,
) -> Result<(f32, bool), Box<dyn Error>> {
    let Case { batch, past, current, query_heads, .. } = *case;
    let mut bench = Bench::new(context, stream, case)?;
    let mut tensors = (0..sets).map(|i| bench.set(i)).collect::<Result<Vec<_>, _>>()?;
    let compared = match query_heads {
        0 => case.moved() <= COMPARED_BYTES,
        _ => batch * current * (past + current) <= COMPARED_KEYS,
    };
    // Once outside of a graph, which must not allocate scratch memory.
    match compared {
        true => bench.compare(&mut tensors[0])?,
        false => bench.launch(&mut tensors[0])?,
    }
    stream.synchronize()?;
    let us = median_us(context, stream, sets, || tensors.iter_mut().try_for_each(|set| bench.launch(set)))?;
    match bench.status.take() {
        Some(status) => Err(format!("{}: {status}", case.name()).into()),
        None => Ok((us, compared)),
    }
}

/// The time of a device-to-device copy that reads and writes so many bytes.
fn copy_us(context: &Arc<CudaContext>, stream: &Arc<CudaStream>, moved: usize) -> Result<f32, Box<dyn Error>> {
    let len = moved.div_ceil(2).max(1);
    let rotated = most_sets(moved);
    let mut pairs = Vec::new();
    for _ in 0..rotated {
        pairs.push((stream.alloc_zeros::<u8>(len)?, stream.alloc_zeros::<u8>(len)?));
    }
    stream.synchronize()?;
    let copies = || pairs.iter_mut().try_for_each(|(from, to)| Ok(stream.memcpy_dtod(from, to)?));
    median_us(context, stream, rotated, copies)
}

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

//! Times calls on a GPU against device-to-device copies of the same bytes.
//!
//! Each figure is the median of replays of a CUDA graph that holds the same call on several sets of tensors, so that
//! the device's cache holds none of what a call reads, and the host is out of the way; `copy` moves as many bytes as
//! the call reads and writes. What the host needs for a call is told beside it. Before it is timed, a call's answer is
//! compared with the CPU's.
//!
//! `KVCACHE_BENCH_FILTER` names the cases that count, by parts of their names with commas between them. With
//! `KVCACHE_BENCH_QUICK` each call is made a few times only, to see that all of this works; its times mean nothing.
//! Without a GPU the run ends with the exit code 77.

mod call;
mod case;
mod run;

use std::env;
use std::error::Error;
use std::process::ExitCode;

use kvcache_op::cuda::primary_context;

fn main() -> ExitCode {
    let context = match primary_context(0) {
        Ok(context) => context,
        Err(reason) => {
            println!("NO GPU, nothing is measured: {reason}");
            return ExitCode::from(77);
        }
    };
    match bench(context) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(context: std::sync::Arc<kvcache_op::cuda::cudarc::driver::CudaContext>) -> Result<(), Box<dyn Error>> {
    let filter = env::var("KVCACHE_BENCH_FILTER").unwrap_or_default();
    // SAFETY: one stream is used.
    unsafe { context.disable_event_tracking() };
    println!("device: {}", context.name()?);
    let stream = context.new_stream()?;
    println!("{}", run::HEAD);
    let mut count = 0;
    let counts = |case: &case::Case| filter.split(',').any(|part| case.name().contains(part));
    for case in case::all().into_iter().filter(counts) {
        match run::run(&context, &stream, &case)? {
            Ok(line) => {
                println!("{line}");
                count += 1;
            }
            Err(reason) => println!("{:<62} SKIPPED: {reason}", case.name()),
        }
    }
    match count {
        0 => Err("nothing was measured".into()),
        _ => Ok(()),
    }
}

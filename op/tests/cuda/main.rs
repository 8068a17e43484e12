//! Tests on a GPU. Without one, all but those of the host are ignored and the
//! reason is printed; with `KVCACHE_REQUIRE_GPU` set the exit code is then 77, not that of a success. The emulated
//! driver does not count as a GPU then, unless the variable is `emulated`.
//!
//! `KVCACHE_FEW_CASES` makes fewer random calls, for runs under a sanitizer. `KVCACHE_GOLDEN_CASES` is the folder of
//! the golden cases, where the sources are not where they were at build time.

mod agree;
mod attention;
mod call;
mod device;
mod golden;
mod graphs;
mod oracle;
mod status;
mod streams;

use std::env;
use std::process::ExitCode;

use device::Gpu;
use kvcache_conformance::Suite;
use kvcache_op::cuda::{available, primary_context};
use libtest_mimic::{Arguments, Failed, Trial};

type Test = (&'static str, fn(&Gpu) -> Result<(), Failed>);

const TESTS: [Test; 24] = [
    ("streams::every_module_is_taken_by_the_driver", streams::every_module_is_taken_by_the_driver),
    ("golden::key_value_cache", |gpu| golden::pass(gpu, Suite::KeyValueCache, false)),
    ("golden::static_batching", |gpu| golden::pass(gpu, Suite::Static, false)),
    ("golden::captured_static_batching", |_| golden::pass(&Gpu::capturable(primary_context(0)?)?, Suite::Static, true)),
    ("golden::attention", |gpu| golden::pass(gpu, Suite::Attention, false)),
    ("status::golden_cases_that_the_host_cannot_refuse", status::golden_cases_that_the_host_cannot_refuse),
    ("status::random_bad_indices", status::random_bad_indices),
    ("status::keeps_the_first_finding", status::keeps_the_first_finding),
    ("status::attention_that_the_host_cannot_refuse", status::attention_that_the_host_cannot_refuse),
    ("agree::small_calls", agree::small_calls),
    ("agree::large_calls", agree::large_calls),
    ("agree::ragged_batches", agree::ragged_batches),
    ("streams::raw_addresses_on_a_foreign_stream", streams::raw_addresses_on_a_foreign_stream),
    ("streams::calls_on_several_streams", streams::calls_on_several_streams),
    ("streams::contexts_come_and_go", streams::contexts_come_and_go),
    ("streams::the_current_context_stays", streams::the_current_context_stays),
    ("streams::misuse_is_refused", streams::misuse_is_refused),
    ("streams::failed_waits_are_reported", streams::failed_waits_are_reported),
    ("streams::slices_of_another_length_are_refused", streams::slices_of_another_length_are_refused),
    ("graphs::replayed_while_sequences_grow", graphs::replayed_while_sequences_grow),
    ("graphs::unprepared_kernels_do_not_break_a_capture", graphs::unprepared_kernels_do_not_break_a_capture),
    ("attention::long_heads_are_refused", attention::long_heads_are_refused),
    ("attention::scratch_is_checked", attention::scratch_is_checked),
    ("attention::bounds_decide_no_bit", attention::bounds_decide_no_bit),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One stream after the other: during a capture much is forbidden to other streams.
    arguments.test_threads = Some(1);
    let required = env::var("KVCACHE_REQUIRE_GPU").ok();
    let missing = missing(required.as_deref());
    if let Some(reason) = &missing {
        println!("no GPU, its tests are ignored: {reason}");
    }
    let trial = |(name, test): Test| Trial::test(name, move || test(&Gpu::new()?)).with_ignored_flag(missing.is_some());
    let host = Trial::test("golden::the_host_refuses_what_it_can_know_in_the_same_words", || {
        golden::the_host_refuses_what_it_can_know_in_the_same_words();
        Ok(())
    });
    let trials = TESTS.map(trial).into_iter().chain([host]);
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    match missing {
        Some(_) if required.is_some() && !arguments.list => ExitCode::from(77),
        _ => conclusion.exit_code(),
    }
}

/// Why nothing can be tested. A device that is there and does not work is no reason: then the tests fail.
fn missing(required: Option<&str>) -> Option<String> {
    if let Err(reason) = available() {
        return Some(reason.to_string());
    }
    let device = Gpu::new().and_then(|gpu| Ok((gpu.is_emulated()?, gpu.name()?)));
    match device {
        Ok((true, _)) if required.is_some_and(|required| required != "emulated") => {
            Some("the driver is the emulated one".to_owned())
        }
        Ok((_, name)) => {
            println!("device: {name}");
            None
        }
        Err(error) => {
            println!("the device does not work: {error}");
            None
        }
    }
}

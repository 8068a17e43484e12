//! Tests on a GPU, or on the emulated driver of `proof/emulation`. Without either, all tests but the host's are ignored
//! and the reason is printed; with `KVCACHE_REQUIRE_GPU` set the exit code is then 77. The emulated driver does not
//! count as a GPU then, unless the variable is `emulated`.
//!
//! `KVCACHE_FEW_CASES` makes fewer random calls, for runs under a sanitizer. `KVCACHE_GOLDEN_CASES` is the folder of
//! the golden cases, where the sources are not where they were at build time.

mod agree;
mod attention;
mod call;
mod counts;
mod device;
mod golden;
mod graphs;
mod invariance;
mod large_caches;
mod mutants;
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

const TESTS: [Test; 31] = [
    ("streams::every_module_is_taken_by_the_driver", streams::every_module_is_taken_by_the_driver),
    ("golden::key_value_cache", |_| golden::pass(Suite::KeyValueCache)),
    ("golden::static_batching", |_| golden::pass(Suite::Static)),
    ("golden::captured_static_batching", |_| golden::captured(&Gpu::capturable(primary_context(0)?)?)),
    ("golden::attention", |_| golden::pass(Suite::Attention)),
    ("status::golden_cases_that_the_host_cannot_refuse", status::golden_cases_that_the_host_cannot_refuse),
    ("status::random_bad_indices", status::random_bad_indices),
    ("status::keeps_the_first_finding", status::keeps_the_first_finding),
    ("status::attention_that_the_host_cannot_refuse", status::attention_that_the_host_cannot_refuse),
    ("agree::small_calls", agree::small_calls),
    ("agree::medium_calls", agree::medium_calls),
    ("agree::large_calls", agree::large_calls),
    ("agree::static_calls", agree::static_calls),
    ("agree::rotated_calls", agree::rotated_calls),
    ("agree::ragged_batches", agree::ragged_batches),
    ("agree::float16_samples", agree::float16_samples),
    ("agree::float32_near_ties", agree::float32_near_ties),
    ("counts::table", counts::table),
    ("large_caches::last_slots", large_caches::last_slots),
    ("invariance::a_token_depends_on_its_own_sequence_alone", invariance::a_token_depends_on_its_own_sequence_alone),
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
];

/// What takes minutes where every thread is emulated: `--ignored` runs these.
const LONG: [Test; 2] = [
    ("agree::every_float16", agree::every_float16),
    ("mutants::every_mutant_is_found", mutants::every_mutant_is_found),
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
    let trial = |(name, test): Test| Trial::test(name, move || test(&Gpu::new()?));
    let long = LONG.map(|test| trial(test).with_ignored_flag(true));
    let host = Trial::test("golden::the_host_refuses_what_it_can_know_in_the_same_words", || {
        golden::the_host_refuses_what_it_can_know_in_the_same_words();
        Ok(())
    });
    let trials =
        TESTS.map(|test| trial(test).with_ignored_flag(missing.is_some())).into_iter().chain(long).chain([host]);
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

//! A cache in a GPU's memory. Without a GPU the tests are ignored and the reason is printed; with `KVCACHE_REQUIRE_GPU`
//! set the exit code is then 77, not that of a success. The emulated driver does not count as a GPU then, unless the
//! variable is `emulated`.

mod agree;
mod device;
mod misuse;

use std::env;
use std::process::ExitCode;

use kvcache_manager::op::cuda::{available, primary_context};
use libtest_mimic::{Arguments, Failed, Trial};

type Test = (&'static str, fn() -> Result<(), Failed>);

const TESTS: [Test; 3] = [
    ("rows_are_those_of_the_host", agree::rows_are_those_of_the_host),
    ("copies_neither_wait_nor_allocate", agree::copies_neither_wait_nor_allocate),
    ("what_is_wrong_is_refused", misuse::what_is_wrong_is_refused),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // During a capture much is forbidden to other streams.
    arguments.test_threads = Some(1);
    let required = env::var("KVCACHE_REQUIRE_GPU").ok();
    let missing = match available() {
        Err(reason) => Some(reason.to_string()),
        Ok(()) => {
            let name = primary_context(0).map(|context| context.name().unwrap_or_default());
            let counts = required.as_deref().is_none_or(|required| required == "emulated");
            (name.as_deref() == Ok("CUDA on the CPU") && !counts).then(|| "the driver is the emulated one".to_owned())
        }
    };
    if let Some(reason) = &missing {
        println!("no GPU, its tests are ignored: {reason}");
    }
    let trial = |(name, test): Test| Trial::test(name, test).with_ignored_flag(missing.is_some());
    let conclusion = libtest_mimic::run(&arguments, TESTS.map(trial).into_iter().collect());
    match missing {
        Some(_) if required.is_some() && !arguments.list => ExitCode::from(77),
        _ => conclusion.exit_code(),
    }
}

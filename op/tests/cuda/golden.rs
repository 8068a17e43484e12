//! The golden suites; and the host's checks of calls on a device, which need no device: addresses are never
//! dereferenced.

use std::collections::BTreeMap;
use std::env;
use std::path::Path;

use kvcache_conformance::{CallResult, Case, Expected, Implementation, Outcome, Suite, read_cases, run_cases};
use kvcache_op::{Error, cuda};
use libtest_mimic::Failed;

use crate::call::{Checked, How, Uploaded, check};
use crate::device::{Gpu, Result};

/// The golden cases of a suite; with `KVCACHE_GOLDEN_CASES`, a folder of cases, those beside it.
pub fn cases(suite: Suite) -> std::result::Result<Vec<Case>, Failed> {
    Ok(match env::var_os("KVCACHE_GOLDEN_CASES") {
        Some(cases) => read_cases(&Path::new(&cases).with_file_name(suite.folder()))?,
        None => kvcache_conformance::cases(suite)?,
    })
}

/// What the host says of a call, whose tensors have addresses that they could have.
fn on_host(case: &Case, step: usize) -> std::result::Result<(), Error> {
    let call = case.call(step);
    let place = |name: &str| {
        call.inputs.keys().position(|input| *input == name).unwrap_or(if name == "cache" { 20 } else { 21 })
    };
    // SAFETY: nothing is launched.
    unsafe { check(&call, None, &|name| (1 << 44) + ((place(name) as u64) << 36)) }.map(|_: Checked<'_>| ())
}

/// The kind of error of a step that must be refused but that the host's check accepts, so that the device must find it.
pub fn left_to_device(case: &Case, step: usize) -> Option<&str> {
    match &case.steps[step].expected {
        Expected::Refusal { kind, .. } if on_host(case, step).is_ok() => Some(kind),
        _ => None,
    }
}

/// The operators on the GPU as the conformance suite sees them.
pub struct OnDevice<'a> {
    pub gpu: &'a Gpu,
    pub how: How,
}

impl OnDevice<'_> {
    fn results(&self, case: &Case) -> Result<Vec<CallResult>> {
        let how = How { has_mass: case.has_mass(), ..self.how };
        let mut uploaded = Uploaded::new(self.gpu, &case.call(0), how)?;
        let mut results = Vec::new();
        for step in 0..case.steps.len() {
            let call = case.call(step);
            uploaded.next(self.gpu, &call, how)?;
            results.push(match uploaded.after(self.gpu, &call, how) {
                Ok(result) => result,
                Err(error) => match *error.downcast::<cuda::Error>()? {
                    cuda::Error::Operator(error) => {
                        let kind = Some(error.kind().to_owned());
                        let [cache, scale] = uploaded.state(self.gpu)?;
                        CallResult { outcome: Outcome::Refused { kind, message: error.to_string() }, cache, scale }
                    }
                    other => return Err(other.into()),
                },
            });
            self.gpu.nothing_found()?;
        }
        Ok(results)
    }
}

impl Implementation for OnDevice<'_> {
    fn run(&self, case: &Case) -> std::result::Result<Vec<CallResult>, String> {
        match (0..case.steps.len()).find_map(|step| left_to_device(case, step)) {
            Some(kind) => Ok(vec![CallResult::unsupported(format!("{kind} is found by the device, in another test"))]),
            None => self.results(case).map_err(|error| error.to_string()),
        }
    }
}

/// Runs the cases of a suite, with tensors that are aligned for their types only, or better. The emulated kernels run
/// all of them without a driver in between, so a part will do there. `captured`: index inputs are made in memory of the
/// graph.
pub fn pass(gpu: &Gpu, suite: Suite, captured: bool) -> std::result::Result<(), Failed> {
    let every = if gpu.is_emulated()? { 8 } else { 1 };
    for unaligned in [false, true] {
        let first = usize::from(unaligned && every > 1);
        let cases: Vec<_> = cases(suite)?.into_iter().skip(first).step_by(every).collect();
        let report = run_cases(&OnDevice { gpu, how: How { unaligned, captured, has_mass: false } }, &cases);
        println!("{} passed, {} failed, {} unsupported", report.passed(), report.failed(), report.unsupported());
        if report.failed() > 0 || report.passed() < cases.len() / 2 {
            return Err(report.to_string().into());
        }
    }
    Ok(())
}

/// Rules about values in device memory. The host checks all others.
const OF_THE_DEVICE: [&str; 9] = [
    "starts_not_zero",
    "starts_decrease",
    "starts_total",
    "start_pos_negative",
    "kvlen_mismatch",
    "max_too_small",
    "cache_range",
    "page_range",
    "write_conflict",
];

pub fn the_host_refuses_what_it_can_know_in_the_same_words() {
    let (mut legal, mut refused, mut left) = (0, 0, BTreeMap::new());
    for case in cases(Suite::KeyValueCache).expect("the golden cases can be read") {
        for (i, step) in case.steps.iter().enumerate() {
            match (&step.expected, on_host(&case, i)) {
                (Expected::Success(_), Ok(())) => legal += 1,
                (Expected::Success(_), Err(error)) => panic!("{}: {error}", case.name),
                // Where the device would see a wrong length first, the host may see what follows from it.
                (
                    Expected::Refusal { kind, .. },
                    Err(Error::SizeOverflow { input: "key", .. } | Error::TooManyPages { .. }),
                ) if OF_THE_DEVICE.contains(&kind.as_str()) => refused += 1,
                (Expected::Refusal { kind, mentions }, Err(error)) => {
                    assert_eq!(error.kind(), kind, "{}", case.name);
                    let message = error.to_string();
                    // The longest of the lengths in `seqstarts` is not known here: its bound is only compared with 0.
                    let known = !matches!(error, Error::MaxTooSmall { input: "max_seqlen", .. });
                    for mention in mentions.iter().filter(|_| known) {
                        assert!(message.contains(mention), "{}: {mention:?} in {message}", case.name);
                    }
                    refused += 1;
                }
                (Expected::Refusal { kind, .. }, Ok(())) => {
                    assert!(OF_THE_DEVICE.contains(&kind.as_str()), "{}: {kind}", case.name);
                    *left.entry(kind.clone()).or_insert(0) += 1;
                }
            }
        }
    }
    println!("{legal} legal, {refused} refused, left to the device: {left:?}");
    assert!(legal > 100 && refused > 50 && left.len() > 5);
}

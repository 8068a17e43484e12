//! The golden suites; and the host's checks of calls on a device, which need no device: addresses are never
//! dereferenced.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{CStr, c_char};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvcache_conformance::{CallResult, Case, Expected, Implementation, Outcome, Runner, Suite, read_cases, run_cases};
use kvcache_emulation_ptx::{Cost, Emulation, Order};
use kvcache_kernels::cuda::MODULES;
use kvcache_op::{Error, cuda};
use libtest_mimic::Failed;

use crate::call::{CallOptions, Uploaded, check};
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
    unsafe { check(&call, None, &|name| (1 << 44) + ((place(name) as u64) << 36)) }.map(drop)
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
    pub options: CallOptions,
}

impl OnDevice<'_> {
    fn results(&self, case: &Case) -> Result<Vec<CallResult>> {
        // What is legal stays so with other bounds.
        let bounds = self.options.bounds.filter(|_| case.is_legal() && case.operator.suite() == Suite::Attention);
        let options = CallOptions { has_mass: case.has_mass(), bounds, ..self.options };
        let mut uploaded = Uploaded::new(self.gpu, &case.call(0), options)?;
        let mut results = Vec::new();
        for step in 0..case.steps.len() {
            let call = case.call(step);
            uploaded.next(&call)?;
            results.push(match uploaded.after(&call) {
                Ok(result) => result,
                Err(error) => match *error.downcast::<cuda::Error>()? {
                    cuda::Error::Operator(error) => {
                        let kind = Some(error.kind().to_owned());
                        let [cache, scale] = uploaded.state()?;
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

/// The kernels that emulated devices have run, each with the cost of its last launch.
pub fn costs() -> MutexGuard<'static, BTreeMap<String, Cost>> {
    static COSTS: Mutex<BTreeMap<String, Cost>> = Mutex::new(BTreeMap::new());
    COSTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Is told of each launch.
pub extern "C" fn launched(kernel: *const c_char, cost: &Cost) {
    // SAFETY: the driver names the kernel.
    let kernel = unsafe { CStr::from_ptr(kernel) }.to_string_lossy().into_owned();
    costs().insert(kernel, *cost);
}

/// A device whose results of cases with a mass are kept.
struct Recorded<'a> {
    device: OnDevice<'a>,
    with_mass: Mutex<BTreeMap<String, Vec<CallResult>>>,
}

impl Implementation for Recorded<'_> {
    fn run(&self, case: &Case) -> std::result::Result<Vec<CallResult>, String> {
        let results = self.device.run(case)?;
        if case.has_mass() {
            let mut with_mass = self.with_mass.lock().unwrap_or_else(PoisonError::into_inner);
            with_mass.insert(case.name.clone(), results.clone());
        }
        Ok(results)
    }
}

/// Runs the cases of a suite, with tensors that are aligned for their types only, or better. Emulated devices differ in
/// what GPUs may differ in. With bounds of 0 no sequence of more than one token is a decoding step of attention, and no
/// piece a unit: no bit changes. Emulated devices launch every kernel that stores and loads, or attends.
pub fn pass(suite: Suite) -> std::result::Result<(), Failed> {
    let device = Emulation { launched: Some(launched), ..Emulation::default() };
    let of = |order, multiprocessors| Emulation { order, multiprocessors, ..device };
    let passes = [
        (of(Order::Forward, 1), false, None),
        (Emulation { canonical_neg: true, ..of(Order::Backward, 0) }, true, Some([0, 0])),
        (of(Order::Random(1), 100), false, Some([3, 1 << 40])),
    ];
    let (cases, mut results) = (cases(suite)?, Vec::<BTreeMap<_, _>>::new());
    for (emulation, unaligned, bounds) in passes {
        let gpu = &Gpu::emulated(&emulation)?;
        let device = OnDevice { gpu, options: CallOptions { unaligned, bounds, ..CallOptions::default() } };
        let device = Recorded { device, with_mass: Mutex::default() };
        let report = Runner { jobs: gpu.jobs()?, ..Runner::default() }.run(&device, &cases);
        println!("{} passed, {} failed, {} unsupported", report.passed(), report.failed(), report.unsupported());
        if report.failed() > 0 || report.passed() < cases.len() / 2 {
            return Err(report.to_string().into());
        }
        results.push(device.with_mass.into_inner().unwrap_or_else(PoisonError::into_inner));
    }
    if results.iter().any(|other| *other != results[0]) {
        return Err("bits depend on how the work is cut".into());
    }
    let kernels: Vec<_> = match suite {
        Suite::KeyValueCache => MODULES.iter().flat_map(|module| &module.kernels[..4]).collect(),
        Suite::Attention => kvcache_attention::cuda::MODULES.iter().flat_map(|module| &module.kernels[..2]).collect(),
        Suite::Static => Vec::new(),
    };
    let costs = costs();
    let missing: Vec<_> = kernels.into_iter().filter(|&&kernel| !costs.contains_key(kernel)).collect();
    match missing.is_empty() || !Gpu::new()?.is_emulated()? {
        true => Ok(()),
        false => Err(format!("{missing:?} are not launched").into()),
    }
}

/// Runs the cases of static batching in graphs: index inputs are made in memory of the graph.
pub fn captured(gpu: &Gpu) -> std::result::Result<(), Failed> {
    let device = OnDevice { gpu, options: CallOptions { captured: true, ..CallOptions::default() } };
    let report = run_cases(&device, &cases(Suite::Static)?);
    match report.failed() > 0 || report.passed() < 50 {
        true => Err(report.to_string().into()),
        false => Ok(()),
    }
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

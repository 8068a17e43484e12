//! The CUDA kernels pass every golden case of a legal call. `op` checks the calls of `KeyValueCache`.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use kvcache_conformance::backends::{read, write};
use kvcache_conformance::{
    CallResult, Case, Expected, Implementation, Outcome, Report, Step, Tensor, attention, run, static_batching,
};
use kvcache_emulation_kernels::{EmulatedAttention, EmulatedCuda, Order};
use kvcache_kernels::Problem;
use kvcache_kernels::cuda::MODULES;
use kvcache_op::{ElementType, Error, IndexInputs, Inputs, KeyValueCache, StaticInputs, StaticKeyValueCache};
use kvcache_testing::attention_call::{State, attend};

/// The kernels as the conformance suite sees them. With a build for some types, cases of others cannot be run.
#[derive(Debug, Clone, Copy)]
pub struct Emulated(pub EmulatedAttention);

/// Why a call made no outputs.
enum Stop {
    /// The operator refused it, as it may.
    Refusal(Error),
    /// The kernels failed.
    Failure(String),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Refusal(error)
    }
}

impl Emulated {
    /// A checked call, whose outputs are of this type and shape.
    fn call(
        &self,
        (t1, shape): (ElementType, &[usize]),
        with: impl FnOnce(kvcache_op::Outputs<'_>, &dyn Fn(&mut Problem<'_>) -> Result<(), Stop>) -> Result<(), Stop>,
    ) -> Result<[Tensor; 2], Stop> {
        let output = || Tensor::zeros(t1, shape.to_vec()).expect("it fits in memory");
        let mut outputs = [output(), output()];
        let [key, value] = &mut outputs;
        with(kvcache_op::Outputs { key: write(key), value: write(value) }, &|problem| {
            let done =
                self.0.device.try_store(problem.reborrow_stores()).and_then(|()| self.0.device.try_load(problem));
            done.map_err(|failure| Stop::Failure(failure.to_string()))
        })?;
        Ok(outputs)
    }

    /// Why a case of these types cannot be run, if so.
    fn lacks(&self, t1: ElementType, t2: ElementType, t3: Option<ElementType>) -> Option<String> {
        let types: Vec<_> = [Some(t1), Some(t2), t3].into_iter().flatten().map(ElementType::short_name).collect();
        let build = self.0.device.build?;
        (types.join("_") != build.types).then(|| "other types".to_owned())
    }
}

/// What became of a call.
fn result(result: Result<[Tensor; 2], Stop>, cache: &Tensor, scale: Option<&Tensor>) -> Result<CallResult, String> {
    let outcome = match result {
        Ok(outputs) => Outcome::Done(outputs.into()),
        Err(Stop::Refusal(error)) => {
            Outcome::Refused { kind: Some(error.kind().to_owned()), message: error.to_string() }
        }
        Err(Stop::Failure(message)) => return Err(message),
    };
    Ok(CallResult { outcome, cache: Some(cache.clone()), scale: scale.cloned() })
}

impl Implementation for Emulated {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let op = KeyValueCache::new(case.attributes.clone());
        let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
        let mut run = |Step { inputs, .. }: &Step| {
            let outputs = op.as_ref().map_err(|error| error.clone().into()).and_then(|op| {
                let inputs = Inputs {
                    current_key: read(&inputs.current_key),
                    current_value: read(&inputs.current_value),
                    indices: IndexInputs {
                        seqstarts: read(&inputs.seqstarts),
                        kvstarts: read(&inputs.kvstarts),
                        cachestarts: read(&inputs.cachestarts),
                        start_pos: read(&inputs.start_pos),
                        max_seqlen: read(&inputs.max_seqlen),
                        max_kvlen: read(&inputs.max_kvlen),
                    },
                };
                let call = op.check(&inputs, write(&mut cache), scale.as_mut().map(write))?;
                let shape = call.output_shape();
                self.call((case.types.t1, &shape), |outputs, run| run(&mut call.bind(outputs)?))
            });
            result(outputs, &cache, scale.as_ref())
        };
        case.steps.iter().map(&mut run).collect()
    }

    fn cannot_run(&self, case: &Case) -> Option<String> {
        self.lacks(case.types.t1, case.types.t2, case.types.t3.filter(|_| case.attributes.quant_bit != 0))
    }
}

impl Implementation<static_batching::Case> for Emulated {
    fn run(&self, case: &static_batching::Case) -> Result<Vec<CallResult>, String> {
        let op = StaticKeyValueCache::new(case.attributes.clone());
        let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
        let mut run = |static_batching::Step { inputs, .. }: &static_batching::Step| {
            let outputs = op.as_ref().map_err(|error| error.clone().into()).and_then(|op| {
                let inputs = StaticInputs {
                    current_key: read(&inputs.current_key),
                    current_value: read(&inputs.current_value),
                    start_pos: read(&inputs.start_pos),
                };
                let call = op.check(&inputs, write(&mut cache), scale.as_mut().map(write))?;
                let shape = call.output_shape();
                self.call((case.types.t1, &shape), |outputs, run| call.with_problem(outputs, run)?)
            });
            result(outputs, &cache, scale.as_ref())
        };
        case.steps.iter().map(&mut run).collect()
    }

    fn cannot_run(&self, case: &static_batching::Case) -> Option<String> {
        self.lacks(case.types.t1, case.types.t2, case.types.t3.filter(|_| case.attributes.quant_bit != 0))
    }
}

impl Implementation<attention::Case> for Emulated {
    fn run(&self, case: &attention::Case) -> Result<Vec<CallResult>, String> {
        let mut state = State { cache: case.cache.clone(), scale: case.scale.clone() };
        let calls = case.steps.iter().map(|step| {
            let call = || attend(&self.0, &case.attributes, &step.inputs, &mut state);
            let fault = |panic: Box<dyn Any + Send>| format!("{:?}", panic.downcast::<String>());
            let outcome = Outcome::Done(vec![catch_unwind(AssertUnwindSafe(call)).map_err(fault)?]);
            Ok(CallResult { outcome, cache: state.cache.clone(), scale: state.scale.clone() })
        });
        calls.collect()
    }

    fn cannot_run(&self, case: &attention::Case) -> Option<String> {
        if case.steps.iter().any(|step| matches!(step.expected, Expected::Refusal { .. })) {
            return Some("a kernel gets legal calls alone".to_owned());
        }
        let scale = case.scale.as_ref().filter(|_| case.attributes.cache.quant_bit != 0);
        self.lacks(case.t1, case.cache.as_ref().map_or(case.t1, Tensor::element), scale.map(Tensor::element))
    }
}

const READ: &str = "the golden cases can be read";

/// The reports of `KeyValueCache` and of static batching.
pub fn stored(device: EmulatedCuda) -> [Report; 2] {
    let emulated = Emulated(EmulatedAttention { device, ..EmulatedAttention::default() });
    [run(&emulated, &kvcache_conformance::cases().expect(READ)), run(&emulated, &static_batching::cases().expect(READ))]
}

/// The report of attention, where the caller says this bound of seqlen.
pub fn attended(device: EmulatedCuda, max_seqlen: usize) -> Report {
    run(&Emulated(EmulatedAttention { device, max_seqlen }), &attention::cases().expect(READ))
}

fn all_cases_pass(device: EmulatedCuda, max_seqlen: usize) {
    for report in stored(device) {
        assert!(report.failed() + report.unsupported() == 0 && report.passed() > 50, "{device:?}: {report}");
    }
    let report = attended(device, max_seqlen);
    assert!(report.failed() == 0 && report.passed() > 200, "{device:?}: {report}");
}

/// Together the two launch every kernel that stores, loads or attends. With a bound of 0 no sequence of more than one
/// token is a decoding step.
#[test]
fn aligned_and_unaligned() {
    static LAUNCHED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let device = EmulatedCuda { launched: Some(&LAUNCHED), ..EmulatedCuda::default() };
    all_cases_pass(device, usize::MAX);
    all_cases_pass(EmulatedCuda { unaligned: true, order: Order::Backward, multiprocessors: 0, ..device }, 0);
    let attend = kvcache_attention::cuda::MODULES.iter().flat_map(|module| &module.kernels[..2]);
    let mut missing: BTreeSet<_> = MODULES.iter().flat_map(|module| module.kernels).chain(attend).collect();
    missing.retain(|&kernel| !LAUNCHED.lock().unwrap().contains(kernel));
    assert!(missing.is_empty(), "{missing:?} are not launched");
}

#[test]
fn any_order_on_a_large_device() {
    all_cases_pass(EmulatedCuda { order: Order::Random(1), multiprocessors: 100, ..EmulatedCuda::default() }, 3);
}

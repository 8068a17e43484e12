//! The CUDA kernels pass every golden case, and random ones; `op` checks the calls.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::sync::Mutex;

use kvcache_attention::AttentionKernel;
use kvcache_conformance::backends::{run_attention, run_calls, run_static_calls, write};
use kvcache_conformance::random::{self, Plan, Unstructured};
use kvcache_conformance::{CallResult, Case, Implementation, Operator, Report, Suite, cases, run_cases};
use kvcache_emulation_ptx::{Counts, EmulatedAttention, EmulatedCuda, Freedom, Order};
use kvcache_kernels::cuda::MODULES;
use kvcache_kernels::{Kernel, Reference, Serial};
use kvcache_op::{AttentionBackend, Backend};
use kvcache_schema::TypeCombination;

/// The kernels as the conformance suite sees them: a fault is a panic, which fails its case. With a mutant of some
/// types, cases of others cannot be run.
#[derive(Debug, Clone, Copy)]
pub struct Emulated(pub EmulatedAttention);

impl Implementation for Emulated {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        // A scale that is not used has any type.
        let is_used = |name: &str| name != "T3" || case.attributes["quant_bit"] != 0;
        let types = case.types().into_iter().filter(|(name, _)| is_used(name));
        let mut types: Vec<_> = types.map(|(_, element)| element.short_name()).collect();
        if case.operator == Operator::MultiHeadAttention {
            types.push(types[0]); // of the packed keys and values
        }
        if self.0.device.mutant.is_some_and(|mutant| mutant.types != types.join("_")) {
            return Ok(vec![CallResult::unsupported("other types")]);
        }
        Ok(match case.operator {
            Operator::KeyValueCache => run_calls(case, Backend::Reference, |call, outputs| {
                self.0.device.run(&mut call.bind(outputs)?, &Serial);
                Ok(())
            }),
            Operator::StaticKeyValueCache => run_static_calls(case, Backend::Reference, |call, outputs| {
                call.with_problem(outputs, |problem| self.0.device.run(problem, &Serial))
            }),
            Operator::MultiHeadAttention | Operator::MultiHeadCacheAttention => self.attend(case),
        })
    }
}

impl Emulated {
    fn attend(&self, case: &Case) -> Vec<CallResult> {
        let reference = (AttentionBackend::Reference, Backend::Reference);
        run_attention(case, reference, |call, output, mass| {
            let mut sums = mass.as_ref().map(|mass| vec![MaybeUninit::new(f32::NAN); mass.bytes().len() / 4]);
            let (mut problem, attn_output) = call.bind(write(output))?;
            problem.store(&Reference, &Serial);
            AttentionKernel::attend(&self.0, &problem, attn_output, sums.as_deref_mut(), &Serial);
            for (mass, sums) in mass.into_iter().zip(sums) {
                // SAFETY: they have been numbers from the beginning.
                let sums = sums.into_iter().map(|sum| unsafe { sum.assume_init() });
                mass.bytes_mut().copy_from_slice(&sums.flat_map(f32::to_ne_bytes).collect::<Vec<_>>());
            }
            Ok(())
        })
    }
}

pub fn golden(suite: Suite) -> Vec<Case> {
    cases(suite).expect("the golden cases can be read")
}

/// With these bounds of seqlen and of kvlen. Gives the outputs of the cases with a mass.
fn all_cases_pass(device: EmulatedCuda, [max_seqlen, max_kvlen]: [usize; 2]) -> Vec<CallResult> {
    let emulated = Emulated(EmulatedAttention { device, max_seqlen, max_kvlen });
    for suite in Suite::ALL {
        let report = run_cases(&emulated, &golden(suite));
        assert!(report.failed() == 0 && report.passed() > 200, "{device:?}: {report}");
    }
    let with_mass = golden(Suite::Attention).into_iter().filter(Case::has_mass);
    with_mass.flat_map(|case| emulated.run(&case).expect("it has passed")).collect()
}

/// What GPUs may do otherwise, the second does otherwise. Together the two launch every kernel that stores, loads or
/// attends. With bounds of 0 no sequence of more than one
/// token is a decoding step, and no piece a unit.
#[test]
fn aligned_and_unaligned() {
    static LAUNCHED: Mutex<BTreeMap<&str, Counts>> = Mutex::new(BTreeMap::new());
    let device = EmulatedCuda { launched: Some(&LAUNCHED), ..EmulatedCuda::default() };
    let results = all_cases_pass(device, [usize::MAX; 2]);
    let freedom = Freedom { reciprocal: -1, canonical_neg: true };
    let other = EmulatedCuda { unaligned: true, order: Order::Backward, multiprocessors: 0, freedom, ..device };
    assert!(all_cases_pass(other, [0; 2]) == results && results.len() > 8, "bits depend on how the work is cut");
    let attend = kvcache_attention::cuda::MODULES.iter().flat_map(|module| &module.kernels[..2]);
    let mut missing: Vec<_> = MODULES.iter().flat_map(|module| &module.kernels[..4]).chain(attend).collect();
    missing.retain(|&kernel| !LAUNCHED.lock().unwrap().contains_key(kernel));
    assert!(missing.is_empty(), "{missing:?} are not launched");
}

#[test]
fn any_order_on_a_large_device() {
    let freedom = Freedom { reciprocal: 1, canonical_neg: false };
    let device = EmulatedCuda { order: Order::Random(1), multiprocessors: 100, freedom, ..EmulatedCuda::default() };
    all_cases_pass(device, [3, usize::MAX]);
}

/// On devices of few multiprocessors, whose threads run in any order; without multiprocessors, small calls have long
/// rounds. The last calls are large enough that warps make several rounds.
#[test]
fn random_cases() {
    let passes = |report: Report, device| assert!(report.failed() + report.unsupported() == 0, "{device:?}: {report}");
    for seed in 0..8 {
        let entropy = &mut Unstructured::seed(seed);
        let order = entropy.pick(&[Order::Forward, Order::Backward, Order::Random(seed as u32)]);
        let (unaligned, multiprocessors) = (seed % 2 == 1, seed as u32 / 2);
        let device = EmulatedCuda { unaligned, multiprocessors, order, ..EmulatedCuda::default() };
        let emulated = Emulated(EmulatedAttention { device, ..EmulatedAttention::default() });
        passes(run_cases(&emulated, &random::cases(Suite::KeyValueCache, 60, seed)), device);
        passes(run_cases(&emulated, &random::cases(Suite::Static, 30, seed)), device);
        let large: Vec<_> = (0..4).map(|_| Plan::draw(entropy, 40, 40)).collect();
        passes(run_cases(&emulated, &large.iter().map(|plan| plan.call(entropy).case()).collect::<Vec<_>>()), device);
    }
}

/// Keys that are rotated before they are quantized, of every type of cache that has codes.
#[test]
fn rotated_cases() {
    let entropy = &mut Unstructured::seed(4);
    for (seed, types) in TypeCombination::all().filter(|types| types.t3.is_some()).enumerate() {
        let order = Order::Random(seed as u32);
        let device = EmulatedCuda { unaligned: seed % 2 == 1, order, ..EmulatedCuda::default() };
        let emulated = Emulated(EmulatedAttention { device, ..EmulatedAttention::default() });
        let cases = [(); 6].map(|()| {
            let plan = Plan::draw(entropy, 12, 8);
            let mut call = Plan { types, group: plan.group.next_multiple_of(2), ..plan }.call(entropy);
            call.attributes.insert("quant_rotation", 1);
            // Sums and differences that are not a number have signs of the hardware's.
            Case { any_nan: true, ..call.case() }
        });
        let report = run_cases(&emulated, &cases);
        assert!(report.failed() + report.unsupported() == 0, "{device:?}: {report}");
    }
}

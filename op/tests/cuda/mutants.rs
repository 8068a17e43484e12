//! Mutation testing: kernels with one bug each, an edit of their PTX, fail a golden case, or violate the rules for
//! kernels.

use std::ffi::CString;
use std::sync::Mutex;
use std::thread;

use kvcache_conformance::{CallResult, Case, Implementation, Operator, Suite, run_cases};
use kvcache_emulation_ptx::{Emulation, Order};
use kvcache_kernels::cuda::{MODULES, Module};
use kvcache_op::ElementType;
use libtest_mimic::Failed;

use crate::call::CallOptions;
use crate::counts::{LARGE_BOUNDS, case};
use crate::device::{Gpu, Result as OnGpu};
use crate::golden::{OnDevice, cases};

/// The types of a module, a kernel, and what is replaced in all its lines, by what.
const EDITS: [(&str, &str, &str, &str); 39] = [
    ("f16_i8_f16", "store_wide", "shfl.sync.bfly", "shfl.sync.up"),
    ("f16_i8_f16", "store_wide", "add.rn.f16x2", "sub.rn.f16x2"),
    ("f16_i8_f16", "store_narrow", "rcp.rn.f32", "neg.f32"),
    ("f32_i8_f32", "store_wide", "max.u32", "min.u32"),
    ("f32_i8_f32", "store_wide", "fma.rn.f32", "mul.rn.f32"),
    ("f16_i4_f16", "store_wide", "prmt.b32", "and.b32"),
    ("f16_i4_f16", "store_wide", "max.s32", "min.s32"),
    ("f32_i4_f32", "store_wide", "min.f32", "max.f32"),
    ("bf16_i4_f32", "store_narrow", "shf.l.wrap.b32", "xor.b32"),
    ("f16_i4_f16", "store_rotated", "add.rn.f32", "sub.rn.f32"),
    ("f32_i8_f32", "store_rotated", "shfl.sync.bfly", "shfl.sync.up"),
    ("f32_f8_f16", "load_rotated", "shr.u32", "shl.b32"),
    ("f16_f8_f16", "store_narrow", "setp.gt.f32", "setp.lt.f32"),
    ("f16_f16", "store_wide", "%ctaid.x", "0"),
    ("f16_f16", "store_wide", "div.u32", "rem.u32"),
    ("f16_f16", "store_narrow", "mul.hi.u32", "mul.lo.u32"),
    ("f32_f16", "store_wide", "cvt.rn.f16.f32", "cvt.rz.f16.f32"),
    ("f32_i8_f16", "load_wide", "cvt.rn.f16.f32", "cvt.rz.f16.f32"),
    ("f16_i4_f16", "load_wide", "xor.b32", "or.b32"),
    ("f16_f32", "load_narrow", "ld.global.nc.u32", "ld.global.nc.u16"),
    ("f16_f16", "load_wide", ".v4.u32", ".v2.u64"),
    ("f32_f32", "load_wide", "shfl.sync.up", "shfl.sync.down"),
    ("i8_i8", "load_narrow", "min.s64", "max.s64"),
    ("f16_i8_f16", "attend_wide", "shfl.sync.bfly", "shfl.sync.idx"),
    ("f16_i4_f16", "attend_narrow", "xor.b32", "or.b32"),
    ("f16_i8_f16", "attend_wide", "mul.rn.f16x2", "add.rn.f16x2"),
    ("f32_i4_f16", "attend_wide", "prmt.b32", "and.b32"),
    ("f16_f8_f16", "attend_wide", "sub.s32", "add.s32"),
    ("f32_f32", "attend_wide", "setp.num.f32", "setp.nan.f32"),
    ("f32_f32", "attend_wide", "setp.lt.s64", "setp.le.s64"),
    ("f16_f16", "attend_wide", "mul.rn.f32", "add.rn.f32"),
    ("f16_f32", "attend_wide", "div.rn.f32", "mul.rn.f32"),
    ("f32_f32", "attend_narrow", "cvt.rn.f32.s64", "cvt.rn.f32.u32"),
    ("f32_f16", "attend_narrow", "setp.lt.f32", "setp.gt.f32"),
    ("f32_i8_f32", "attend_wide", "%ctaid.x", "0"),
    ("f32_f32", "combine", "mul.rn.f32", "add.rn.f32"),
    ("f16_f16", "mass_wide", "add.rn.f32", "sub.rn.f32"),
    ("f32_f32", "mass_wide", "shfl.sync.bfly", "shfl.sync.up"),
    ("f32_i4_f16", "mass_narrow", "mul.rn.f32", "add.rn.f32"),
];

/// The types and the first kernel of modules, of whose first four kernels every barrier is taken out, one by one.
const BARRIERS: [(&str, &str); 4] =
    [("f16_f16", "store_wide"), ("f16_i8_f16", "store_wide"), ("f16_f16", "attend_wide"), ("f32_f32", "attend_wide")];

/// The module that has a kernel.
fn module(kernel: &str) -> &'static Module {
    let mut modules = MODULES.iter().chain(&kvcache_attention::cuda::MODULES);
    modules.find(|module| module.kernels.contains(&kernel)).expect("a module has the kernel")
}

/// A kernel with one bug.
struct Mutant {
    name: String,
    module: &'static Module,
    kernel: CString,
    /// The text of the whole module.
    ptx: CString,
}

impl Mutant {
    /// A kernel whose lines are edited if `edit` gives others.
    fn new(kernel: &str, name: String, mut edit: impl FnMut(&str) -> Option<String>) -> Option<Self> {
        let module = module(kernel);
        let ptx = module.ptx().expect("the PTX is not damaged");
        let (mut inside, mut edited, mut lines) = (false, false, Vec::new());
        for line in ptx.lines() {
            if line.contains(".entry ") {
                inside = line.contains(kernel);
            }
            let other = if inside { edit(line) } else { None };
            edited |= other.is_some();
            lines.push(other.unwrap_or_else(|| line.to_owned()));
            inside &= !line.starts_with('}');
        }
        let [kernel, ptx] = [kernel.to_owned(), lines.join("\n")].map(|text| CString::new(text).expect("a text"));
        edited.then_some(Self { name, module, kernel, ptx })
    }

    /// An emulated device that has this kernel.
    fn device(&self, order: Order) -> Emulation {
        let replaced = [self.kernel.as_ptr(), self.ptx.as_ptr()];
        Emulation { order, multiprocessors: 1, replaced, ..Emulation::default() }
    }
}

fn mutants() -> Vec<Mutant> {
    let mut mutants = Vec::new();
    for (types, kernel, from, to) in EDITS {
        let name = format!("{kernel}_{types}: {to} for {from}");
        let kernel = format!("kvcache_{kernel}_{types}");
        let edit = |line: &str| line.contains(from).then(|| line.replace(from, to));
        let mutant = Mutant::new(&kernel, name, edit);
        mutants.push(mutant.unwrap_or_else(|| panic!("{kernel} has no {from}")));
    }
    for (types, kernel) in BARRIERS {
        // The kernel that makes index inputs has none.
        for kernel in &module(&format!("kvcache_{kernel}_{types}")).kernels[..4] {
            mutants.extend((0..).map_while(|nth| {
                let (mut barriers, mut joins) = (0, 0);
                let name = format!("{kernel} without barrier {nth}");
                Mutant::new(kernel, name, |line| {
                    let is_join = line.contains("bar.red");
                    joins += usize::from(is_join);
                    // The third is for wrong lengths only, which no golden case has.
                    if !is_join && !line.contains("bar.sync") || is_join && joins == 3 {
                        return None;
                    }
                    barriers += 1;
                    // A join keeps the thread's own value.
                    let own = line.replace("bar.red.or.pred", "mov.pred").replace(" 0, ", " ");
                    (barriers == nth + 1).then(|| if is_join { own } else { String::new() })
                })
            }));
        }
    }
    mutants
}

/// What mutants must fail.
struct Proof {
    /// Golden cases, each with its types, of the kernels that store and load, and of attention.
    golden: [Vec<(String, Case)>; 2],
    /// float16 steps of two pieces, over packed keys or a cache, and what they give: no golden case has any.
    steps: Vec<(Case, Vec<CallResult>)>,
}

impl Proof {
    fn new() -> OnGpu<Self> {
        let golden = |suites: &[Suite]| -> Result<_, Failed> {
            let all = suites.iter().map(|&suite| cases(suite)).collect::<Result<Vec<_>, _>>()?;
            Ok(all.into_iter().flatten().map(|case| (types(&case), case)).collect())
        };
        let golden = [golden(&[Suite::KeyValueCache, Suite::Static]), golden(&[Suite::Attention])];
        let [cache, attention] = golden.map(|cases| cases.map_err(|error| format!("{error:?}")));
        let device = Emulation { multiprocessors: 1, ..Emulation::default() };
        let (gpu, bounds) = (&Gpu::emulated(&device)?, Some(LARGE_BOUNDS));
        let right = OnDevice { gpu, options: CallOptions { bounds, ..CallOptions::default() } };
        let steps = [Operator::MultiHeadAttention, Operator::MultiHeadCacheAttention].map(|operator| {
            let case = case(operator, ElementType::Float16, 1, 1);
            right.run(&case).map(|results| (case, results))
        });
        Ok(Self { golden: [cache?, attention?], steps: steps.into_iter().collect::<Result<_, _>>()? })
    }

    /// Whether a case fails on a kernel. A fault ends the use of its device.
    fn finds(&self, mutant: &Mutant) -> OnGpu<bool> {
        let gpu = &Gpu::emulated(&mutant.device(Order::Forward))?;
        let device = |unaligned, bounds| OnDevice {
            gpu,
            options: CallOptions { unaligned, bounds: Some(bounds), ..CallOptions::default() },
        };
        let types = mutant.module.types;
        let is_attention = kvcache_attention::cuda::MODULES.iter().any(|module| std::ptr::eq(module, mutant.module));
        if is_attention && types == "f16_f16" {
            let right = device(false, LARGE_BOUNDS);
            if self.steps.iter().any(|(case, results)| right.run(case).as_ref() != Ok(results)) {
                return Ok(true);
            }
        }
        for (order, bounds) in [(Order::Forward, LARGE_BOUNDS), (Order::Backward, [0; 2])] {
            gpu.emulate(&mutant.device(order))?;
            for unaligned in [false, true] {
                let device = device(unaligned, bounds);
                let mut cases = self.golden[usize::from(is_attention)].iter().filter(|(of_case, _)| of_case == types);
                if cases.any(|(_, case)| run_cases(&device, std::slice::from_ref(case)).failed() > 0) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// The types of a case as in the names of its kernels.
fn types(case: &Case) -> String {
    // A scale that is not used has any type.
    let is_used = |name: &str| name != "T3" || case.attributes["quant_bit"] != 0;
    let types = case.types().into_iter().filter(|(name, _)| is_used(name));
    let mut types: Vec<_> = types.map(|(_, element)| element.short_name()).collect();
    if case.operator == Operator::MultiHeadAttention {
        types.push(types[0]); // of the packed keys and values
    }
    types.join("_")
}

/// Every kernel with a bug fails a case; modules that are replaced by the same text fail none.
pub fn every_mutant_is_found(gpu: &Gpu) -> Result<(), Failed> {
    if !gpu.is_emulated()? {
        return Ok(());
    }
    let proof = Proof::new()?;
    let same = |(types, kernel)| {
        let kernel = format!("kvcache_{kernel}_{types}");
        Mutant::new(&kernel, format!("{kernel} unchanged"), |line| Some(line.to_owned()))
    };
    let (mutants, unchanged) = (mutants(), BARRIERS.into_iter().filter_map(same));
    assert!(mutants.len() > EDITS.len() + 10);
    let expected = mutants.into_iter().map(|mutant| (mutant, true)).chain(unchanged.map(|same| (same, false)));
    let (expected, wrong) = (Mutex::new(expected.collect::<Vec<_>>()), Mutex::new(Vec::new()));
    let next = || expected.lock().expect("no thread panics here").pop();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((mutant, is_found)) = next() {
                    let found = proof.finds(&mutant).map_err(|error| error.to_string());
                    if found != Ok(is_found) {
                        wrong.lock().expect("no thread panics here").push(format!("{}: {found:?}", mutant.name));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("no thread panics here");
    if wrong.is_empty() { Ok(()) } else { Err(format!("{wrong:#?}").into()) }
}

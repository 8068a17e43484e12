//! Mutation testing: kernels with one bug each, an edit of their PTX, fail a golden case, or violate the rules for
//! kernels.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{LazyLock, Mutex};
use std::{slice, thread};

use kvcache_conformance::{CallResult, Case, Implementation, Operator, Suite, run_cases};
use kvcache_emulation_ptx::{EmulatedAttention, EmulatedCuda, Freedom, Mutant, Order, kernels};
use kvcache_kernels::cuda::{MODULES, Module};
use kvcache_schema::ElementType;

use crate::counts::case;
use crate::golden::{Emulated, golden};
use Modules::{Attention, Cache};

/// The kernels that store and load, and those of attention.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Modules {
    Cache,
    Attention,
}

/// The modules and their types, a kernel, and what is replaced in all its lines, by what.
const EDITS: [(Modules, &str, &str, &str, &str); 39] = [
    (Cache, "f16_i8_f16", "store_wide", "shfl.sync.bfly", "shfl.sync.up"),
    (Cache, "f16_i8_f16", "store_wide", "add.rn.f16x2", "sub.rn.f16x2"),
    (Cache, "f16_i8_f16", "store_narrow", "rcp.rn.f32", "neg.f32"),
    (Cache, "f32_i8_f32", "store_wide", "max.u32", "min.u32"),
    (Cache, "f32_i8_f32", "store_wide", "fma.rn.f32", "mul.rn.f32"),
    (Cache, "f16_i4_f16", "store_wide", "prmt.b32", "and.b32"),
    (Cache, "f16_i4_f16", "store_wide", "max.s32", "min.s32"),
    (Cache, "f32_i4_f32", "store_wide", "min.f32", "max.f32"),
    (Cache, "bf16_i4_f32", "store_narrow", "shf.l.wrap.b32", "xor.b32"),
    (Cache, "f16_i4_f16", "store_rotated", "add.rn.f32", "sub.rn.f32"),
    (Cache, "f32_i8_f32", "store_rotated", "shfl.sync.bfly", "shfl.sync.up"),
    (Cache, "f32_f8_f16", "load_rotated", "shr.u32", "shl.b32"),
    (Cache, "f16_f8_f16", "store_narrow", "setp.gt.f32", "setp.lt.f32"),
    (Cache, "f16_f16", "store_wide", "%ctaid.x", "0"),
    (Cache, "f16_f16", "store_wide", "div.u32", "rem.u32"),
    (Cache, "f16_f16", "store_narrow", "mul.hi.u32", "mul.lo.u32"),
    (Cache, "f32_f16", "store_wide", "cvt.rn.f16.f32", "cvt.rz.f16.f32"),
    (Cache, "f32_i8_f16", "load_wide", "cvt.rn.f16.f32", "cvt.rz.f16.f32"),
    (Cache, "f16_i4_f16", "load_wide", "xor.b32", "or.b32"),
    (Cache, "f16_f32", "load_narrow", "ld.global.nc.u32", "ld.global.nc.u16"),
    (Cache, "f16_f16", "load_wide", ".v4.u32", ".v2.u64"),
    (Cache, "f32_f32", "load_wide", "shfl.sync.up", "shfl.sync.down"),
    (Cache, "i8_i8", "load_narrow", "min.s64", "max.s64"),
    (Attention, "f16_i8_f16", "attend_wide", "shfl.sync.bfly", "shfl.sync.idx"),
    (Attention, "f16_i4_f16", "attend_narrow", "xor.b32", "or.b32"),
    (Attention, "f16_i8_f16", "attend_wide", "mul.rn.f16x2", "add.rn.f16x2"),
    (Attention, "f32_i4_f16", "attend_wide", "prmt.b32", "and.b32"),
    (Attention, "f16_f8_f16", "attend_wide", "sub.s32", "add.s32"),
    (Attention, "f32_f32", "attend_wide", "setp.num.f32", "setp.nan.f32"),
    (Attention, "f32_f32", "attend_wide", "setp.lt.s64", "setp.le.s64"),
    (Attention, "f16_f16", "attend_wide", "mul.rn.f32", "add.rn.f32"),
    (Attention, "f16_f32", "attend_wide", "div.rn.f32", "mul.rn.f32"),
    (Attention, "f32_f32", "attend_narrow", "cvt.rn.f32.s64", "cvt.rn.f32.u32"),
    (Attention, "f32_f16", "attend_narrow", "setp.lt.f32", "setp.gt.f32"),
    (Attention, "f32_i8_f32", "attend_wide", "%ctaid.x", "0"),
    (Attention, "f32_f32", "combine", "mul.rn.f32", "add.rn.f32"),
    (Attention, "f16_f16", "mass_wide", "add.rn.f32", "sub.rn.f32"),
    (Attention, "f32_f32", "mass_wide", "shfl.sync.bfly", "shfl.sync.up"),
    (Attention, "f32_i4_f16", "mass_narrow", "mul.rn.f32", "add.rn.f32"),
];

/// The types of which every barrier is taken out, one by one.
const BARRIERS: [(Modules, &str); 4] =
    [(Cache, "f16_f16"), (Cache, "f16_i8_f16"), (Attention, "f16_f16"), (Attention, "f32_f32")];

fn module(of: Modules, types: &str) -> &'static Module {
    let modules = match of {
        Cache => &MODULES[..],
        Attention => &kvcache_attention::cuda::MODULES,
    };
    modules.iter().find(|module| module.types == types).expect("a module has these types")
}

/// A mutant of a kernel, whose lines are edited if `edit` gives others.
fn mutant(
    module: &Module,
    kernel: &str,
    name: String,
    mut edit: impl FnMut(&str) -> Option<String>,
) -> Option<&'static Mutant> {
    let ptx = module.ptx().expect("the PTX is not damaged");
    // Whether a line is of an entry, and of this kernel.
    let (mut inside, mut edited, mut lines) = (None, false, Vec::new());
    for line in ptx.lines() {
        if line.contains(".entry ") {
            inside = Some(line.contains(kernel));
        }
        let other = if inside == Some(true) { edit(line) } else { None };
        edited |= other.is_some();
        if inside != Some(false) {
            lines.push(other.unwrap_or_else(|| line.to_owned()));
        }
        inside = inside.filter(|_| !line.starts_with('}'));
    }
    let kernels = kernels(&lines.join("\n"), Freedom::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
    edited.then(|| &*Box::leak(Box::new(Mutant { name, types: module.types, kernels })))
}

/// All mutants, and whose kernels they are.
fn mutants() -> Vec<(&'static Mutant, Modules)> {
    let mut mutants = Vec::new();
    for (of, types, kernel, from, to) in EDITS {
        let name = format!("{kernel}_{types}: {to} for {from}");
        let kernel = format!("kvcache_{kernel}_{types}");
        let edit = |line: &str| line.contains(from).then(|| line.replace(from, to));
        let mutant = mutant(module(of, types), &kernel, name, edit);
        mutants.push((mutant.unwrap_or_else(|| panic!("{kernel} has no {from}")), of));
    }
    for (of, types) in BARRIERS {
        let module = module(of, types);
        // The kernel that makes index inputs has none.
        for kernel in &module.kernels[..4] {
            mutants.extend((0..).map_while(|nth| {
                let (mut barriers, mut joins) = (0, 0);
                let name = format!("{kernel} without barrier {nth}");
                let mutant = mutant(module, kernel, name, |line| {
                    let is_join = line.contains("bar.red");
                    joins += usize::from(is_join);
                    // The third is for wrong lengths only, of which the golden cases have none.
                    if !is_join && !line.contains("bar.sync") || is_join && joins == 3 {
                        return None;
                    }
                    barriers += 1;
                    // A join keeps the thread's own value.
                    let own = line.replace("bar.red.or.pred", "mov.pred").replace(" 0, ", " ");
                    (barriers == nth + 1).then(|| if is_join { own } else { String::new() })
                });
                Some((mutant?, of))
            }));
        }
    }
    mutants
}

/// Whether float16 steps of two pieces, over packed keys or a cache, have other results, or none. No golden case has any.
fn is_found_in_steps(mutant: &'static Mutant) -> bool {
    static CASES: LazyLock<[(Case, Vec<CallResult>); 2]> = LazyLock::new(|| {
        [Operator::MultiHeadAttention, Operator::MultiHeadCacheAttention].map(|operator| {
            let case = case(operator, ElementType::Float16, 1, 1);
            let results = Emulated(EmulatedAttention::default()).run(&case).expect("the case can be run");
            (case, results)
        })
    });
    let device = EmulatedCuda { mutant: Some(mutant), ..EmulatedCuda::default() };
    let emulated = Emulated(EmulatedAttention { device, ..EmulatedAttention::default() });
    CASES.iter().any(|(case, results)| {
        let run = catch_unwind(AssertUnwindSafe(|| emulated.run(case)));
        !run.is_ok_and(|run| run.as_ref() == Ok(results))
    })
}

/// Whether a golden case fails on kernels.
fn is_found(mutant: &'static Mutant, of: Modules) -> bool {
    let devices = [(false, Order::Forward), (true, Order::Forward), (false, Order::Backward), (true, Order::Backward)];
    static CASES: LazyLock<[Vec<Case>; 2]> = LazyLock::new(|| {
        [&[Suite::KeyValueCache, Suite::Static][..], &[Suite::Attention]]
            .map(|suites| suites.iter().flat_map(|suite| golden(*suite)).collect())
    });
    if of == Attention && mutant.types == "f16_f16" && is_found_in_steps(mutant) {
        return true;
    }
    devices.into_iter().any(|(unaligned, order)| {
        let device = EmulatedCuda { mutant: Some(mutant), unaligned, order, ..EmulatedCuda::default() };
        let max_seqlen = if order == Order::Forward { usize::MAX } else { 0 };
        let emulated = Emulated(EmulatedAttention { device, max_seqlen, max_kvlen: usize::MAX });
        CASES[usize::from(of == Attention)].iter().any(|case| run_cases(&emulated, slice::from_ref(case)).failed() > 0)
    })
}

#[test]
fn every_mutant_is_found() {
    let (mutants, survivors) = (Mutex::new(mutants()), Mutex::new(Vec::new()));
    assert!(mutants.lock().unwrap().len() > EDITS.len() + 10);
    let next = || mutants.lock().unwrap().pop();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((mutant, of)) = next() {
                    if !is_found(mutant, of) {
                        survivors.lock().unwrap().push(&mutant.name);
                    }
                }
            });
        }
    });
    let survivors = survivors.into_inner().unwrap();
    assert!(survivors.is_empty(), "{survivors:#?}");
}

/// Kernels that are read from their text as the mutants are pass on the same runner.
#[test]
fn unchanged_kernels_fail_no_case() {
    for (of, types) in BARRIERS {
        for kernel in &module(of, types).kernels[..4] {
            let same = mutant(module(of, types), kernel, String::from("none"), |line| Some(line.to_owned()));
            assert!(same.is_some_and(|same| !is_found(same, of)), "{kernel}");
        }
    }
}

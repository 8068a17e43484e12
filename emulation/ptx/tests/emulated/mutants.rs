//! Mutation testing: kernels with one bug each, an edit of their PTX, fail a golden case, or violate the rules for
//! kernels.

use std::sync::{LazyLock, Mutex};
use std::{slice, thread};

use kvcache_conformance::{Case, Suite, run_cases};
use kvcache_emulation_ptx::{EmulatedAttention, EmulatedCuda, Freedom, Mutant, Order, kernels};
use kvcache_kernels::cuda::{MODULES, Module};

use crate::golden::{Emulated, golden};

/// The types of a module of kernels that store and load, or with `attends` of those of attention; a kernel; and what is
/// replaced in all its lines, by what.
const EDITS: [(bool, &str, &str, &str, &str); 30] = [
    (false, "f16_i8_f16", "store_wide", "shfl.sync.bfly", "shfl.sync.up"),
    (false, "f16_i8_f16", "store_wide", "add.rn.f16x2", "sub.rn.f16x2"),
    (false, "f16_i8_f16", "store_narrow", "rcp.approx.ftz.f32", "neg.f32"),
    (false, "f32_i8_f32", "store_wide", "max.u32", "min.u32"),
    (false, "f32_i8_f32", "store_wide", "fma.rn.f32", "mul.rn.f32"),
    (false, "f16_i4_f16", "store_wide", "prmt.b32", "and.b32"),
    (false, "f16_f8_f16", "store_narrow", "setp.gt.f32", "setp.lt.f32"),
    (false, "f16_f16", "store_wide", "%ctaid.x", "0"),
    (false, "f16_f16", "store_wide", "div.u32", "rem.u32"),
    (false, "f16_f16", "store_narrow", "mul.hi.u32", "mul.lo.u32"),
    (false, "f32_f16", "store_wide", "cvt.rn.f16.f32", "cvt.rz.f16.f32"),
    (false, "f32_i8_f16", "load_wide", "cvt.rn.f16.f32", "cvt.rz.f16.f32"),
    (false, "f16_i4_f16", "load_wide", "xor.b32", "or.b32"),
    (false, "f16_f32", "load_narrow", "ld.global.nc.u32", "ld.global.nc.u16"),
    (false, "f16_f16", "load_wide", ".v4.u32", ".v2.u64"),
    (false, "f32_f32", "load_wide", "shfl.sync.up", "shfl.sync.down"),
    (false, "i8_i8", "load_narrow", "min.s64", "max.s64"),
    (true, "f16_i8_f16", "attend_wide", "shfl.sync.bfly", "shfl.sync.idx"),
    (true, "f16_i4_f16", "attend_narrow", "xor.b32", "or.b32"),
    (true, "f32_f32", "attend_wide", "setp.num.f32", "setp.nan.f32"),
    (true, "f32_f32", "attend_wide", "setp.lt.s64", "setp.le.s64"),
    (true, "f16_f16", "attend_wide", "mul.rn.f32", "add.rn.f32"),
    (true, "f16_f32", "attend_wide", "div.rn.f32", "mul.rn.f32"),
    (true, "f32_f32", "attend_narrow", "cvt.rn.f32.s64", "cvt.rn.f32.u32"),
    (true, "f32_f16", "attend_narrow", "setp.lt.f32", "setp.gt.f32"),
    (true, "f32_i8_f32", "attend_wide", "%ctaid.x", "0"),
    (true, "f32_f32", "combine", "mul.rn.f32", "add.rn.f32"),
    (true, "f16_f16", "mass", "add.rn.f32", "sub.rn.f32"),
    (true, "f32_f32", "mass", "shfl.sync.bfly", "shfl.sync.up"),
    (true, "f32_i4_f16", "mass", "mul.rn.f32", "add.rn.f32"),
];

/// The types of which every barrier is taken out, one by one.
const BARRIERS: [(bool, &str); 4] = [(false, "f16_f16"), (false, "f16_i8_f16"), (true, "f16_f16"), (true, "f32_f32")];

fn module(attends: bool, types: &str) -> &'static Module {
    let modules = if attends { &kvcache_attention::cuda::MODULES[..] } else { &MODULES[..] };
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

/// All mutants, and whether they attend.
fn mutants() -> Vec<(&'static Mutant, bool)> {
    let mut mutants = Vec::new();
    for (attends, types, kernel, from, to) in EDITS {
        let name = format!("{kernel}_{types}: {to} for {from}");
        let kernel = format!("kvcache_{kernel}_{types}");
        let edit = |line: &str| line.contains(from).then(|| line.replace(from, to));
        let mutant = mutant(module(attends, types), &kernel, name, edit);
        mutants.push((mutant.unwrap_or_else(|| panic!("{kernel} has no {from}")), attends));
    }
    for (attends, types) in BARRIERS {
        let module = module(attends, types);
        // The kernel that makes index inputs has none. No golden case has float16 steps over packed keys in several
        // pieces, whose sums float32 shows.
        for kernel in module.kernels[..4].iter().filter(|kernel| !kernel.contains("combine_f16")) {
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
                Some((mutant?, attends))
            }));
        }
    }
    mutants
}

/// Whether a golden case fails on kernels.
fn is_found(mutant: &'static Mutant, attends: bool) -> bool {
    let devices = [(false, Order::Forward), (true, Order::Forward), (false, Order::Backward), (true, Order::Backward)];
    static CASES: LazyLock<[Vec<Case>; 2]> = LazyLock::new(|| {
        [&[Suite::KeyValueCache, Suite::Static][..], &[Suite::Attention]]
            .map(|suites| suites.iter().flat_map(|suite| golden(*suite)).collect())
    });
    devices.into_iter().any(|(unaligned, order)| {
        let device = EmulatedCuda { mutant: Some(mutant), unaligned, order, ..EmulatedCuda::default() };
        let max_seqlen = if order == Order::Forward { usize::MAX } else { 0 };
        let emulated = Emulated(EmulatedAttention { device, max_seqlen });
        CASES[usize::from(attends)].iter().any(|case| run_cases(&emulated, slice::from_ref(case)).failed() > 0)
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
                while let Some((mutant, attends)) = next() {
                    if !is_found(mutant, attends) {
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
    for (attends, types) in BARRIERS {
        for kernel in &module(attends, types).kernels[..4] {
            let same = mutant(module(attends, types), kernel, String::from("none"), |line| Some(line.to_owned()));
            assert!(same.is_some_and(|same| !is_found(same, attends)), "{kernel}");
        }
    }
}

//! Legal calls of attention. The cache is as the reference stores it, bit for bit, and the output near that of an
//! oracle in float64; a sequence gets the same bits alone as in its batch, on every backend and on any number of
//! threads; and NaN in a key or value reaches only queries that see it.

use kvcache_op::{AttentionBackend, Backend, ElementType, Serial};

use crate::attention_oracle::attention;
use crate::call::{After, Call, Ended, How, Operator};
use crate::operand::floats;
use crate::plan::Plan;
use crate::source::Source;
use crate::tally;
use crate::workers::Careless;

/// Runs the target on an input.
pub fn run(bytes: &[u8]) {
    let mut source = Source::new(bytes);
    let operator = if source.one_in(4) { Operator::MultiHeadAttention } else { Operator::MultiHeadCacheAttention };
    let (parallel, by_layers, offset) = (source.flag(), source.flag(), source.below(5) * 4);
    let closer = source.below(4);
    let plan = Plan::new(&mut source, operator, 1);
    let all: Vec<usize> = (0..plan.sequences.len()).collect();
    let call = plan.call(&all);

    tally::count(true);
    tally::note(plan.kinds());
    let expected = attention(&call);
    let mut reference = None;
    let mut fused = None;
    for (i, attention) in AttentionBackend::all().enumerate() {
        let attention = match attention {
            AttentionBackend::Cpu(cpu) if parallel => AttentionBackend::Cpu(cpu.with_parallel_cost(0)),
            other => other,
        };
        let backend = if i == 0 { Backend::Reference } else { Backend::default() };
        let how = How { backend, attention, by_layers, offset, workers: &Careless(3) };
        let after = done(&call, how);
        compare(plan.types.t1, &after.outputs[0], &expected, attention.name());
        let state = reference.get_or_insert_with(|| (after.cache.clone(), after.scale.clone()));
        assert!((&after.cache, &after.scale) == (&state.0, &state.1), "different bits in the cache");
        // Those with fused multiply-adds.
        if !["reference", "cpu-portable"].contains(&attention.name()) {
            let first = fused.get_or_insert_with(|| after.outputs[0].clone());
            assert!(*first == after.outputs[0], "{} gives other bits than another instruction set", attention.name());
        }
        // One is looked at more closely.
        if i % 4 == closer {
            alone_as_in_the_batch(&plan, &after, how);
            causal_rows_do_not_see_the_last_token(&plan, &after, how);
        }
    }
}

fn done(call: &Call, how: How<'_>) -> After {
    let ended = call.run(how);
    let Ended::Done(after) = ended else { panic!("a legal call is {ended:?}") };
    after
}

/// All numbers are between -1 and 1, but for codes of int8 by their scales, so an error is larger than this bound.
fn compare(t1: ElementType, got: &[u8], expected: &[f64], name: &str) {
    let bound = if t1 == ElementType::Float16 { 0.01 } else { 2e-5 };
    let got = floats(t1, got);
    assert_eq!(got.len(), expected.len());
    for (i, (got, expected)) in got.into_iter().zip(expected).enumerate() {
        let near = (f64::from(got) - expected).abs() <= bound || got.is_nan() && expected.is_nan();
        assert!(near, "{name}: output element {i} is {got}, expected {expected}");
    }
}

fn alone_as_in_the_batch(plan: &Plan, after: &After, how: How<'_>) {
    if plan.sequences.len() < 2 {
        return;
    }
    let all: Vec<usize> = (0..plan.sequences.len()).collect();
    for (b, row) in plan.split_rows(&all, &after.outputs[0]).into_iter().enumerate() {
        let alone = done(&plan.call(&[b]), How { workers: &Serial, ..how });
        assert!(alone.outputs[0] == row, "{}: sequence {b} has other bits alone", how.attention.name());
    }
}

/// What the last token of each sequence holds changes no other row of a causal call.
fn causal_rows_do_not_see_the_last_token(plan: &Plan, after: &After, how: How<'_>) {
    let mut other = plan.clone();
    let mut changed = false;
    for sequence in &mut other.sequences {
        if plan.is_masked(sequence) {
            sequence.ends_with_nan = !sequence.ends_with_nan;
            changed = true;
        }
    }
    if !changed {
        return;
    }
    let all: Vec<usize> = (0..plan.sequences.len()).collect();
    let changed = done(&other.call(&all), how);
    let rows = plan.split_rows(&all, &after.outputs[0]).into_iter().zip(plan.split_rows(&all, &changed.outputs[0]));
    for (b, (before, after)) in rows.enumerate() {
        let sequence = &plan.sequences[b];
        let seen = if plan.is_masked(sequence) { before.len() / sequence.current } else { 0 };
        let own = before.len() - seen;
        let name = how.attention.name();
        assert!(before[..own] == after[..own], "{name}: a row of sequence {b} has seen the last token");
    }
}

//! Calls of all operators, mostly illegal: of any types, shapes, attributes and indices.
//!
//! A check says yes or no: it doesn't panic, overflow or allocate, and reads no memory that is not there. It says what the
//! conformance suite's oracle says. What is accepted runs on memory of exactly its size, on the reference and on the
//! fast kernel, and both give the same bits, those of the oracle; what is refused has written nothing.

use kvcache_op::{AttentionBackend, Backend, Serial};

use crate::call::{Bound, Ended, How, Operator};
use crate::operand::Numbers;
use crate::oracle::Verdict;
use crate::plan::Plan;
use crate::source::Source;
use crate::workers::Careless;

/// Runs the target on an input.
pub fn run(bytes: &[u8]) {
    let mut source = Source::new(bytes);
    let operator = source.pick(&[
        Operator::KeyValueCache,
        Operator::StaticKeyValueCache,
        Operator::MultiHeadCacheAttention,
        Operator::MultiHeadAttention,
    ]);
    let mutations = source.below(5);
    let offset = source.below(2) * 4;
    let plan = Plan::new(&mut source, operator, 1);
    let mut call = plan.call_of_all();
    for _ in 0..mutations {
        call.mutate(&mut source);
    }
    if !call.is_testable() {
        return;
    }

    let workers = Careless(3);
    let fast = How {
        backend: Backend::default(),
        attention: AttentionBackend::default(),
        workers: &workers,
        by_layers: source.flag(),
        offset,
    };
    let reference = How {
        backend: Backend::Reference,
        attention: AttentionBackend::Reference,
        workers: &Serial,
        by_layers: false,
        offset: 0,
    };
    let ended = call.run(&Bound::new(&call.operands), reference);
    let other = call.run(&Bound::new(&call.operands), fast);
    match (&ended, &other) {
        (Ended::Refused(kind), Ended::Refused(_)) => assert!(mutations > 0, "a legal call is refused: {kind}"),
        (Ended::Unrun, Ended::Unrun) => assert!(mutations > 0, "a small call has not been run"),
        (Ended::Done(after), Ended::Done(other)) => {
            assert!((&after.cache, &after.scale) == (&other.cache, &other.scale), "different bits in the cache");
            // Attention's sums are in another order.
            let sums = matches!(operator, Operator::MultiHeadAttention | Operator::MultiHeadCacheAttention);
            assert!(sums || after.outputs == other.outputs, "different bits in the outputs");
        }
        _ => panic!("{ended:?} and {other:?}"),
    }
    match (call.verdict(), &ended) {
        (Some(Verdict::Broken(rules)), Ended::Done(_) | Ended::Unrun) => {
            panic!("an illegal call is accepted: {rules:?}")
        }
        // Attention has rules of its own.
        (Some(Verdict::Legal), Ended::Refused(kind)) if operator != Operator::MultiHeadCacheAttention => {
            panic!("a legal call is refused: {kind}");
        }
        _ => {}
    }
    // Bits of NaN are the hardware's.
    if let (Ended::Done(after), 0, true) = (&ended, mutations, plan.numbers != Numbers::Any)
        && after.outputs.iter().all(|output| output.len() < 1 << 14)
        && let Some(predicted) = call.predicted()
    {
        assert!(*after == predicted, "other bits than the oracle's");
    }
}

//! Calls of all operators, legal and illegal: of any types, shapes, attributes and indices, and of memory that tensors
//! share.
//!
//! A check says yes or no: it doesn't panic, overflow or allocate, and reads no memory that is not there. It says what
//! the conformance suite's oracle and the rules of attention say. What is accepted runs on memory of exactly its size,
//! on the reference and on the fast kernel, and both give the same bits, those of the oracle; what is refused has
//! written nothing.

use kvcache_op::{AttentionBackend, Backend};

use crate::call::{Ended, How, Operator};
use crate::oracle::{Verdict, matches_the_oracle};
use crate::plan::Plan;
use crate::source::Source;
use crate::tally;
use crate::workers::Careless;

/// Where a call is brought to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edge {
    None,
    /// Sizes about as large as they can be.
    Sizes,
    /// A bound that is just met, or missed by one.
    Bounds,
}

/// Runs the target on an input.
pub fn run(bytes: &[u8]) {
    let mut source = Source::new(bytes);
    let operator = source.pick(&[
        Operator::KeyValueCache,
        Operator::StaticKeyValueCache,
        Operator::MultiHeadCacheAttention,
        Operator::MultiHeadAttention,
    ]);
    let mutations = source.pick(&[0, 0, 1, 1, 1, 2, 3]);
    let offset = source.below(2) * 4;
    let by_layers = source.flag();
    let plan = Plan::new(&mut source, operator, 1);
    let mut call = plan.call_of_all();
    for _ in 0..mutations {
        call.mutate(&mut source);
    }
    let edge = source.pick(&[Edge::None, Edge::None, Edge::Sizes, Edge::Bounds, Edge::Bounds]);
    match edge {
        Edge::None => {}
        Edge::Sizes => call.grow(&mut source),
        Edge::Bounds => call.tighten(&mut source),
    }
    if !call.is_testable() {
        return;
    }

    let workers = Careless(3);
    let fast = How {
        backend: Backend::default(),
        attention: AttentionBackend::default(),
        workers: &workers,
        by_layers,
        offset,
    };
    let ended = call.run(How::REFERENCE);
    let other = call.run(fast);
    let is_planned = mutations == 0 && edge == Edge::None;
    match (&ended, &other) {
        (Ended::Refused(kind), Ended::Refused(_)) => assert!(!is_planned, "a legal call is refused: {kind}"),
        (Ended::Unrun, Ended::Unrun) => assert!(!is_planned, "a small call has not been run"),
        (Ended::Done(after), Ended::Done(other)) => {
            assert!((&after.cache, &after.scale) == (&other.cache, &other.scale), "different bits in the cache");
            // Attention's sums are in another order.
            let sums = matches!(operator, Operator::MultiHeadAttention | Operator::MultiHeadCacheAttention);
            assert!(sums || after.outputs == other.outputs, "different bits in the outputs");
        }
        _ => panic!("{ended:?} and {other:?}"),
    }
    // Of a legal call only the sizes have changed.
    let verdict = if mutations == 0 && edge == Edge::Sizes { call.verdict_of_sizes() } else { call.verdict() };
    match (verdict, &ended) {
        (Some(Verdict::Broken(rules)), Ended::Done(_) | Ended::Unrun) => {
            let shapes: Vec<_> = call.operands.iter().map(|operand| (operand.name, &operand.shape)).collect();
            panic!("an illegal call is accepted: {rules:?}; {operator:?} {:?} {shapes:?} {ended:?}", call.attributes)
        }
        (Some(Verdict::Legal), Ended::Refused(kind)) => {
            let shapes: Vec<_> = call.operands.iter().map(|operand| (operand.name, &operand.shape)).collect();
            panic!("a legal call is refused: {kind}; {operator:?} {:?} {shapes:?}", call.attributes)
        }
        _ => {}
    }
    tally::count(matches!(ended, Ended::Done(_)));
    if let Ended::Done(after) = ended {
        tally::note(plan.kinds());
        matches_the_oracle(&call, after);
    }
}

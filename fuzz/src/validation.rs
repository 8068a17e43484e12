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
        (Some(Verdict::Legal), Ended::Refused(kind)) => panic!("a legal call is refused: {kind}"),
        _ => {}
    }
    tally::count(matches!(ended, Ended::Done(_)));
    if let Ended::Done(after) = ended {
        tally::note(plan.kinds());
        matches_the_oracle(&call, after);
    }
}

//! Calls of all operators, mostly illegal: of any types, shapes, attributes and indices.
//!
//! A check says yes or no: it doesn't panic, overflow or allocate, and reads no memory that is not there. A legal call is
//! accepted, and no call that breaks a rule of indices. What is accepted runs on memory of exactly its size, on the
//! reference and on the fast kernel, and both give the same bits; what is refused has written nothing.

use kvcache_op::{AttentionBackend, Backend, Serial};

use crate::call::{Bound, Ended, How, Operator};
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
    let mut call = Plan::new(&mut source, operator, 1).call_of_all();
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
    let cached = matches!(operator, Operator::KeyValueCache | Operator::MultiHeadCacheAttention);
    if cached && !matches!(ended, Ended::Refused(_)) {
        assert_eq!(call.broken_rule(), None, "an illegal call is accepted");
    }
}

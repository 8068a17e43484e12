//! Calls of both operators that store, legal and illegal: of any types, shapes, attributes and indices; and of tensors
//! too large to be there, or that share memory.
//!
//! A check says yes or no: it doesn't panic, overflow or allocate, and reads no memory that is not there. It says what
//! the conformance kit's `legal` says, by the kind of error where only one rule is broken. What is accepted runs on
//! memory of exactly its size, and the fast kernel gives the reference's bits; what is refused has written nothing.

use kvcache_conformance::backends::Backends;
use kvcache_conformance::random::{Plan, Unstructured, any_case, changed_case};
use kvcache_op::{AttentionBackend, Backend, Serial};
use kvcache_testing::backends::Careless;

use crate::tally::Kindless;
use crate::{hostile, tally};

pub fn run(bytes: &[u8]) {
    let entropy = &mut Unstructured::bytes(bytes);
    let attention = AttentionBackend::default();
    let reference = Backends { backend: Backend::Reference, attention, workers: Serial };
    let fast = Backends { backend: Backend::default(), attention, workers: Careless(3) };
    match entropy.below(8) {
        choice @ (0..3 | 5) => {
            let case = any_case(entropy, choice == 5);
            tally::passes(&reference, &case);
            tally::passes(&fast, &case);
        }
        3..5 => {
            let case = changed_case(entropy);
            tally::passes(&Kindless(reference), &case);
            tally::passes(&Kindless(fast), &case);
        }
        6 => hostile::sizes(Plan::draw(entropy, 3, 8).call(entropy), entropy),
        _ => hostile::overlaps(Plan::draw(entropy, 3, 8).call(entropy), entropy),
    }
}

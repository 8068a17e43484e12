//! Calls of both operators that store, legal and illegal: of any types, shapes, attributes and indices; and of tensors
//! too large to be there, or that share memory.
//!
//! A check says yes or no: it doesn't panic, overflow or allocate, and reads no memory that is not there. It says what
//! the conformance kit's oracle says, by the kind of error where only one rule is broken. What is accepted runs on
//! memory of exactly its size, on the reference and on the fast kernel, and both give the oracle's bits; what is
//! refused has written nothing.

use kvcache_conformance::backends::{Operator, StaticOperator};
use kvcache_conformance::random::{Entropy, Plan, any_case, any_static_case, changed_case};
use kvcache_op::{Backend, Serial};
use kvcache_testing::backends::Careless;

use crate::tally::Kindless;
use crate::{hostile, tally};

pub fn run(bytes: &[u8]) {
    let entropy = &mut Entropy::bytes(bytes);
    let (reference, fast) = (Backend::Reference, Backend::default());
    match entropy.below(8) {
        0..3 => {
            let case = any_case(entropy);
            tally::passes(&Operator { backend: reference, workers: Serial }, &case);
            tally::passes(&Operator { backend: fast, workers: Careless(3) }, &case);
        }
        3..5 => {
            let case = changed_case(entropy);
            tally::passes(&Kindless(Operator { backend: reference, workers: Serial }), &case);
            tally::passes(&Kindless(Operator { backend: fast, workers: Careless(3) }), &case);
        }
        5 => {
            let case = any_static_case(entropy);
            tally::passes(&StaticOperator { backend: reference, workers: Serial }, &case);
            tally::passes(&StaticOperator { backend: fast, workers: Careless(3) }, &case);
        }
        6 => hostile::sizes(Plan::draw(entropy, 3, 8).call(entropy), entropy),
        _ => hostile::overlaps(Plan::draw(entropy, 3, 8).call(entropy), entropy),
    }
}

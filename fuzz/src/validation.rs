//! Calls of both operators that store, legal and illegal: of any types, shapes, attributes and indices; and of tensors
//! too large to be there, or that share memory.
//!
//! A check says yes or no: it doesn't panic, overflow or allocate, and reads no memory that is not there. It says what
//! the conformance kit's oracle says, by the kind of error where only one rule is broken. What is accepted runs on memory
//! of exactly its size, on the reference and on the fast kernel, and both give the oracle's bits; what is refused has
//! written nothing.

use kvcache_conformance::backends::{Operator, StaticOperator};
use kvcache_conformance::random::{Entropy, Plan, any_case, any_static_case, changed_case};
use kvcache_conformance::{Case, run as run_cases};
use kvcache_op::{Backend, Serial};

use crate::tally::{Careless, Kindless};
use crate::{hostile, tally};

pub fn run(bytes: &[u8]) {
    let entropy = &mut Entropy::bytes(bytes);
    match entropy.below(8) {
        0..3 => both(&any_case(entropy)),
        3..5 => several(&changed_case(entropy)),
        5 => {
            let case = any_static_case(entropy);
            let (reference, fast) = (Backend::Reference, Backend::default());
            tally::report(&run_cases(
                &StaticOperator { backend: reference, workers: Serial },
                std::slice::from_ref(&case),
            ));
            tally::report(&run_cases(&StaticOperator { backend: fast, workers: Careless(3) }, &[case]));
        }
        6 => hostile::sizes(Plan::draw(entropy, 3, 8).call(entropy), entropy),
        _ => hostile::overlaps(Plan::draw(entropy, 3, 8).call(entropy), entropy),
    }
}

/// A case of which no call breaks several rules.
fn both(case: &Case) {
    let case = std::slice::from_ref(case);
    tally::report(&run_cases(&Operator { backend: Backend::Reference, workers: Serial }, case));
    tally::report(&run_cases(&Operator { backend: Backend::default(), workers: Careless(3) }, case));
}

/// A case of which a call may break several rules: it may be refused for any.
fn several(case: &Case) {
    let case = std::slice::from_ref(case);
    tally::report(&run_cases(&Kindless(Operator { backend: Backend::Reference, workers: Serial }), case));
    tally::report(&run_cases(&Kindless(Operator { backend: Backend::default(), workers: Careless(3) }), case));
}

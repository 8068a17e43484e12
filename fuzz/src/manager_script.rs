//! Scripts of the manager's operations in every mode, run by [the model's runner](kvcache_testing::manager): after each
//! operation invariants hold, and every sequence has the rows that the model says, in the cache too; what is refused
//! changes nothing, and what is saved can be loaded.

use kvcache_conformance::random::Unstructured;
use kvcache_testing::manager::run::Run;
use kvcache_testing::manager::script::{Cache, Operation};

use crate::tally;

const OPERATIONS: usize = 60;

pub fn run(bytes: &[u8]) {
    let entropy = &mut Unstructured::bytes(bytes);
    let of_prefixes = entropy.one_in(4);
    let cache = if of_prefixes { Cache::draw_of_prefixes(entropy) } else { Cache::draw(entropy) };
    let mut run = Run::new(&cache);
    // The more there are, the longer each takes.
    for _ in 0..OPERATIONS {
        if entropy.is_empty() {
            return;
        }
        let operation = if of_prefixes { Operation::draw_of_prefixes(entropy) } else { Operation::draw(entropy) };
        run.apply(&operation);
        run.check();
        tally::count(run.done);
    }
}

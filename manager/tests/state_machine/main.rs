//! A state machine over every operation, refusals included, against a naive model: after each operation, rows,
//! positions, pages and reference counts must be the model's, and refused, dropped, leaked and failed steps must leave
//! an equal manager and equal bytes.

mod check;
mod edits;
mod head;
#[path = "../common/memory.rs"]
mod memory;
#[path = "../model/mod.rs"]
mod model;
mod mutations;
mod operations;
mod outputs;
mod run;
mod scripts;
mod sessions;
mod step;
#[path = "../common/types.rs"]
mod types;
mod windows;

use operations::{Cache, Operation, Operations};
use proptest_state_machine::{StateMachineTest, prop_state_machine};
use run::Run;

impl StateMachineTest for Run {
    type SystemUnderTest = Self;
    type Reference = Operations;

    fn init_test(cache: &Cache) -> Self {
        Self::new(cache)
    }

    fn apply(mut run: Self, _: &Cache, operation: Operation) -> Self {
        Self::apply(&mut run, &operation);
        // Here and not among the invariants, since it fills free slots with NaN.
        run.check();
        run
    }
}

prop_state_machine! {
    #![proptest_config(operations::cases(400))]

    #[test]
    fn the_manager_is_the_model(sequential 1..50 => Run);
}

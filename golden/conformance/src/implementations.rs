//! What is tested, as each suite sees it.

use kvcache_golden::{Implementation, Program, attention, static_batching};

/// What runs the cases of each suite.
pub struct Implementations {
    /// What the report calls it.
    pub name: String,
    /// Runs the cases of `KeyValueCache`.
    pub dynamic: Box<dyn Implementation + Sync>,
    /// Runs those of static batching.
    pub of_static_batching: Box<dyn Implementation<static_batching::Attributes, static_batching::StepInputs> + Sync>,
    /// Runs those of attention.
    pub attention: Box<dyn attention::Implementation + Sync>,
}

impl Implementations {
    /// A program.
    pub fn program(name: &str, program: Program) -> Self {
        Self {
            name: name.to_owned(),
            dynamic: Box::new(program.clone()),
            of_static_batching: Box::new(program.clone()),
            attention: Box::new(program),
        }
    }
}

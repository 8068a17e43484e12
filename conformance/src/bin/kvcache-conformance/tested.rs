//! What is tested.

use std::time::Duration;

#[cfg(feature = "backends")]
use kvcache_conformance::backends::{Attention, Operator, StaticOperator};
use kvcache_conformance::{Implementation, Program, ProgramError, attention, static_batching};
#[cfg(feature = "backends")]
use kvcache_op::{AttentionBackend, Backend, Serial};

/// An implementation of every suite.
pub struct Tested {
    /// What the report calls it.
    pub name: String,
    /// Runs the cases of `KeyValueCache`.
    pub dynamic: Box<dyn Implementation + Sync>,
    pub of_static_batching: Box<dyn Implementation<static_batching::Case> + Sync>,
    pub attention: Box<dyn Implementation<attention::Case> + Sync>,
}

impl Tested {
    /// A program, which is started for each case, or serves many.
    pub fn program(command: &str, serves: bool, limit: Duration) -> Result<Self, ProgramError> {
        let program = if serves { Program::serving(command) } else { Program::parse(command) };
        let program = program?.with_limit(limit);
        Ok(Self {
            name: command.to_owned(),
            dynamic: Box::new(program.clone()),
            of_static_batching: Box::new(program.clone()),
            attention: Box::new(program),
        })
    }

    /// The backend called `name`, or every one, with the attention kernel of its name if there is one, on one thread.
    #[cfg(feature = "backends")]
    pub fn backends(name: &str) -> Vec<Self> {
        let name = if name == CPU { Backend::default().name() } else { name };
        let chosen = Backend::all().filter(|backend| name == ALL || backend.name() == name);
        let tested = |backend: Backend| {
            let attention = AttentionBackend::all().find(|attention| attention.name() == backend.name());
            Self {
                name: backend.name().to_owned(),
                dynamic: Box::new(Operator { backend, workers: Serial }),
                of_static_batching: Box::new(StaticOperator { backend, workers: Serial }),
                attention: Box::new(Attention {
                    backend: attention.unwrap_or_default(),
                    store: backend,
                    workers: Serial,
                }),
            }
        };
        chosen.map(tested).collect()
    }
}

#[cfg(feature = "backends")]
const ALL: &str = "all";

/// Stands for the one that is chosen where none is named.
#[cfg(feature = "backends")]
const CPU: &str = "cpu";

/// The names of the backends that this machine can run, [`CPU`] and [`ALL`].
#[cfg(feature = "backends")]
pub fn backends() -> Vec<&'static str> {
    Backend::all().map(|backend| backend.name()).chain([CPU, ALL]).collect()
}

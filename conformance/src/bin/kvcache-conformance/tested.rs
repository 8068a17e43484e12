//! What is tested.

use kvcache_conformance::{Program, Report, Runner};

#[cfg(feature = "backends")]
use crate::backends::OfBackend;
use crate::suites::Suites;

/// An implementation of every suite.
pub struct Tested {
    /// What the report calls it.
    pub name: String,
    /// The implementation.
    pub kind: Kind,
}

/// A kind of implementation.
pub enum Kind {
    /// A program that is run for each case.
    Program(Program),
    /// A backend of this project.
    #[cfg(feature = "backends")]
    Backend(OfBackend),
}

impl Tested {
    /// Runs all cases.
    pub fn report(&self, suites: &Suites, runner: &Runner<'_>) -> Report {
        let report = match &self.kind {
            Kind::Program(program) => suites.run(runner, program, program, program),
            #[cfg(feature = "backends")]
            Kind::Backend(backend) => {
                suites.run(runner, &backend.dynamic, &backend.of_static_batching, &backend.attention)
            }
        };
        Report { implementation: self.name.clone(), ..report }
    }
}

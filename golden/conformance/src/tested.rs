//! What is tested.

#[cfg(feature = "onnxruntime")]
use kvcache_golden::onnxruntime::Library;
use kvcache_golden::performance::Table;
#[cfg(any(feature = "backends", feature = "onnxruntime"))]
use kvcache_golden::performance::{Timed, measure, workloads};
use kvcache_golden::{Program, Report, Runner};

#[cfg(feature = "backends")]
use crate::backends::OfBackend;
use crate::error::Error;
use crate::suites::Suites;

/// Rounds in which a call is timed.
#[cfg(any(feature = "backends", feature = "onnxruntime"))]
const ROUNDS: u64 = 30;

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
    /// A library of custom operators in ONNX Runtime.
    #[cfg(feature = "onnxruntime")]
    Library(Box<Library>),
    /// A backend of this project.
    #[cfg(feature = "backends")]
    Backend(OfBackend),
}

impl Tested {
    /// Runs all cases.
    pub fn report(&self, suites: &Suites, runner: &Runner<'_>) -> Report {
        let report = match &self.kind {
            Kind::Program(program) => suites.run(runner, program, program, program),
            #[cfg(feature = "onnxruntime")]
            Kind::Library(library) => suites.run(runner, &**library, &**library, &**library),
            #[cfg(feature = "backends")]
            Kind::Backend(backend) => {
                suites.run(runner, &backend.dynamic, &backend.of_static_batching, &backend.attention)
            }
        };
        Report { implementation: self.name.clone(), ..report }
    }

    /// How fast it is.
    pub fn performance(&self) -> Result<Table, Error> {
        match &self.kind {
            Kind::Program(_) => Err(Error::NotTimed),
            #[cfg(feature = "onnxruntime")]
            Kind::Library(library) => measured(&**library),
            #[cfg(feature = "backends")]
            Kind::Backend(backend) => measured(&backend.dynamic),
        }
    }
}

#[cfg(any(feature = "backends", feature = "onnxruntime"))]
fn measured(timed: &dyn Timed) -> Result<Table, Error> {
    measure(timed, &workloads(), ROUNDS).map_err(Error::Performance)
}

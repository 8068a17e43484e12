//! The backends of this project.

use kvcache_conformance::backends::{Attention, Operator, StaticOperator};
use kvcache_op::{AttentionBackend, Backend, Serial};

/// Stands for every backend.
const ALL: &str = "all";

/// Stands for the one that is chosen where none is named.
const CPU: &str = "cpu";

/// A backend, with the attention kernel of its name if there is one, on one thread.
pub struct OfBackend {
    /// Runs the cases of `KeyValueCache`.
    pub dynamic: Operator<Serial>,
    /// Runs those of static batching.
    pub of_static_batching: StaticOperator<Serial>,
    /// Runs those of attention.
    pub attention: Attention<Serial>,
}

/// The names of the backends that this machine can run, [`CPU`] and [`ALL`].
pub fn names() -> Vec<&'static str> {
    Backend::all().map(|backend| backend.name()).chain([CPU, ALL]).collect()
}

/// The backend called `name`, or every one, by their names.
pub fn backends(name: &str) -> Vec<(&'static str, OfBackend)> {
    let name = if name == CPU { Backend::default().name() } else { name };
    let chosen = Backend::all().filter(|backend| name == ALL || backend.name() == name);
    chosen.map(|backend| (backend.name(), OfBackend::new(backend))).collect()
}

impl OfBackend {
    fn new(backend: Backend) -> Self {
        let attention = AttentionBackend::all().find(|attention| attention.name() == backend.name());
        Self {
            dynamic: Operator { backend, workers: Serial },
            of_static_batching: StaticOperator { backend, workers: Serial },
            attention: Attention { backend: attention.unwrap_or_default(), store: backend, workers: Serial },
        }
    }
}

//! The backends of this project.

use kvcache_op::{AttentionBackend, Backend, Serial};

use crate::attention_operators::Attention;
use crate::implementations::Implementations;
use crate::operator::Operator;
use crate::static_operator::StaticOperator;

/// Stands for every backend.
const ALL: &str = "all";

/// The names of the backends that this machine can run, and [`ALL`].
pub fn names() -> Vec<&'static str> {
    Backend::all().map(|backend| backend.name()).chain([ALL]).collect()
}

/// The backend called `name`, or every one.
pub fn implementations(name: &str) -> Vec<Implementations> {
    Backend::all().filter(|backend| name == ALL || backend.name() == name).map(implementation).collect()
}

/// A backend, with the attention kernel of its name if there is one.
fn implementation(backend: Backend) -> Implementations {
    let attention = AttentionBackend::all().find(|attention| attention.name() == backend.name()).unwrap_or_default();
    Implementations {
        name: backend.name().to_owned(),
        dynamic: Box::new(Operator { backend, workers: Serial }),
        of_static_batching: Box::new(StaticOperator { backend, workers: Serial }),
        attention: Box::new(Attention { backend: attention, store: backend, workers: Serial }),
    }
}

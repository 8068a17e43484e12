//! The first difference between what an implementation did and what a case expects, and where it lies.

mod compare;
mod location;
mod mismatch;
mod slots;

pub(crate) use compare::Call;
pub use location::{CacheLocation, Inner, Location, OutputLocation, Owner, Part, Slot};
pub use mismatch::{Difference, Differing, Elements, Form, Mismatch, Value};
pub(crate) use slots::{Indices, cache, of_token, output, static_cache, static_owner};

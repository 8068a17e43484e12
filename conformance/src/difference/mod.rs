//! The first difference between what an implementation did and what a case expects, and where it lies.

mod call;
mod compare;
mod locate;
mod location;
mod mismatch;
mod slots;
mod value;

pub(crate) use call::Call;
pub(crate) use locate::{cache, of_token, output, static_cache};
pub use location::{CacheLocation, Inner, Location, OutputLocation, Owner, Part, Slot};
pub use mismatch::{Difference, Differing, Elements, Form, Mismatch};
pub(crate) use slots::{Indices, integers, static_owner};
pub use value::Value;

//! The targets by name.

use crate::{attention, conformance_reader, dlpack, manager_script, operator, session_reader, validation};

/// A target's name, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 7] = [
    ("validation", validation::run),
    ("operator", operator::run),
    ("attention", attention::run),
    ("dlpack", dlpack::run),
    ("conformance_reader", conformance_reader::run),
    ("session_reader", session_reader::run),
    ("manager_script", manager_script::run),
];

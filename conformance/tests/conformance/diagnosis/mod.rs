//! What the suite says of implementations that are wrong, and that it accuses none that are right.

mod groups;

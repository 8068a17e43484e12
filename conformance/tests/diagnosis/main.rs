//! What the suite says of implementations that are wrong, and that it accuses none that are right. In one program: what
//! they have in common takes long to compile.

mod attention_mistakes;
mod groups;
mod mistakes;
mod trial;
mod wrong_implementations;

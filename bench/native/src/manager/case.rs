//! A case: contenders that do the same work, or work of another size, in memory of the case's own.

use crate::manager::meter::Meter;

/// Something that is measured.
pub trait Case {
    /// Runs the contenders once and checks their answers.
    ///
    /// # Errors
    /// What is wrong.
    fn check(&mut self) -> Result<(), String>;

    /// Runs a contender's operations once.
    ///
    /// # Errors
    /// If there is no such contender, or the manager refuses something.
    fn measure(&mut self, contender: &str) -> Result<Meter, String>;

    /// The tensors of a step, one after another, each behind its length: for a peer in another language to compare.
    ///
    /// # Errors
    /// If the case has no steps, or the manager refuses one.
    fn tensors(&mut self) -> Result<Vec<i64>, String> {
        Err("the case has no steps".into())
    }
}

/// The error of a case that is asked for a contender that it has not.
pub(crate) fn unknown<T>(contender: &str) -> Result<T, String> {
    Err(format!("the case has no contender {contender}"))
}

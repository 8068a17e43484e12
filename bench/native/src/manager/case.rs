//! A case: contenders that do the same work, or work of another size, in memory of the case's own.

use crate::manager::cells::Cells;
use crate::manager::copies::Copies;
use crate::manager::decode::Decode;
use crate::manager::meter::Meter;
use crate::manager::pages::Pages;
use crate::manager::sessions::Sessions;
use crate::manager::shift::Shift;

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

/// Makes a case by its name and its numbers.
///
/// # Errors
/// If there is no such case, or these numbers make none.
pub(crate) fn new(name: &str, numbers: &[usize]) -> Result<Box<dyn Case>, String> {
    match (name, numbers) {
        ("decode", &[batch, kvlen, max_t, max_pages, idle]) => {
            Ok(Box::new(Decode::new(batch, kvlen, max_t, max_pages, idle)?))
        }
        ("pages", &[pages]) => Ok(Box::new(Pages::new(pages)?)),
        ("cells", &[cells, sequences]) => Ok(Box::new(Cells::new(cells, sequences)?)),
        ("sessions", &[layout, bits]) => Ok(Box::new(Sessions::new(layout, bits)?)),
        ("shift", &[layout, bits]) => Ok(Box::new(Shift::new(layout, bits)?)),
        ("copies", &[layout, bits]) => Ok(Box::new(Copies::new(layout, bits)?)),
        _ => Err(format!("no case is {name} of {} numbers", numbers.len())),
    }
}

/// The error of a case that is asked for a contender that it has not.
pub(crate) fn unknown<T>(contender: &str) -> Result<T, String> {
    Err(format!("the case has no contender {contender}"))
}

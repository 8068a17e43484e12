//! All cases, by name.

use crate::manager::case::Case;
use crate::manager::cells::Cells;
use crate::manager::copies::Copies;
use crate::manager::decode::Decode;
use crate::manager::pages::Pages;
use crate::manager::sessions::Sessions;
use crate::manager::shift::Shift;

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

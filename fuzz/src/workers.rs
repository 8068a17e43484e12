//! Threads that are none, so that each input always takes the same way.

use kvcache_op::Workers;

/// As many workers as the number says, of which the calling thread runs the tasks: the last one first, the first never.
///
/// The results must be right even so; see [`Workers`].
pub struct Careless(pub usize);

impl Workers for Careless {
    fn threads(&self) -> usize {
        self.0
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        (1..tasks).rev().for_each(task);
    }
}

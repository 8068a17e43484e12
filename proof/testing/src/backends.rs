//! The backends that tests compare, and workers for them.

use kvcache_op::{Backend, Workers};

/// Every backend that this machine can run, and each fast kernel once more with non-temporal stores of even the
/// smallest output.
pub fn backends() -> impl Iterator<Item = Backend> {
    Backend::all().flat_map(|backend| {
        let streaming = match backend {
            Backend::Cpu(cpu) => Some(Backend::Cpu(cpu.with_stream_bytes(0))),
            _ => None,
        };
        [Some(backend), streaming].into_iter().flatten()
    })
}

/// Every backend, too; each fast kernel splits even the smallest call among threads.
pub fn splitting() -> impl Iterator<Item = Backend> {
    backends().map(|backend| match backend {
        Backend::Cpu(cpu) => Backend::Cpu(cpu.with_parallel_bytes(0)),
        other => other,
    })
}

/// So many threads, each of which lives as long as its task.
pub struct Threads(pub usize);

impl Workers for Threads {
    fn threads(&self) -> usize {
        self.0
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| (0..tasks).for_each(|i| drop(scope.spawn(move || task(i)))));
    }
}

/// So many workers, all on the calling thread: the last task runs first, the first never.
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

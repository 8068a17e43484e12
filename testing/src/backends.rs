//! The backends that tests compare.

use kvcache_op::Backend;

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

/// The same; of each fast kernel one that splits even the smallest call among threads.
pub fn splitting() -> impl Iterator<Item = Backend> {
    backends().map(|backend| match backend {
        Backend::Cpu(cpu) => Backend::Cpu(cpu.with_parallel_bytes(0)),
        other => other,
    })
}

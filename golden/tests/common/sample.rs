//! How much of what takes long the tests take.

/// Where `KVCACHE_SAMPLE` is set, as by `make test`, one of so many is taken, else every one.
pub fn every(count: usize) -> usize {
    if std::env::var_os("KVCACHE_SAMPLE").is_some() { count } else { 1 }
}

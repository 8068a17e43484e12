//! How much of what takes long the tests take.

/// Of so many, one is taken; where `KVCACHE_WHOLE` is set (`make test-whole`), every one is.
pub fn every(count: usize) -> usize {
    if std::env::var_os("KVCACHE_WHOLE").is_some() { 1 } else { count }
}

//! Golden rows of the manager's specification, by their ids, through the public interface: those that no model
//! computes.

use kvcache_manager::schema::CacheLayout;
use kvcache_manager::{CacheSettings, Geometry, Manager, Mode, Rope};
use kvcache_testing::manager::managed::Managed;

pub fn settings(num_layer: usize, num_heads: usize, head_dim: usize, max_t: usize) -> CacheSettings {
    CacheSettings { geometry: Geometry { num_layer, num_heads, head_dim, max_t }, ..CacheSettings::default() }
}

/// A small cache that can be shifted.
fn small(mode: Mode, max_t: usize) -> CacheSettings {
    CacheSettings { mode, rope: Some(Rope::neox(8, 1e4)), ..settings(1, 1, 8, max_t) }
}

pub fn live_pages(manager: &Manager) -> usize {
    manager.stats().used / manager.spec().page_size()
}

#[test]
fn g6_byte_offsets_of_slots() {
    let spec = CacheSettings { layout: CacheLayout::KvMajor, ..settings(1, 32, 128, 1024) }.check().unwrap();
    let offset = |slot: usize| spec.rows().lines(None, slot..slot + 1).unwrap()[0].start;
    assert_eq!([offset(6), offset(13)], [49152, 106496]);
}

#[test]
fn g14_windows() {
    let mut cache = Managed::new(CacheSettings { window: Some(4), ..small(Mode::Paged { page_size: 1 }, 4) });
    let seq = cache.manager.create();
    let mut written = Vec::new();
    for _ in 0..8 {
        cache.grow(&[seq], 1);
        written.push(*cache.slots(seq).last().unwrap());
    }
    assert_eq!(written, [0, 1, 2, 3, 0, 1, 2, 3]);
}

#[test]
fn g16_forks_of_a_prompt() {
    let mut cache = Managed::new(small(Mode::Paged { page_size: 16 }, 16 * 600));
    let mut seqs = vec![cache.sequence(1000)];
    for _ in 0..7 {
        seqs.push(cache.manager.fork(seqs[0]).unwrap());
    }
    (0..100).for_each(|_| cache.grow(&seqs, 1));
    assert_eq!((live_pages(&cache.manager), cache.copied()), (118, 56));
    let unshared: usize = seqs.iter().map(|&seq| cache.manager.seq_len(seq).unwrap().div_ceil(16)).sum();
    assert_eq!(unshared, 552);
}

#[test]
fn g19_bytes_of_a_cache() {
    let nbytes = |num_heads, max_t| settings(32, num_heads, 128, max_t).check().unwrap().nbytes();
    assert_eq!(nbytes(32, 1024), 512 << 20);
    assert_eq!(nbytes(8, 30016), 3_934_257_152);
    assert_eq!(nbytes(8, 30016), 3752 << 20);
    let spec = settings(32, 8, 128, 30016).check().unwrap();
    assert_eq!(spec.max_tokens(3_934_257_152), 30016);
    assert_eq!(spec.max_tokens(3_934_257_151), 30015);
}

//! The golden rows of the manager's specification, by their ids.

use kvcache_manager::schema::{CacheLayout, ElementType, QuantBit};
use kvcache_manager::{Append, CacheSpec, CacheSpecBuilder, Geometry, Manager, Mode, RowCopy, SeqId};

#[path = "common/copies.rs"]
mod copies;

use copies::Copies;

fn builder(num_layer: usize, num_heads: usize, head_dim: usize, max_t: usize) -> CacheSpecBuilder {
    CacheSpec::builder(Geometry { num_layer, num_heads, head_dim, max_t })
}

fn manager(page_size: usize, max_t: usize) -> Manager {
    Manager::new(builder(1, 1, 8, max_t).mode(Mode::Paged { page_size }).build().unwrap()).unwrap()
}

fn live_pages(manager: &Manager) -> usize {
    manager.stats().used / manager.spec().page_size()
}

/// Appends `n` tokens to each sequence; gives the rows that were copied.
fn append(manager: &mut Manager, seqs: &[SeqId], n: usize) -> usize {
    let mut memory = Copies::default();
    let appends: Vec<_> = seqs.iter().map(|&seq| Append::count(seq, n)).collect();
    manager.begin_step(&appends).unwrap().apply(&mut memory).unwrap().commit();
    manager.check().unwrap();
    memory.0.iter().map(|copy| copy.len).sum()
}

#[test]
fn g6_byte_offsets_of_slots() {
    let spec = builder(1, 32, 128, 1024).layout(CacheLayout::KvMajor).build().unwrap();
    let offset = |slot: usize| spec.rows().cache_ranges(slot..slot + 1).unwrap().next().unwrap().start;
    assert_eq!([offset(6), offset(13)], [49152, 106496]);
}

#[test]
fn g15_fork_and_append_to_both() {
    let mut manager = manager(4, 64);
    let a = manager.create();
    append(&mut manager, &[a], 6);
    assert_eq!(live_pages(&manager), 2);
    let b = manager.fork(a).unwrap();
    assert_eq!(live_pages(&manager), 2);

    let mut memory = Copies::default();
    let planned = manager.begin_step(&[Append::count(a, 1), Append::count(b, 1)]).unwrap();
    let step = planned.apply(&mut memory).unwrap();
    assert_eq!(memory.0, [RowCopy { src: 4, dst: 8, len: 2 }]);
    assert_eq!(step.kvstarts(), [0, 7, 14]);
    assert_eq!(step.start_pos(), [6, 6]);
    assert_eq!(step.seqstarts(), [0, 1, 2]);
    assert_eq!(step.cachestarts(), ndarray::array![[0, 8], [0, 4]].into_dyn(), "the last owner writes in place");
    step.commit();
    manager.check().unwrap();
    assert_eq!(live_pages(&manager), 3);
}

#[test]
fn g16_forks_of_a_prompt() {
    let mut manager = manager(16, 16 * 600);
    let mut seqs = vec![manager.create()];
    append(&mut manager, &seqs, 1000);
    for _ in 0..7 {
        seqs.push(manager.fork(seqs[0]).unwrap());
    }
    let copied: usize = (0..100).map(|_| append(&mut manager, &seqs, 1)).sum();
    assert_eq!(live_pages(&manager), 118);
    assert_eq!(copied, 56);
    let unshared: usize = seqs.iter().map(|&seq| manager.seq_len(seq).unwrap().div_ceil(16)).sum();
    assert_eq!(unshared, 552);
}

#[test]
fn g18_bytes_per_token() {
    let (f16, bits) = (ElementType::Float16, [QuantBit::Eight, QuantBit::Four]);
    let llama = || builder(32, 8, 128, 1024);
    let figures =
        [builder(16, 8, 64, 1024), llama(), llama().quantized(bits[0], 8, f16), llama().quantized(bits[1], 32, f16)]
            .map(|builder| builder.build().unwrap().bytes_per_token());
    assert_eq!(figures, [32768, 131_072, 81920, 36864]);
}

#[test]
fn g19_bytes_of_a_cache() {
    let nbytes = |num_heads, max_t| builder(32, num_heads, 128, max_t).build().unwrap().nbytes();
    assert_eq!(nbytes(32, 1024), 512 << 20);
    assert_eq!(nbytes(8, 30016), 3_934_257_152);
    assert_eq!(nbytes(8, 30016), 3752 << 20);
    let spec = builder(32, 8, 128, 30016).build().unwrap();
    assert_eq!(spec.max_tokens(3_934_257_152), 30016);
    assert_eq!(spec.max_tokens(3_934_257_151), 30015);
}

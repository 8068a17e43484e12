//! Golden rows of the manager's specification, by their ids, through the public interface: those that no model
//! computes.

use kvcache_manager::schema::{CacheLayout, ElementType, QuantBit};
use kvcache_manager::{
    Append, CacheSpec, CacheSpecBuilder, Geometry, Manager, MaskSpec, Mode, Rope, RowCopy, SeqId, find_slot,
};
use kvcache_testing::manager::memory::Memory;

pub fn builder(num_layer: usize, num_heads: usize, head_dim: usize, max_t: usize) -> CacheSpecBuilder {
    CacheSpec::builder(Geometry { num_layer, num_heads, head_dim, max_t })
}

/// A small cache that can be shifted.
pub fn small(mode: Mode, max_t: usize) -> CacheSpecBuilder {
    builder(1, 1, 8, max_t).mode(mode).rope(Rope::neox(8, 1e4))
}

pub fn made(builder: CacheSpecBuilder) -> (Manager, Memory) {
    let spec = builder.build().unwrap();
    let memory = Memory::new(&spec);
    (Manager::new(spec).unwrap(), memory)
}

pub fn paged(page_size: usize, max_t: usize) -> (Manager, Memory) {
    made(small(Mode::Paged { page_size }, max_t))
}

pub fn live_pages(manager: &Manager) -> usize {
    manager.stats().used / manager.spec().page_size()
}

pub fn rows_copied(memory: &Memory) -> usize {
    memory.log.copies.iter().map(|copy| copy.len).sum()
}

/// Appends `n` tokens to each sequence; gives the rows that were copied.
pub fn append(manager: &mut Manager, memory: &mut Memory, seqs: &[SeqId], n: usize) -> usize {
    let before = rows_copied(memory);
    let appends: Vec<_> = seqs.iter().map(|&seq| Append::count(seq, n)).collect();
    manager.begin_step(&appends).unwrap().apply(memory).unwrap().commit();
    manager.check().unwrap();
    rows_copied(memory) - before
}

pub fn sequence(manager: &mut Manager, memory: &mut Memory, n: usize) -> SeqId {
    let seq = manager.create();
    append(manager, memory, &[seq], n);
    seq
}

pub fn positions(manager: &Manager, seq: SeqId) -> Vec<i64> {
    manager.positions(seq).unwrap().collect()
}

pub fn slots(manager: &Manager, seq: SeqId) -> Vec<usize> {
    manager.slots(seq).unwrap().collect()
}

/// Single tokens in each cell of which the pattern has a 1.
fn cells(pattern: &str) -> (Manager, Memory) {
    let (mut manager, mut memory) = made(small(Mode::Cells, pattern.len()).pad(4));
    let seqs: Vec<SeqId> = pattern.chars().map(|_| sequence(&mut manager, &mut memory, 1)).collect();
    for (_, seq) in pattern.chars().zip(seqs).filter(|(cell, _)| *cell == '0') {
        manager.free(seq).unwrap();
    }
    (manager, memory)
}

#[test]
fn g1_find_slot() {
    let busy = |cells: &[usize]| -> Vec<bool> { (0..8).map(|cell| cells.contains(&cell)).collect() };
    assert_eq!(find_slot(&busy(&[0, 1, 4]), 6, 3, 3).0, Some(5));
    assert_eq!(find_slot(&busy(&[0, 1, 4]), 0, 3, 3).0, Some(5));
    assert_eq!(find_slot(&busy(&[0, 2, 4, 6]), 0, 4, 2), (None, 0));
    assert_eq!(find_slot(&busy(&[0, 2, 4, 6]), 5, 4, 2), (None, 5), "a failed search leaves the head");

    // The same of a manager, whose head is the first freed cell.
    let (mut manager, mut memory) = cells("11001000");
    let seq = sequence(&mut manager, &mut memory, 3);
    assert_eq!(slots(&manager, seq), [5, 6, 7]);
    let (mut manager, _) = cells("10101010");
    let (seq, before) = (manager.create(), manager.clone());
    let error = manager.begin_step(&[Append::count(seq, 2)]).unwrap_err();
    assert!(matches!(error, kvcache_manager::Error::NoSlot { need: 2, largest: 1, free: 4 }), "{error}");
    assert!(manager == before);
}

#[test]
fn g4_a_prompt_in_cells() {
    let (mut manager, mut memory) = made(small(Mode::Cells, 1024).pad(32));
    let seq = manager.create();
    let step = manager.begin_step(&[Append::count(seq, 6)]).unwrap().apply(&mut memory).unwrap();
    assert_eq!((step.seqstarts(), step.kvstarts()), (&[0, 6, 6][..], &[0, 6, 38][..]));
    assert_eq!(step.cachestarts().iter().collect::<Vec<_>>(), [&0, &0]);
    assert_eq!(step.start_pos(), [0, 32]);
    assert_eq!((step.max_seqlen(), step.max_kvlen()), (6, 32));
    assert_eq!((step.order(), step.cached(), step.decoding_batches()), (&[0][..], &[0][..], 0));
    let mut key_positions = Vec::new();
    step.key_positions_into(&mut key_positions);
    let cells = (0..6).chain(std::iter::repeat_n(-1, 26));
    assert_eq!(key_positions, (0..6).chain(cells).collect::<Vec<_>>());
    step.commit();
}

/// The mask of a step that appends so many tokens, by row: the columns that are visible.
fn visible(manager: &mut Manager, memory: &mut Memory, seq: SeqId, n: usize) -> Vec<Vec<usize>> {
    let step = manager.begin_step(&[Append::count(seq, n)]).unwrap().apply(memory).unwrap();
    let shape = step.mask_shape(&MaskSpec::causal());
    assert_eq!(shape, [1, 32, 32]);
    let mut mask = vec![0.5_f32; 32 * 32];
    step.mask_into(&MaskSpec::causal(), &mut mask).unwrap();
    step.commit();
    let column = |row: &[f32]| {
        assert!(row.iter().all(|&x| x == 0.0 || x == f32::NEG_INFINITY));
        (0..32).filter(|&column| row[column] == 0.0).collect()
    };
    mask.chunks(32).map(column).collect()
}

#[test]
fn g5_masks_of_cells() {
    let (mut manager, mut memory) = made(small(Mode::Cells, 1024).pad(32));
    let a = manager.create();
    let mask = visible(&mut manager, &mut memory, a, 6);
    assert!((0..6).all(|row| mask[row] == (0..=row).collect::<Vec<_>>()), "a lower triangle");
    assert!(mask[6..].iter().all(Vec::is_empty), "padding rows");
    let b = manager.create();
    let step = manager.begin_step(&[Append::count(b, 7).at(6)]).unwrap().apply(&mut memory).unwrap();
    assert_eq!(step.cachestarts()[[0]], 6);
    assert_eq!(step.positions(), [6, 7, 8, 9, 10, 11, 12]);
    step.commit();
    let mask = visible(&mut manager, &mut memory, b, 1);
    assert_eq!(slots(&manager, b)[7], 13);
    assert_eq!(mask[0], (6..14).collect::<Vec<_>>());
    assert!(mask[1..].iter().all(Vec::is_empty));
}

#[test]
fn g6_byte_offsets_of_slots() {
    let spec = builder(1, 32, 128, 1024).layout(CacheLayout::KvMajor).build().unwrap();
    let offset = |slot: usize| spec.rows().cache_ranges(slot..slot + 1).unwrap().next().unwrap().start;
    assert_eq!([offset(6), offset(13)], [49152, 106496]);
}

/// Appends chunks; by step, the pages of the sequence while the step is open, and after its commit.
fn pages_of_chunks(builder: CacheSpecBuilder, chunk: usize, steps: usize) -> Vec<(usize, usize)> {
    let (mut manager, mut memory) = made(builder);
    let seq = manager.create();
    let mut step = || {
        let step = manager.begin_step(&[Append::count(seq, chunk)]).unwrap().apply(&mut memory).unwrap();
        let during = step.cachestarts().iter().filter(|&&start| start >= 0).count();
        step.commit();
        manager.check().unwrap();
        (during, live_pages(&manager))
    };
    (0..steps).map(|_| step()).collect()
}

#[test]
fn g14_windows() {
    let (mut manager, mut memory) = made(small(Mode::Paged { page_size: 1 }, 4).window(4));
    let seq = manager.create();
    let mut written = Vec::new();
    for _ in 0..8 {
        append(&mut manager, &mut memory, &[seq], 1);
        written.push(*slots(&manager, seq).last().unwrap());
    }
    assert_eq!(written, [0, 1, 2, 3, 0, 1, 2, 3]);

    let wide = builder(1, 1, 2, 33 * 128).mode(Mode::Paged { page_size: 128 }).window(4096);
    let pages = pages_of_chunks(wide, 1, 9000);
    assert_eq!(pages.iter().map(|pages| pages.0).max(), Some(33));

    let sink = small(Mode::Paged { page_size: 4 }, 20).window(8).sink(4);
    let pages = pages_of_chunks(sink, 3, 40);
    assert_eq!(pages.iter().map(|pages| pages.0).max(), Some(5));
    assert_eq!(pages.iter().map(|pages| pages.1).max(), Some(4));
}

#[test]
fn g15_fork_and_append_to_both() {
    let (mut manager, mut memory) = paged(4, 64);
    let a = sequence(&mut manager, &mut memory, 6);
    assert_eq!(live_pages(&manager), 2);
    let b = manager.fork(a).unwrap();
    assert_eq!(live_pages(&manager), 2);

    let planned = manager.begin_step(&[Append::count(a, 1), Append::count(b, 1)]).unwrap();
    let step = planned.apply(&mut memory).unwrap();
    assert_eq!(memory.log.copies, [RowCopy { src: 4, dst: 8, len: 2 }]);
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
    let (mut manager, mut memory) = paged(16, 16 * 600);
    let mut seqs = vec![sequence(&mut manager, &mut memory, 1000)];
    for _ in 0..7 {
        seqs.push(manager.fork(seqs[0]).unwrap());
    }
    let copied: usize = (0..100).map(|_| append(&mut manager, &mut memory, &seqs, 1)).sum();
    assert_eq!(live_pages(&manager), 118);
    assert_eq!(copied, 56);
    let unshared: usize = seqs.iter().map(|&seq| manager.seq_len(seq).unwrap().div_ceil(16)).sum();
    assert_eq!(unshared, 552);
}

#[test]
fn g17_rows_that_a_removal_moves() {
    for (range, moved, pages) in [(1..5, 1, 2), (2..6, 2, 2), (2..5, 7, 3)] {
        let (mut manager, mut memory) = paged(4, 64);
        let seq = sequence(&mut manager, &mut memory, 12);
        let left: Vec<i64> = (0..12).filter(|pos| !range.contains(pos)).collect();
        assert_eq!(manager.seq_rm(seq, range.clone()).unwrap(), 12 - left.len());
        manager.update(&mut memory).unwrap();
        assert_eq!((rows_copied(&memory), live_pages(&manager)), (moved, pages), "{range:?}");
        assert_eq!(positions(&manager, seq), left);
        manager.check().unwrap();
    }
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

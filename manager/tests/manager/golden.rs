//! The golden rows of the manager's specification, by their ids, through the public interface.

use kvcache_manager::schema::{CacheLayout, ElementType, QuantBit};
use kvcache_manager::{
    Append, CacheSpec, CacheSpecBuilder, ContextShift, Geometry, Manager, MaskSpec, Mode, Rope, RowCopy, SeqId,
    find_slot, fragmentation, n_kv,
};
use kvcache_testing::manager::memory::Memory;

pub fn builder(num_layer: usize, num_heads: usize, head_dim: usize, max_t: usize) -> CacheSpecBuilder {
    CacheSpec::builder(Geometry { num_layer, num_heads, head_dim, max_t })
}

/// A small cache that can be shifted.
pub fn small(mode: Mode, max_t: usize) -> CacheSpecBuilder {
    builder(1, 1, 8, max_t).mode(mode).rope(Rope::neox(8, 1e4))
}

/// A manager and its memory.
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

/// The rows that were copied so far.
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

/// A sequence of rows at positions 0..n.
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

/// Single tokens in each cell of which the pattern has a 1; by cell, the sequence that is in it.
fn cells(pattern: &str) -> (Manager, Memory, Vec<Option<SeqId>>) {
    let (mut manager, mut memory) = made(small(Mode::Cells, pattern.len()).pad(4));
    let seqs: Vec<SeqId> = pattern.chars().map(|_| sequence(&mut manager, &mut memory, 1)).collect();
    let cells = pattern.chars().zip(seqs).map(|(cell, seq)| {
        if cell == '0' {
            manager.free(seq).unwrap();
        }
        (cell == '1').then_some(seq)
    });
    let cells = cells.collect();
    (manager, memory, cells)
}

#[test]
fn g1_find_slot() {
    let busy = |cells: &[usize]| -> Vec<bool> { (0..8).map(|cell| cells.contains(&cell)).collect() };
    assert_eq!(find_slot(&busy(&[0, 1, 4]), 6, 3, 3).0, Some(5));
    assert_eq!(find_slot(&busy(&[0, 1, 4]), 0, 3, 3).0, Some(5));
    assert_eq!(find_slot(&busy(&[0, 2, 4, 6]), 0, 4, 2), (None, 0));
    assert_eq!(find_slot(&busy(&[0, 2, 4, 6]), 5, 4, 2), (None, 5), "a failed search leaves the head");

    // The same of a manager, whose head is the first freed cell.
    let (mut manager, mut memory, _) = cells("11001000");
    let seq = sequence(&mut manager, &mut memory, 3);
    assert_eq!(slots(&manager, seq), [5, 6, 7]);
    let (mut manager, _, _) = cells("10101010");
    let (seq, before) = (manager.create(), manager.clone());
    let error = manager.begin_step(&[Append::count(seq, 2)]).unwrap_err();
    assert!(matches!(error, kvcache_manager::Error::NoSlot { need: 2, largest: 1, free: 4 }), "{error}");
    assert!(manager == before);
}

#[test]
fn g2_the_head_goes_back() {
    let busy: Vec<bool> = (0..64).map(|cell| cell < 4).collect();
    assert_eq!(find_slot(&busy, 10, 4, 3), (Some(10), 10));
    assert_eq!(find_slot(&busy, 11, 4, 3), (Some(4), 4));
    let (mut manager, mut memory) = made(small(Mode::Cells, 8).pad(4));
    sequence(&mut manager, &mut memory, 6);
    assert_eq!(manager.stats().head, 6);
    sequence(&mut manager, &mut memory, 2);
    assert_eq!(manager.stats().head, 0);
}

#[test]
fn g3_n_kv() {
    let cases = [
        ((6, 1024, 32), 32),
        ((33, 1024, 32), 64),
        ((6, 1024, 256), 256),
        ((300, 1024, 256), 512),
        ((12, 20, 32), 20),
        ((0, 1024, 32), 32),
    ];
    for ((used, size, pad), expected) in cases {
        assert_eq!(n_kv(used, size, pad), expected);
        let (mut manager, mut memory) = made(small(Mode::Cells, size).pad(pad));
        if used > 0 {
            sequence(&mut manager, &mut memory, used);
        }
        assert_eq!(manager.stats().n_kv, expected);
    }
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

/// The pending deltas of a sequence.
fn pending(manager: &Manager, seq: SeqId) -> Vec<i64> {
    manager.pending(seq).unwrap().collect()
}

#[test]
fn g7_edits_of_positions() {
    for mode in [Mode::Paged { page_size: 4 }, Mode::Runs, Mode::Cells] {
        let (mut manager, mut memory) = made(small(mode, 64));
        let a = sequence(&mut manager, &mut memory, 10);
        assert_eq!(manager.seq_rm(a, 2..5).unwrap(), 3);
        manager.seq_add(a, 5.., -3).unwrap();
        assert_eq!(positions(&manager, a), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(pending(&manager, a), [0, 0, -3, -3, -3, -3, -3]);
        manager.update(&mut memory).unwrap();
        assert_eq!(pending(&manager, a), [0; 7]);
        let turned: usize = memory.log.rotations.iter().map(|rotation| rotation.len).sum();
        assert!(turned == 5 && memory.log.rotations.iter().all(|rotation| rotation.delta == -3));

        let b = sequence(&mut manager, &mut memory, 8);
        manager.seq_div(b, 0..4, 2).unwrap();
        assert_eq!(positions(&manager, b), [0, 0, 1, 1, 4, 5, 6, 7]);
        assert_eq!(pending(&manager, b), [0, -1, -1, -2, 0, 0, 0, 0]);

        let c = sequence(&mut manager, &mut memory, 6);
        manager.seq_add(c, 0..3, -2).unwrap();
        assert_eq!(positions(&manager, c), [0, 3, 4, 5]);
        assert_eq!(pending(&manager, c), [-2, 0, 0, 0]);

        let d = sequence(&mut manager, &mut memory, 6);
        let before = manager.clone();
        assert_eq!(manager.seq_add(d, 0..2, 10).unwrap_err().kind(), "position_order");
        assert!(manager == before);
        manager.check().unwrap();
    }
}

#[test]
fn g8_defragmentation() {
    let cases: [(&str, &[Option<usize>], usize); 3] = [
        ("1100101110", &[Some(0), Some(1), None, None, Some(4), None, Some(5), Some(2), Some(3)], 2),
        ("10101010101", &[Some(0), None, Some(2), None, Some(4), None, Some(5), None, Some(3), None, Some(1)], 3),
        ("10100111", &[Some(0), None, Some(2), None, None, Some(3), Some(4), Some(1)], 2),
    ];
    for (pattern, expected, num_moves) in cases {
        let (mut manager, mut memory, seqs) = cells(pattern);
        let moves = manager.defrag(None).unwrap();
        assert_eq!(moves.len(), num_moves, "{pattern}: {moves:?}");
        manager.update(&mut memory).unwrap();
        manager.check().unwrap();
        for (cell, &expected) in expected.iter().enumerate() {
            assert_eq!(seqs[cell].map(|seq| slots(&manager, seq)[0]), expected, "cell {cell} of {pattern}");
        }
        assert_eq!(manager.stats().head, manager.stats().used);
        assert_eq!(manager.defrag(None).unwrap(), []);
    }
}

#[test]
fn g9_fragmentation() {
    assert_eq!((fragmentation(128, 100), fragmentation(127, 100)), (0.21875, 0.0));
    for (size, expected) in [(128, 0.21875), (127, 0.0)] {
        let (mut manager, mut memory) = made(small(Mode::Cells, size).pad(32));
        let [a, _] = [30, size - 30].map(|n| sequence(&mut manager, &mut memory, n));
        manager.seq_rm(a, ..(size as i64 - 100)).unwrap();
        let stats = manager.stats();
        assert_eq!((stats.n_kv, stats.used, stats.fragmentation), (size, 100, expected));
    }
}

#[test]
fn g13_context_shifts() {
    for mode in [Mode::Paged { page_size: 4 }, Mode::Runs, Mode::Cells] {
        for (n_past, n_keep, discarded, left) in [(2048, 4, 1022, 1026), (16, 2, 7, 9)] {
            let (mut manager, mut memory) = made(small(mode, 2048));
            let seq = sequence(&mut manager, &mut memory, n_past);
            let shift = ContextShift { n_ctx: n_past as i64 + 1, n_new: 0, n_keep, n_discard: None };
            assert_eq!(manager.context_shift(seq, &shift).unwrap(), 0, "there is room");
            let shift = ContextShift { n_ctx: n_past as i64, ..shift };
            assert_eq!(manager.context_shift(seq, &shift).unwrap(), discarded);
            assert_eq!(manager.seq_len(seq).unwrap(), left);
            assert_eq!(positions(&manager, seq), (0..left as i64).collect::<Vec<_>>());
            manager.update(&mut memory).unwrap();
            manager.check().unwrap();
        }
        let (mut manager, mut memory) = made(small(mode, 64));
        let seq = sequence(&mut manager, &mut memory, 5);
        let before = manager.clone();
        let shift = ContextShift { n_ctx: 5, n_new: 0, n_keep: 4, n_discard: None };
        assert_eq!(manager.context_shift(seq, &shift).unwrap_err().kind(), "no_progress");
        assert!(manager == before);
    }
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

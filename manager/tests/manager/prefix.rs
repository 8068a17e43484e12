//! Prefix sharing where the model of scripts leaves a choice: in which order cached pages go, who writes in place, and
//! what a step shares with itself.

use kvcache_manager::schema::ElementType;
use kvcache_manager::{Append, CacheSpec, Geometry, Manager, Mode, RowCopy, SeqId, Step};
use kvcache_testing::manager::memory::{Faults, Memory};

fn copies(manager: &Manager, appends: &[Append<'_>]) -> Vec<RowCopy> {
    let mut memory = Memory::new(manager.spec());
    manager.clone().begin_step(appends).unwrap().apply(&mut memory).unwrap().rollback();
    memory.log.copies
}

/// Runs a step on any memory.
fn step<'m>(manager: &'m mut Manager, appends: &[Append<'_>]) -> Step<'m> {
    let mut memory = Memory::new(manager.spec());
    manager.begin_step(appends).unwrap().apply(&mut memory).unwrap()
}

fn manager(num_pages: usize) -> Manager {
    let geometry = Geometry { num_layer: 1, num_heads: 1, head_dim: 2, max_t: 4 * num_pages };
    let builder = CacheSpec::builder(geometry).cache_type(ElementType::Float32);
    Manager::new(builder.mode(Mode::Paged { page_size: 4 }).build().unwrap()).unwrap()
}

/// A prompt of which each number makes a page.
fn prompt(pages: &[u32], rest: usize) -> Vec<u32> {
    pages
        .iter()
        .flat_map(|&page| [page, page + 1, page + 2, page + 3])
        .chain((0..rest as u32).map(|i| 900 + i))
        .collect()
}

/// A new sequence with this prompt; gives how much of it was found.
fn prefill(manager: &mut Manager, prompt: &[u32]) -> (SeqId, i64) {
    let seq = manager.create();
    let step = step(manager, &[Append::tokens(seq, prompt)]);
    let cached = step.cached()[0];
    assert_eq!(step.start_pos()[0], cached);
    assert_eq!(step.seqstarts(), [0, prompt.len() as i64 - cached]);
    assert_eq!(step.positions()[0], cached);
    step.commit();
    manager.check().unwrap();
    (seq, cached)
}

fn slots(manager: &Manager, seq: SeqId) -> Vec<usize> {
    manager.slots(seq).unwrap().collect()
}

#[test]
fn pages_of_an_earlier_append_of_the_same_step_are_shared() {
    let mut manager = manager(32);
    let (a, b) = (manager.create(), manager.create());
    let (long, short) = (prompt(&[10, 20, 30], 1), prompt(&[10, 20], 1));
    let appends = [Append::tokens(a, &long), Append::tokens(b, &short)];
    let step = step(&mut manager, &appends);
    // The second append has one token left to compute, so it is the first entry.
    assert_eq!(step.order(), [1, 0]);
    assert_eq!(step.cached(), [8, 0]);
    assert_eq!(step.start_pos(), [8, 0]);
    assert_eq!(step.kvstarts(), [0, 9, 22]);
    assert_eq!(step.token_ids()[0], 900);
    assert_eq!(step.cachestarts(), ndarray::array![[0, 4, 16, -1], [0, 4, 8, 12]].into_dyn());
    assert_eq!((step.decoding_batches(), step.max_seqlen(), step.max_kvlen()), (1, 13, 13));
    step.rollback();
    assert_eq!(prefill(&mut manager, &long).1, 0, "what was rolled back is not in the index");
}

#[test]
fn cached_pages_go_least_recently_used_first_and_the_last_of_a_sequence_first() {
    let mut manager = manager(6);
    let (old, new) = (prompt(&[10, 20], 1), prompt(&[30, 40], 1));
    let (a, _) = prefill(&mut manager, &old);
    let (b, _) = prefill(&mut manager, &new);
    manager.free(a).unwrap();
    manager.free(b).unwrap();
    assert_eq!((manager.stats().cached, manager.stats().free), (16, 8));
    // Two free pages, then the second page of the older one.
    let (c, _) = prefill(&mut manager, &prompt(&[50, 60], 2));
    assert_eq!(manager.stats().cached, 12);
    // Its first page is still there, and is now the latest used.
    let (d, cached) = prefill(&mut manager, &prompt(&[10], 1));
    assert_eq!(cached, 4);
    manager.free(d).unwrap();
    manager.free(c).unwrap();
    let full = prompt(&[70, 71, 72, 73], 0);
    let (e, _) = prefill(&mut manager, &full);
    assert_eq!(slots(&manager, e).len(), 16);
    manager.free(e).unwrap();
    // Of the older four pages, those of `new` went first: 40, then 30.
    assert_eq!(prefill(&mut manager, &prompt(&[30], 1)).1, 0);
}

#[test]
fn a_page_that_a_copy_overwrote_before_the_memory_failed_is_not_found() {
    for panics in [false, true] {
        let mut manager = manager(3);
        let old = prompt(&[10], 1);
        // The full page 0 is cached; pages 1 and 2 are of a, the last one shared by b.
        let (cached, _) = prefill(&mut manager, &old[..4]);
        let a = manager.create();
        step(&mut manager, &[Append::count(a, 6)]).commit();
        manager.free(cached).unwrap();
        let b = manager.fork(a).unwrap();
        let mut memory = Memory::new(manager.spec());
        memory.faults = Faults { fails_at: Some(0), panics };
        let planned = manager.begin_step(&[Append::count(b, 1)]).unwrap();
        let applied = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| planned.apply(&mut memory).map(drop)));
        assert!(applied.map_or(panics, |applied| !panics && applied.is_err()));
        assert_eq!(memory.log.overwritten, [0, 1]);
        manager.check().unwrap();
        assert_eq!((manager.seq_len(b).unwrap(), manager.stats().cached, manager.stats().free), (6, 0, 4));
        manager.free(b).unwrap();
        manager.free(a).unwrap();
        assert_eq!(prefill(&mut manager, &old).1, 0);
    }
}

#[test]
fn cached_pages_that_a_step_reads_are_not_evicted_by_it() {
    let mut manager = manager(4);
    let old = prompt(&[10, 20], 1);
    let (a, _) = prefill(&mut manager, &old);
    manager.free(a).unwrap();
    let b = manager.create();
    let before = manager.clone();
    let all = prompt(&[10, 20, 30, 40], 1);
    let error = manager.begin_step(&[Append::tokens(b, &all)]).unwrap_err();
    assert_eq!(error.to_string(), "3 pages are needed, 2 are free");
    assert!(manager == before);
    assert_eq!(prefill(&mut manager, &all[..16]).1, 8);
}

#[test]
fn a_sealed_page_is_found_until_its_only_owner_writes_it() {
    let mut manager = manager(32);
    let all = prompt(&[10, 20], 1);
    let (a, _) = prefill(&mut manager, &all);
    assert_eq!(manager.seq_rm(a, 6..).unwrap(), 3);
    assert_eq!(slots(&manager, a), [0, 1, 2, 3, 4, 5]);
    // Another sequence has the page now, so it is copied.
    let (b, cached) = prefill(&mut manager, &all);
    assert_eq!(cached, 8);
    assert_eq!(copies(&manager, &[Append::tokens(a, &[7])]), [RowCopy { src: 4, dst: 12, len: 2 }]);
    manager.free(b).unwrap();
    // It is a's alone: written in place, and no longer found, unless that is rolled back before it happens.
    let before = manager.clone();
    assert_eq!(copies(&manager, &[Append::tokens(a, &[7])]), []);
    drop(manager.begin_step(&[Append::tokens(a, &[7])]).unwrap());
    assert!(manager == before);
    step(&mut manager, &[Append::tokens(a, &[7])]).rollback();
    manager.check().unwrap();
    assert_eq!(prefill(&mut manager, &all).1, 4);
}

#[test]
fn who_has_most_rows_in_a_page_writes_in_place() {
    let mut manager = manager(32);
    let (a, _) = prefill(&mut manager, &prompt(&[10], 2));
    let b = manager.fork(a).unwrap();
    assert_eq!(manager.seq_rm(b, 5..).unwrap(), 1);
    for seqs in [[a, b], [b, a]] {
        let appends = seqs.map(|seq| Append::count(seq, 1));
        assert_eq!(copies(&manager, &appends), [RowCopy { src: 4, dst: 8, len: 1 }]);
    }
    let one = copies(&manager, &[Append::count(a, 1)]);
    assert_eq!(one, [RowCopy { src: 4, dst: 8, len: 2 }], "b does not write, and keeps the page");
}

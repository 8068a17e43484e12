//! Prefix sharing where the model of scripts leaves a choice: in which order cached pages go, who writes in place, and
//! what a step shares with itself.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kvcache_manager::schema::ElementType;
use kvcache_manager::{Append, CacheSettings, Geometry, Mode, RowCopy, SeqId};
use kvcache_testing::manager::managed::Managed;
use kvcache_testing::manager::memory::Faults;

/// The rows that a step copies.
fn copies(cache: &Managed, appends: &[Append<'_>]) -> Vec<RowCopy> {
    let mut cache = cache.clone();
    cache.memory.log.copies.clear();
    cache.step(appends).rollback();
    cache.memory.log.copies
}

/// A cache of pages of 4 slots.
fn made(num_pages: usize) -> Managed {
    let geometry = Geometry { num_layer: 1, num_heads: 1, head_dim: 2, max_t: 4 * num_pages };
    let (cache_type, mode) = (ElementType::Float32, Mode::Paged { page_size: 4 });
    Managed::new(CacheSettings { geometry, cache_type, mode, ..CacheSettings::default() })
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
fn prefill(cache: &mut Managed, prompt: &[u32]) -> (SeqId, usize) {
    let seq = cache.manager.create();
    (seq, cache.append(&[Append::tokens(seq, prompt)])[0])
}

#[test]
fn pages_of_an_earlier_append_of_the_same_step_are_shared() {
    let mut cache = made(32);
    let (a, b) = (cache.manager.create(), cache.manager.create());
    let (long, short) = (prompt(&[10, 20, 30], 1), prompt(&[10, 20], 1));
    let appends = [Append::tokens(a, &long), Append::tokens(b, &short)];
    let step = cache.step(&appends);
    // The second append has one token left to compute, so it is the first entry.
    assert_eq!(step.order(), [1, 0]);
    assert_eq!(step.cached(), [8, 0]);
    assert_eq!(step.start_pos(), [8, 0]);
    assert_eq!(step.kvstarts(), [0, 9, 22]);
    assert_eq!(step.token_ids()[0], 900);
    assert_eq!(step.cachestarts(), ndarray::array![[0, 4, 16, -1], [0, 4, 8, 12]].into_dyn());
    assert_eq!((step.decoding_batches(), step.max_seqlen(), step.max_kvlen()), (1, 13, 13));
    step.rollback();
    assert_eq!(prefill(&mut cache, &long).1, 0, "what was rolled back is not in the index");
}

#[test]
fn cached_pages_go_least_recently_used_first_and_the_last_of_a_sequence_first() {
    for by_edit in [false, true] {
        let mut cache = made(6);
        let (old, new) = (prompt(&[10, 20], 1), prompt(&[30, 40], 1));
        let (a, _) = prefill(&mut cache, &old);
        let (b, _) = prefill(&mut cache, &new);
        if by_edit {
            cache.manager.seq_rm(a, ..).unwrap();
        } else {
            cache.manager.free(a).unwrap();
        }
        cache.manager.free(b).unwrap();
        assert_eq!((cache.manager.stats().cached, cache.manager.stats().free), (16, 8));
        // Two free pages, then the second page of the older one.
        let (c, _) = prefill(&mut cache, &prompt(&[50, 60], 2));
        assert_eq!(cache.manager.stats().cached, 12);
        // Its first page is still there, and is now the latest used.
        let (d, cached) = prefill(&mut cache, &prompt(&[10], 1));
        assert_eq!(cached, 4);
        cache.manager.free(d).unwrap();
        cache.manager.free(c).unwrap();
        let full = prompt(&[70, 71, 72, 73], 0);
        let (e, _) = prefill(&mut cache, &full);
        assert_eq!(cache.slots(e).len(), 16);
        cache.manager.free(e).unwrap();
        // Of the older four pages, those of `new` went first: 40, then 30.
        assert_eq!(prefill(&mut cache, &prompt(&[30], 1)).1, 0);
    }
}

#[test]
fn a_page_that_a_copy_overwrote_before_the_memory_failed_is_not_found() {
    for panics in [false, true] {
        let mut cache = made(3);
        let old = prompt(&[10], 1);
        // The full page 0 is cached; pages 1 and 2 are of a, the last one shared by b.
        let (cached, _) = prefill(&mut cache, &old[..4]);
        let a = cache.manager.create();
        cache.grow(&[a], 6);
        cache.manager.free(cached).unwrap();
        let b = cache.manager.fork(a).unwrap();
        cache.memory.faults = Faults { fails_at: Some(cache.memory.calls.get()), panics };
        let planned = cache.manager.begin_step(&[Append::count(b, 1)]).unwrap();
        let applied = catch_unwind(AssertUnwindSafe(|| planned.apply(&mut cache.memory).map(drop)));
        assert!(applied.map_or(panics, |applied| !panics && applied.is_err()));
        assert_eq!(cache.memory.log.overwritten, [0, 1]);
        cache.manager.check().unwrap();
        let stats = cache.manager.stats();
        assert_eq!((cache.manager.seq_len(b).unwrap(), stats.cached, stats.free), (6, 0, 4));
        cache.manager.free(b).unwrap();
        cache.manager.free(a).unwrap();
        assert_eq!(prefill(&mut cache, &old).1, 0);
    }
}

#[test]
fn cached_pages_that_a_step_reads_are_not_evicted_by_it() {
    let mut cache = made(4);
    let old = prompt(&[10, 20], 1);
    let (a, _) = prefill(&mut cache, &old);
    cache.manager.free(a).unwrap();
    let b = cache.manager.create();
    let before = cache.manager.clone();
    let all = prompt(&[10, 20, 30, 40], 1);
    let error = cache.manager.begin_step(&[Append::tokens(b, &all)]).unwrap_err();
    assert_eq!(error.to_string(), "3 pages are needed, 2 are free");
    assert!(cache.manager == before);
    assert_eq!(prefill(&mut cache, &all[..16]).1, 8);
}

#[test]
fn a_sealed_page_is_found_until_its_only_owner_writes_it() {
    let mut cache = made(32);
    let all = prompt(&[10, 20], 1);
    let (a, _) = prefill(&mut cache, &all);
    assert_eq!(cache.manager.seq_rm(a, 6..).unwrap(), 3);
    assert_eq!(cache.slots(a), [0, 1, 2, 3, 4, 5]);
    // Another sequence has the page now, so it is copied.
    let (b, cached) = prefill(&mut cache, &all);
    assert_eq!(cached, 8);
    assert_eq!(copies(&cache, &[Append::tokens(a, &[7])]), [RowCopy { src: 4, dst: 12, len: 2 }]);
    cache.manager.free(b).unwrap();
    // It is a's alone: written in place, and no longer found, unless that is rolled back before it happens.
    let before = cache.manager.clone();
    assert_eq!(copies(&cache, &[Append::tokens(a, &[7])]), []);
    drop(cache.manager.begin_step(&[Append::tokens(a, &[7])]).unwrap());
    assert!(cache.manager == before);
    cache.step(&[Append::tokens(a, &[7])]).rollback();
    cache.manager.check().unwrap();
    assert_eq!(prefill(&mut cache, &all).1, 4);
}

#[test]
fn who_has_most_rows_in_a_page_writes_in_place() {
    let mut cache = made(32);
    let (a, _) = prefill(&mut cache, &prompt(&[10], 2));
    let b = cache.manager.fork(a).unwrap();
    assert_eq!(cache.manager.seq_rm(b, 5..).unwrap(), 1);
    for seqs in [[a, b], [b, a]] {
        let appends = seqs.map(|seq| Append::count(seq, 1));
        assert_eq!(copies(&cache, &appends), [RowCopy { src: 4, dst: 8, len: 1 }]);
    }
    let one = copies(&cache, &[Append::count(a, 1)]);
    assert_eq!(one, [RowCopy { src: 4, dst: 8, len: 2 }], "b does not write, and keeps the page");
}

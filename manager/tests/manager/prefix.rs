//! Prefix sharing where the model of scripts leaves a choice: in which order cached pages go, and who writes in place.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kvcache_manager::{Append, CacheSettings, Mode, RowCopy, SeqId};
use kvcache_testing::manager::managed::Managed;
use kvcache_testing::manager::memory::Faults;

use crate::golden::{live_pages, settings};

/// The rows that a step copies.
fn copies(cache: &Managed, appends: &[Append<'_>]) -> Vec<RowCopy> {
    let mut cache = cache.clone();
    cache.memory.log.copies.clear();
    cache.step(appends).rollback();
    cache.memory.log.copies
}

/// A cache of pages of 4 slots.
fn made(num_pages: usize) -> Managed {
    Managed::new(CacheSettings { mode: Mode::Paged { page_size: 4 }, ..settings(1, 1, 2, 4 * num_pages) })
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

/// Where a window keeps rows, 9 pages beside the null page are enough for a prompt of 17.
#[test]
fn a_prefix_is_found_by_its_last_window_alone() {
    let settings = CacheSettings { window: Some(6), keep_rows: true, ..settings(1, 1, 2, 40) };
    let mut cache = Managed::new(CacheSettings { mode: Mode::Paged { page_size: 4 }, ..settings });
    let all = prompt(&Vec::from_iter((0..17_u32).map(|page| 10 * page)), 1);
    let seq = cache.manager.create();
    for tokens in all.chunks(16) {
        cache.append(&[Append::tokens(seq, tokens)]);
        assert_eq!(live_pages(&cache.manager), 2);
    }
    let refused = cache.manager.save_seq("nowhere", &cache.memory, seq).unwrap_err();
    assert_eq!(refused.to_string(), "a window has freed the pages of the first 64 rows of a sequence, expected none");
    cache.manager.free(seq).unwrap();
    let whole = Append::tokens(cache.manager.create(), &all);
    assert_eq!(cache.manager.find_prefix(&whole).unwrap(), 68);
    assert_eq!(cache.manager.find_prefix(&whole.most_cached(67)).unwrap(), 64);
    assert_eq!(cache.manager.find_prefix(&whole.most_cached(28)).unwrap(), 0, "the first pages are gone");
    assert_eq!((cache.append(&[whole]), cache.manager.stats().prefix_hits), (vec![68], 68));
    assert_eq!(live_pages(&cache.manager), 2);
}

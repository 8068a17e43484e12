//! Stores where the model of scripts cannot tell: rows of the same tokens that differ in their bytes, other managers,
//! and what is left in the store. The scripts' store has every fault.

use std::sync::Arc;

use kvcache_manager::schema::ElementType;
use kvcache_manager::{Append, Block, BlockKind, CacheSettings, Create, Error, Mode, SeqId};
use kvcache_testing::manager::managed::Managed;
use kvcache_testing::manager::store::{Fault, Store};

use crate::golden;

/// This many pages of 4 slots.
fn settings(num_pages: usize, fingerprint: &str) -> CacheSettings {
    CacheSettings {
        cache_type: ElementType::Float32,
        mode: Mode::Paged { page_size: 4 },
        fingerprint: fingerprint.into(),
        ..golden::settings(2, 1, 4, 4 * num_pages)
    }
}

/// A cache of pages, with a store.
fn made(num_pages: usize, fingerprint: &str, store: &Arc<Store>) -> Managed {
    Managed::with_store(settings(num_pages, fingerprint), store.clone())
}

/// Appends tokens to a sequence, and writes rows of these bytes; gives how many tokens were found.
fn append(cache: &mut Managed, seq: SeqId, tokens: &[u32], byte: u8) -> usize {
    let before = cache.manager.seq_len(seq).unwrap();
    let cached = cache.append(&[Append::tokens(seq, tokens)])[0];
    let written = &cache.slots(seq)[before + cached..];
    cache.memory.write(written, &vec![byte; written.len() * cache.memory.spec.bytes_per_token()]);
    cached
}

fn bytes(cache: &Managed, seq: SeqId) -> Vec<u8> {
    cache.contents(seq).1.chunks(cache.memory.spec.bytes_per_token()).map(|row| row[0]).collect()
}

fn swap_in(cache: &mut Managed, seq: SeqId) -> Result<usize, Error> {
    cache.manager.swap_in(seq, &mut cache.memory)
}

const PROMPT: [u32; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];

#[test]
fn a_sequence_comes_back_with_its_own_bytes_not_with_those_of_the_same_tokens() {
    let store = Arc::default();
    let mut cache = made(4, "", &store);
    let a = cache.manager.create();
    append(&mut cache, a, &PROMPT, 1);
    cache.manager.swap_out(a).unwrap();
    // Evicts and overwrites all that was cached.
    let b = cache.manager.create();
    append(&mut cache, b, &[77; 15], 9);
    cache.manager.free(b).unwrap();
    // The same tokens one by one, which finds nothing, of other bytes; its pages are sealed.
    let c = cache.manager.create();
    for token in PROMPT {
        assert_eq!(append(&mut cache, c, &[token], 3), 0);
    }
    cache.manager.free(c).unwrap();
    assert_eq!(swap_in(&mut cache, a).unwrap(), 9);
    assert_eq!(bytes(&cache, a), [1; 9]);
    cache.manager.check().unwrap();

    // As long as its own pages are cached they are not read again.
    cache.manager.swap_out(a).unwrap();
    let read = swap_in(&mut cache, a).unwrap();
    assert_eq!(read, 5, "its last page, and one of which the index has another");
    assert_eq!(bytes(&cache, a), [1; 9]);
    cache.manager.free(a).unwrap();
    let d = cache.manager.create();
    append(&mut cache, d, &[50, 51, 52, 53, 54], 5);
    cache.manager.swap_out(d).unwrap();
    assert_eq!(swap_in(&mut cache, d).unwrap(), 1);
    assert_eq!(bytes(&cache, d), [5; 5]);
    assert_eq!(store.count(BlockKind::Private), 0, "what is in the cache again is in the store no longer");
}

#[test]
fn another_manager_finds_what_was_evicted_or_offloaded_but_not_what_another_model_or_tenant_has() {
    let store = Arc::default();
    let mut first = made(4, "model", &store);
    let a = first.manager.create();
    append(&mut first, a, &PROMPT, 1);
    first.manager.free(a).unwrap();
    let b = first.manager.create();
    append(&mut first, b, &[77; 15], 9);
    assert_eq!(store.count(BlockKind::Prefix), 2);
    first.manager.offload_prefix().unwrap();
    first.update();
    assert_eq!(store.count(BlockKind::Prefix), 5);

    let mut second = made(8, "model", &store);
    let c = second.manager.create();
    assert_eq!(append(&mut second, c, &PROMPT, 2), 8);
    assert_eq!(bytes(&second, c), [1, 1, 1, 1, 1, 1, 1, 1, 2]);
    let reads = store.gets();
    let d = second.manager.create();
    assert_eq!(append(&mut second, d, &PROMPT, 2), 8);
    assert_eq!(store.gets(), reads, "pages that are in the cache are not read");
    assert_eq!(second.manager.store_stats().unwrap().hits, 2);

    let e = second.manager.create_with(&Create { salt: b"tenant", ..Create::default() });
    assert_eq!(append(&mut second, e, &PROMPT, 2), 0);
    for other in
        [settings(8, "another"), CacheSettings { computed_by: "another program".into(), ..settings(8, "model") }]
    {
        let mut third = Managed::with_store(other, store.clone());
        let f = third.manager.create();
        assert_eq!(append(&mut third, f, &PROMPT, 2), 0);
        assert_eq!(third.manager.store_stats().unwrap().misses["absent"], 1);
    }
}

#[test]
fn a_step_that_is_rolled_back_leaves_no_page_that_was_not_written() {
    let store = Arc::default();
    let mut first = made(4, "", &store);
    let a = first.manager.create();
    append(&mut first, a, &PROMPT, 1);
    first.manager.offload_prefix().unwrap();
    first.update();
    let mut second = made(4, "", &store);
    let b = second.manager.create();
    let before = second.manager.clone();
    drop(second.manager.begin_step(&[Append::tokens(b, &PROMPT)]).unwrap());
    assert!(second.manager == before);
    second.memory.faults.fails_at = Some(1);
    let planned = second.manager.begin_step(&[Append::tokens(b, &PROMPT)]).unwrap();
    assert_eq!(planned.apply(&mut second.memory).err().unwrap().kind(), "memory");
    assert!(second.manager == before);
    assert_eq!(append(&mut second, b, &PROMPT, 2), 8);
    assert_eq!(bytes(&second, b), [1, 1, 1, 1, 1, 1, 1, 1, 2]);
}

/// A step takes what was found before it, although the store has lost it, and does not ask again for what is missing.
#[test]
fn a_prefix_is_found_before_the_step_that_takes_it() {
    let store = Arc::default();
    let mut first = made(4, "", &store);
    let a = first.manager.create();
    append(&mut first, a, &PROMPT, 1);
    first.manager.offload_prefix().unwrap();
    first.update();

    let mut second = made(8, "", &store);
    let (b, c) = (second.manager.create(), second.manager.create());
    append(&mut second, c, &PROMPT[..4], 3);
    let longer = [&PROMPT[..8], &[50; 5]].concat();
    let prompt = Append::tokens(b, &longer);
    let before = second.manager.clone();
    assert_eq!(second.manager.find_prefix(&prompt).unwrap(), 8, "a page of the cache, and one of the store");
    assert!(second.manager == before);
    let (kept, asked) = (std::mem::take(&mut *store.blocks.lock().unwrap()), store.gets());
    assert_eq!(
        (second.manager.find_prefix(&prompt).unwrap(), store.gets()),
        (8, asked + 1),
        "what is missing may come"
    );
    drop(second.manager.begin_step(&[prompt]).unwrap());
    assert_eq!(append(&mut second, b, &longer, 2), 8);
    assert_eq!(bytes(&second, b), [3, 3, 3, 3, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
    assert_eq!((store.gets(), second.manager.store_stats().unwrap().hits), (asked + 1, 1));
    assert_eq!(second.manager.find_prefix(&Append::tokens(b, &PROMPT)).unwrap(), 0, "it has rows");

    // Once a step is committed, the store is asked anew; never for more than there are pages for.
    *store.blocks.lock().unwrap() = kept;
    let mut third = made(3, "", &store);
    let (d, e) = (third.manager.create(), third.manager.create());
    store.set(&[Fault::Fail]);
    assert_eq!(third.manager.find_prefix(&Append::tokens(d, &PROMPT)).unwrap(), 0);
    store.set(&[]);
    append(&mut third, e, &[60; 5], 4);
    assert_eq!(third.manager.find_prefix(&Append::tokens(d, &PROMPT)).unwrap(), 4);
    let step = third.step(&[]);
    step.detach();
    assert!(matches!(third.manager.find_prefix(&Append::tokens(d, &PROMPT)), Err(Error::StepOpen)));
}

#[test]
fn blocks_of_freed_sequences_are_deleted_and_a_clone_gives_its_own_names() {
    let store = Arc::default();
    let mut cache = made(4, "", &store);
    let (a, b) = (cache.manager.create(), cache.manager.create());
    append(&mut cache, a, &PROMPT[..3], 1);
    append(&mut cache, b, &PROMPT[..2], 2);
    cache.manager.swap_out(a).unwrap();
    // Not stored yet.
    cache.manager.free(a).unwrap();
    let mut clone = cache.clone();
    clone.memory.write(&clone.slots(b), &[7; 2 * 64]);
    for cache in [&mut cache, &mut clone] {
        cache.manager.swap_out(b).unwrap();
        cache.update();
    }
    assert_eq!(store.count(BlockKind::Private), 2);
    for (cache, byte) in [(&mut cache, 2), (&mut clone, 7)] {
        swap_in(cache, b).unwrap();
        assert_eq!(bytes(cache, b), [byte; 2]);
    }

    cache.manager.swap_out(b).unwrap();
    cache.update();
    store.blocks.lock().unwrap().clear();
    let error = swap_in(&mut cache, b).unwrap_err();
    assert!(matches!(error, Error::RowsMissing { missing: 2, rows: 2, reason: "absent", .. }), "{error}");
    cache.manager.free(b).unwrap();
    assert_eq!(cache.manager.stats().used, 0);
}

/// Rows that nobody else has stay in memory while the store takes none, and no others follow them.
#[test]
fn swapped_rows_that_the_store_refuses_are_not_lost() {
    let store: Arc<Store> = Arc::default();
    let mut cache = made(4, "", &store);
    let (a, b) = (cache.manager.create(), cache.manager.create());
    append(&mut cache, a, &PROMPT[..6], 1);
    append(&mut cache, b, &PROMPT[..2], 2);
    store.set(&[Fault::Fail]);
    cache.manager.swap_out(a).unwrap();
    cache.update();
    let before = cache.manager.clone();
    let error = cache.manager.swap_out(b).unwrap_err();
    assert!(matches!(error, Error::TiersFull { reason: "failed", .. }), "{error}");
    assert!(cache.manager == before);
    // The first page of the two is still in the cache.
    assert_eq!((swap_in(&mut cache, a).unwrap(), bytes(&cache, a)), (2, vec![1; 6]));

    cache.manager.swap_out(a).unwrap();
    cache.update();
    store.set(&[]);
    cache.manager.swap_out(b).unwrap();
    cache.update();
    assert_eq!(store.count(BlockKind::Private), 3);
    assert_eq!((swap_in(&mut cache, a).unwrap(), bytes(&cache, a)), (2, vec![1; 6]));
    assert_eq!((swap_in(&mut cache, b).unwrap(), bytes(&cache, b)), (2, vec![2; 2]));
    assert_eq!(store.count(BlockKind::Private), 0);
}

/// The store's answer may be a proxy's error page.
#[test]
fn bad_blocks_stay_and_are_told_by_their_reason() {
    let store: Arc<Store> = Arc::default();
    let spoil = || {
        let mut blocks = store.blocks.lock().unwrap();
        let good = blocks.clone();
        blocks.values_mut().for_each(|block| *block = b"<html>502</html>".as_slice().into());
        good
    };
    let mut cache = made(4, "", &store);
    let a = cache.manager.create();
    append(&mut cache, a, &PROMPT[..3], 1);
    cache.manager.swap_out(a).unwrap();
    cache.update();
    let good = spoil();
    let error = swap_in(&mut cache, a).unwrap_err();
    assert!(matches!(error, Error::RowsMissing { missing: 3, reason: "length", .. }), "{error}");
    // Of the right key, and of another cache.
    for (key, block) in store.blocks.lock().unwrap().iter_mut() {
        *block = Block::new(BlockKind::Private, key, vec![0; 6].into(), 2).unwrap().parts().concat().into();
    }
    let error = swap_in(&mut cache, a).unwrap_err();
    assert!(matches!(error, Error::RowsMissing { missing: 3, reason: "geometry", .. }), "{error}");
    assert_eq!(["length", "geometry"].map(|reason| cache.manager.store_stats().unwrap().misses[reason]), [1, 1]);
    *store.blocks.lock().unwrap() = good;
    assert_eq!((swap_in(&mut cache, a).unwrap(), bytes(&cache, a)), (3, vec![1; 3]));
}

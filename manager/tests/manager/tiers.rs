//! Stores where the model of scripts cannot tell: rows of the same tokens that differ in their bytes, other managers,
//! and what is left in the store. The scripts' store has every fault.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvcache_manager::schema::ElementType;
use kvcache_manager::{Append, BlockKind, BlockStore, CacheSpec, Error, Geometry, Manager, Mode, SeqId};
use kvcache_testing::manager::memory::Memory;
use kvcache_testing::manager::store::Store;

/// A cache of this many pages of 4 slots, with a store.
fn made(num_pages: usize, fingerprint: &str, store: &Arc<Store>) -> (Manager, Memory) {
    let geometry = Geometry { num_layer: 2, num_heads: 1, head_dim: 4, max_t: 4 * num_pages };
    let builder = CacheSpec::builder(geometry).cache_type(ElementType::Float32).fingerprint(fingerprint);
    let spec = builder.mode(Mode::Paged { page_size: 4 }).build().unwrap();
    let memory = Memory::new(&spec);
    (Manager::with_store(spec, Arc::clone(store) as Arc<dyn BlockStore>).unwrap(), memory)
}

/// A step that appends tokens to a sequence, and writes rows of these bytes; gives how many tokens were found.
fn append(manager: &mut Manager, memory: &mut Memory, seq: SeqId, tokens: &[u32], byte: u8) -> i64 {
    let step = manager.begin_step(&[Append::tokens(seq, tokens)]).unwrap().apply(memory).unwrap();
    let (cached, first) = (step.cached()[0], step.start_pos()[0] as usize);
    step.commit();
    let written: Vec<usize> = manager.slots(seq).unwrap().skip(first).collect();
    memory.write(&written, &vec![byte; written.len() * memory.spec.bytes_per_token()]);
    manager.check().unwrap();
    cached
}

fn bytes(manager: &Manager, memory: &Memory, seq: SeqId) -> Vec<u8> {
    let rows = memory.read(&manager.slots(seq).unwrap().collect::<Vec<_>>());
    rows.chunks(memory.spec.bytes_per_token()).map(|row| row[0]).collect()
}

const PROMPT: [u32; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];

#[test]
fn a_sequence_comes_back_with_its_own_bytes_not_with_those_of_the_same_tokens() {
    let store = Arc::default();
    let (mut manager, mut memory) = made(4, "", &store);
    let a = manager.create();
    append(&mut manager, &mut memory, a, &PROMPT, 1);
    manager.swap_out(a).unwrap();
    // Evicts and overwrites all that was cached.
    let b = manager.create();
    append(&mut manager, &mut memory, b, &[77; 15], 9);
    manager.free(b).unwrap();
    // The same tokens one by one, which finds nothing, of other bytes; its pages are sealed.
    let c = manager.create();
    for token in PROMPT {
        assert_eq!(append(&mut manager, &mut memory, c, &[token], 3), 0);
    }
    manager.free(c).unwrap();
    assert_eq!(manager.swap_in(a, &mut memory).unwrap(), 9);
    assert_eq!(bytes(&manager, &memory, a), [1; 9]);
    manager.check().unwrap();

    // As long as its own pages are cached they are not read again.
    manager.swap_out(a).unwrap();
    let read = manager.swap_in(a, &mut memory).unwrap();
    assert_eq!(read, 5, "its last page, and one of which the index has another");
    assert_eq!(bytes(&manager, &memory, a), [1; 9]);
    manager.free(a).unwrap();
    let d = manager.create();
    append(&mut manager, &mut memory, d, &[50, 51, 52, 53, 54], 5);
    manager.swap_out(d).unwrap();
    assert_eq!(manager.swap_in(d, &mut memory).unwrap(), 1);
    assert_eq!(bytes(&manager, &memory, d), [5; 5]);
    assert_eq!(store.count(BlockKind::Private), 0, "what is in the cache again is in the store no longer");
}

#[test]
fn another_manager_finds_what_was_evicted_or_offloaded_but_not_what_another_model_or_tenant_has() {
    let store = Arc::default();
    let (mut first, mut memory) = made(4, "model", &store);
    let a = first.create();
    append(&mut first, &mut memory, a, &PROMPT, 1);
    first.free(a).unwrap();
    let b = first.create();
    append(&mut first, &mut memory, b, &[77; 15], 9);
    assert_eq!(store.count(BlockKind::Prefix), 2);
    first.offload_prefix().unwrap();
    first.update(&mut memory).unwrap();
    assert_eq!(store.count(BlockKind::Prefix), 5);

    let (mut second, mut others) = made(8, "model", &store);
    let c = second.create();
    assert_eq!(append(&mut second, &mut others, c, &PROMPT, 2), 8);
    assert_eq!(bytes(&second, &others, c), [1, 1, 1, 1, 1, 1, 1, 1, 2]);
    let reads = store.gets();
    let d = second.create();
    assert_eq!(append(&mut second, &mut others, d, &PROMPT, 2), 8);
    assert_eq!(store.gets(), reads, "pages that are in the cache are not read");
    assert_eq!(second.store_stats().unwrap().hits, 2);

    let e = second.create_with(&kvcache_manager::Create { salt: b"tenant", ..Default::default() });
    assert_eq!(append(&mut second, &mut others, e, &PROMPT, 2), 0);
    let (mut third, mut thirds) = made(8, "another", &store);
    let f = third.create();
    assert_eq!(append(&mut third, &mut thirds, f, &PROMPT, 2), 0);
    assert_eq!(third.store_stats().unwrap().misses["absent"], 1);
}

#[test]
fn a_step_that_is_rolled_back_leaves_no_page_that_was_not_written() {
    let store = Arc::default();
    let (mut first, mut memory) = made(4, "", &store);
    let a = first.create();
    append(&mut first, &mut memory, a, &PROMPT, 1);
    first.offload_prefix().unwrap();
    first.update(&mut memory).unwrap();
    let (mut second, mut others) = made(4, "", &store);
    let b = second.create();
    let before = second.clone();
    drop(second.begin_step(&[Append::tokens(b, &PROMPT)]).unwrap());
    assert!(second == before);
    others.faults.fails_at = Some(1);
    let failed = second.begin_step(&[Append::tokens(b, &PROMPT)]).unwrap().apply(&mut others).err().unwrap();
    assert_eq!(failed.kind(), "memory");
    assert!(second == before);
    others.faults.fails_at = None;
    assert_eq!(append(&mut second, &mut others, b, &PROMPT, 2), 8);
    assert_eq!(bytes(&second, &others, b), [1, 1, 1, 1, 1, 1, 1, 1, 2]);
}

#[test]
fn blocks_of_freed_sequences_are_deleted_and_a_clone_gives_its_own_names() {
    let store = Arc::default();
    let (mut manager, mut memory) = made(4, "", &store);
    let (a, b) = (manager.create(), manager.create());
    append(&mut manager, &mut memory, a, &PROMPT[..3], 1);
    append(&mut manager, &mut memory, b, &PROMPT[..2], 2);
    manager.swap_out(a).unwrap();
    // Not stored yet.
    manager.free(a).unwrap();
    let (mut clone, mut others) = (manager.clone(), memory.clone());
    others.write(&clone.slots(b).unwrap().collect::<Vec<_>>(), &[7; 2 * 64]);
    manager.swap_out(b).unwrap();
    clone.swap_out(b).unwrap();
    manager.update(&mut memory).unwrap();
    clone.update(&mut others).unwrap();
    assert_eq!(store.count(BlockKind::Private), 2);
    manager.swap_in(b, &mut memory).unwrap();
    clone.swap_in(b, &mut others).unwrap();
    assert_eq!((bytes(&manager, &memory, b), bytes(&clone, &others, b)), (vec![2; 2], vec![7; 2]));

    manager.swap_out(b).unwrap();
    manager.update(&mut memory).unwrap();
    store.blocks.lock().unwrap().clear();
    let error = manager.swap_in(b, &mut memory).unwrap_err();
    assert!(matches!(error, Error::RowsMissing { missing: 2, rows: 2, reason: "absent", .. }), "{error}");
    manager.free(b).unwrap();
    assert_eq!(manager.stats().used, 0);
}

/// Rows that nobody else has stay in memory while the store takes none, and no others follow them.
#[test]
fn swapped_rows_that_the_store_refuses_are_not_lost() {
    let store: Arc<Store> = Arc::default();
    let (mut manager, mut memory) = made(4, "", &store);
    let (a, b) = (manager.create(), manager.create());
    append(&mut manager, &mut memory, a, &PROMPT[..6], 1);
    append(&mut manager, &mut memory, b, &PROMPT[..2], 2);
    store.puts_left.store(1, Ordering::Relaxed);
    manager.swap_out(a).unwrap();
    manager.update(&mut memory).unwrap();
    let before = manager.clone();
    let error = manager.swap_out(b).unwrap_err();
    assert!(matches!(error, Error::TiersFull { reason: "failed", .. }), "{error}");
    assert!(manager == before);
    // The first page of the two is still in the cache.
    assert_eq!((manager.swap_in(a, &mut memory).unwrap(), bytes(&manager, &memory, a)), (2, vec![1; 6]));

    manager.swap_out(a).unwrap();
    manager.update(&mut memory).unwrap();
    store.puts_left.store(0, Ordering::Relaxed);
    manager.swap_out(b).unwrap();
    manager.update(&mut memory).unwrap();
    assert_eq!(store.count(BlockKind::Private), 3);
    assert_eq!((manager.swap_in(a, &mut memory).unwrap(), bytes(&manager, &memory, a)), (2, vec![1; 6]));
    assert_eq!((manager.swap_in(b, &mut memory).unwrap(), bytes(&manager, &memory, b)), (2, vec![2; 2]));
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
    let (mut manager, mut memory) = made(4, "", &store);
    let a = manager.create();
    append(&mut manager, &mut memory, a, &PROMPT[..3], 1);
    manager.swap_out(a).unwrap();
    manager.update(&mut memory).unwrap();
    let good = spoil();
    let error = manager.swap_in(a, &mut memory).unwrap_err();
    assert!(matches!(error, Error::RowsMissing { missing: 3, reason: "length", .. }), "{error}");
    *store.blocks.lock().unwrap() = good;
    assert_eq!((manager.swap_in(a, &mut memory).unwrap(), bytes(&manager, &memory, a)), (3, vec![1; 3]));
}

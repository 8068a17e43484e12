//! What goes where, when, and what is counted.

use std::sync::Arc;
use std::time::Duration;

use kvcache_manager::{BlockKind, BlockStore, StoreError};
use kvcache_testing::manager::store::{Fault, Store, stored};
use kvcache_tiers::{HostTier, Tier, TierStats, Tiers};

use crate::{NEVER, block_of, ends, holding, key, keys, prefix, wait_for};

const LARGE: u64 = 1 << 30;

/// A host tier of so many bytes, and remote ones.
fn tiers(nbytes: u64, remote: &[&Arc<Store>]) -> Tiers {
    let remote = remote.iter().enumerate().map(|(i, &store)| Tier::new(i.to_string(), store.clone()).deadline(NEVER));
    Tiers::new(HostTier::new(nbytes), remote).unwrap()
}

fn stats(tiers: &Tiers, tier: usize) -> TierStats {
    tiers.stats().swap_remove(tier)
}

#[test]
fn prefixes_go_to_all_tiers_and_private_blocks_to_the_next_when_evicted() {
    let [a, b] = [0; 2].map(|_| holding(0..0, &[]));
    let private = |i| block_of(BlockKind::Private, i);
    let tiers = tiers(3 * private(0).nbytes(), &[&a, &b]);
    let held = |store: &Store| {
        let mut held: Vec<_> = store.blocks.lock().unwrap().keys().map(|key| key.as_bytes()[0]).collect();
        held.sort();
        held
    };
    tiers.put(&key(5), prefix(5)).unwrap();
    for i in [10, 15] {
        tiers.put(&key(i), private(i)).unwrap();
    }
    assert!(tiers.flush(NEVER));
    assert_eq!((held(&a), held(&b)), (vec![5], vec![5]));
    for i in [20, 25] {
        tiers.put(&key(i), private(i)).unwrap();
    }
    assert!(tiers.flush(NEVER));
    assert_eq!((held(&a), held(&b)), (vec![5, 10], vec![5]));
    // Back in the host tier, another one goes.
    assert_eq!(tiers.get(&key(10)).unwrap(), Some(private(10)));
    assert!(tiers.flush(NEVER));
    assert_eq!((held(&a), stats(&tiers, 0).blocks), (vec![5, 10, 15], Some(3)));
    // Deleted everywhere.
    tiers.delete(&key(5)).unwrap();
    assert_eq!(tiers.get(&key(5)).unwrap(), None);
    assert!(tiers.flush(NEVER));
    assert_eq!((held(&a), held(&b)), (vec![10, 15], vec![]));
    // Larger than the host tier: to the next one at once.
    let large = block_of(BlockKind::Private, 4);
    let small = self::tiers(large.nbytes() - 1, &[&a]);
    small.put(&key(4), large.clone()).unwrap();
    assert_eq!(small.get(&key(4)).unwrap(), Some(large));
    // Larger than all that is there.
    let alone = self::tiers(10, &[]);
    assert!(matches!(alone.put(&key(0), prefix(0)), Err(StoreError::Capacity { len: 96, capacity: 10 })));
}

#[test]
fn a_chain_is_gathered_from_all_tiers_and_loses_its_tail_first() {
    let [a, b] = [2..20, 20..40].map(|blocks| holding(blocks, &[]));
    let host = HostTier::new((0..41).map(|i| prefix(i).nbytes()).sum());
    for i in [0, 1, 40] {
        host.put(&key(i), prefix(i)).unwrap();
    }
    let remote = [&a, &b].map(|store| Tier::new("far", store.clone()).deadline(NEVER));
    let tiers = Tiers::new(host, remote).unwrap();
    let (blocks, error) = tiers.get_chain(&keys(0..50));
    assert!(error.is_none());
    assert_eq!(blocks, (0..41).map(prefix).collect::<Vec<_>>());
    // Behind 1 and behind 40, whatever number of calls brings what comes there.
    assert_eq!(stats(&tiers, 0).misses["absent"], 2);
    // All are in the host tier now. What is put evicts the last first.
    assert_eq!(stats(&tiers, 0).blocks, Some(41));
    tiers.put(&key(45), prefix(45)).unwrap();
    assert!(tiers.flush(NEVER));
    a.set(&[Fault::Lose]);
    b.set(&[Fault::Lose]);
    assert_eq!(tiers.get_chain(&keys(0..41)).0.len(), 40);
}

#[test]
fn bad_blocks_are_read_again_counted_and_stay() {
    let store = holding(0..0, &[]);
    let tiers = tiers(LARGE, &[&store]);
    let mut other_version = stored(&prefix(1)).to_vec();
    other_version[7] += 1;
    let mut altered = stored(&prefix(2)).to_vec();
    altered[70] ^= 1;
    let bad = [stored(&prefix(0)).slice(..90), other_version.into(), altered.into(), stored(&prefix(4))];
    for (i, bad) in (0..).zip(bad) {
        store.blocks.lock().unwrap().insert(key(i), bad);
        assert!(matches!(tiers.get(&key(i)), Err(StoreError::Bad(_))));
    }
    assert!(tiers.flush(NEVER));
    assert_eq!((store.num_blocks(), store.calls()), (4, 8));
    let misses = stats(&tiers, 1).misses;
    assert_eq!(["length", "format", "checksum", "key"].map(|reason| misses[reason]), [1; 4]);
    assert_eq!(misses.values().sum::<u64>(), 4);
}

#[test]
fn a_bad_block_is_replaced_by_what_a_farther_tier_gives() {
    let [near, far] = [0; 2].map(|_| holding(0..20, &[]));
    let altered = stored(&prefix(3)).slice(..90);
    near.blocks.lock().unwrap().insert(key(3), altered);
    let tiers = tiers(LARGE, &[&near, &far]);
    let (blocks, error) = tiers.get_chain(&keys(0..20));
    assert!(error.is_none() && blocks == (0..20).map(prefix).collect::<Vec<_>>());
    assert!(tiers.flush(NEVER));
    assert_eq!(near.blocks.lock().unwrap()[&key(3)], stored(&prefix(3)));
    assert_eq!((stats(&tiers, 1).misses["length"], stats(&tiers, 1).puts), (1, 1));
}

/// What one read of many gives, and the next does not, as a proxy's error page.
#[test]
fn a_block_that_is_bad_once_is_read_again() {
    let store = holding(0..40, &[Fault::Flip(8 * 70), Fault::None, Fault::Cut(3), Fault::None]);
    let tiers = tiers(LARGE, &[&store]);
    let (blocks, error) = tiers.get_chain(&keys(0..40));
    assert!(error.is_none() && blocks == (0..40).map(prefix).collect::<Vec<_>>());
    assert_eq!((store.num_blocks(), stats(&tiers, 1).misses.values().sum::<u64>()), (40, 0));
}

#[test]
fn queued_blocks_are_found_and_their_bytes_are_bounded() {
    let store = holding(0..0, &[Fault::Hang]);
    // Of each queued write 256 bytes count beside the block.
    let tier = Tier::new("far", store.clone()).max_queued(3 * (256 + 96));
    let tiers = Tiers::new(HostTier::new(96), [tier]).unwrap();
    for i in [0, 5, 10, 15] {
        tiers.put(&key(i), prefix(i)).unwrap();
    }
    assert!(!tiers.flush(Duration::from_millis(1)));
    for i in [0, 5, 10, 15] {
        assert_eq!(tiers.get(&key(i)).unwrap(), Some(prefix(i)));
    }
    let remote = stats(&tiers, 1);
    assert_eq!((remote.hits, remote.puts, remote.writes_dropped), (3, 0, 1));
    store.gate.open();
    assert!(tiers.flush(NEVER));
    let remote = stats(&tiers, 1);
    assert_eq!((remote.puts, remote.bytes_written, store.num_blocks()), (3, 3 * 96, 3));
}

/// A private block has no other copy: where the queue is full it waits for room as long as blocks are written, then it
/// is refused, and once it is queued it is tried again until it is written.
#[test]
fn private_blocks_wait_for_room_in_the_queue() {
    let store = holding(0..0, &[Fault::Slow(2)]);
    let private = |i| block_of(BlockKind::Private, 5 * i);
    let tiers = |deadline| {
        let tier = Tier::new("far", store.clone()).max_queued(256 + 96).deadline(deadline);
        Tiers::new(HostTier::new(0), [tier]).unwrap()
    };
    let patient = tiers(NEVER);
    (0..20).for_each(|i| patient.put(&key(5 * i), private(i)).unwrap());
    assert!(patient.flush(NEVER));
    assert_eq!((stats(&patient, 1).puts, stats(&patient, 1).writes_dropped), (20, 0));
    store.set(&[Fault::Hang]);
    let hasty = tiers(Duration::from_millis(20));
    hasty.put(&key(105), private(21)).unwrap();
    assert!(hasty.put(&key(110), private(22)).is_err());
    assert_eq!(stats(&hasty, 1).writes_dropped, 0);
    store.gate.open();
    assert!(hasty.flush(NEVER));
    assert_eq!(store.num_blocks(), 21);
    // Slower in all than the deadline, but not block by block.
    store.set(&[Fault::Slow(5)]);
    let steady = tiers(Duration::from_millis(40));
    (25..45).for_each(|i| steady.put(&key(5 * i), private(i)).unwrap());
    assert!(steady.flush(NEVER));
    store.set(&[Fault::Fail, Fault::Fail, Fault::None]);
    steady.put(&key(250), private(50)).unwrap();
    assert!(steady.flush(NEVER));
    assert_eq!((store.num_blocks(), stats(&steady, 1).writes_dropped), (42, 0));
}

/// What a read brings evicts private blocks, which have no room in the queue: the read does not wait for that.
#[test]
fn reads_wait_for_no_room_in_the_queue() {
    let store = holding(0..10, &[Fault::Hang, Fault::None]);
    let tier = Tier::new("far", store.clone()).max_queued(256 + 96).deadline(NEVER);
    let tiers = Tiers::new(HostTier::new(2 * 96), [tier]).unwrap();
    [100, 105, 110].iter().for_each(|&i| tiers.put(&key(i), block_of(BlockKind::Private, i)).unwrap());
    wait_for(|| store.calls() == 1);
    let tiers = ends(move || {
        let (blocks, error) = tiers.get_chain(&[key(0), key(5)]);
        assert!(error.is_none() && blocks == [prefix(0), prefix(5)]);
        tiers
    });
    // Nor is any of them lost.
    for i in [100, 105, 110] {
        assert_eq!(tiers.get(&key(i)).unwrap(), Some(block_of(BlockKind::Private, i)));
    }
    assert_eq!(stats(&tiers, 1).writes_dropped, 0);
    store.gate.open();
}

#[test]
fn a_tier_that_hangs_is_late_once_and_then_busy() {
    let store = holding(0..0, &[Fault::Hang]);
    let tier = Tier::new("far", store.clone()).deadline(Duration::from_millis(20));
    let tiers = Tiers::new(HostTier::new(LARGE), [tier]).unwrap();
    let tiers = ends(move || {
        assert!(matches!(tiers.get(&key(0)), Err(StoreError::Late(_))));
        // Once its thread has been in the call for as long as the deadline.
        wait_for(|| matches!(tiers.get(&key(0)), Err(StoreError::Busy)));
        for _ in 0..10 {
            assert!(matches!(tiers.get(&key(0)), Err(StoreError::Busy)));
            assert!(matches!(tiers.contains(&key(0)), Err(StoreError::Busy)));
        }
        tiers
    });
    assert_eq!(store.calls(), 1);
    let misses = stats(&tiers, 1).misses;
    assert!(misses["late"] >= 1 && misses["busy"] >= 11, "{misses:?}");
    // What comes too late is kept.
    store.blocks.lock().unwrap().insert(key(0), stored(&prefix(0)));
    store.gate.open();
    wait_for(|| tiers.get(&key(0)).is_ok_and(|block| block == Some(prefix(0))));
    assert_eq!(stats(&tiers, 0).hits, 1);
}

/// Of a chain that takes longer than the deadline there is what has come in time, and all of it later on.
#[test]
fn a_slow_chain_comes_piece_by_piece() {
    let store = holding(0..160, &[Fault::Slow(50)]);
    let tier = Tier::new("far", store.clone()).deadline(Duration::from_millis(100));
    let tiers = Tiers::new(HostTier::new(LARGE), [tier]).unwrap();
    let (blocks, error) = tiers.get_chain(&keys(0..160));
    assert!(matches!(error, Some(StoreError::Late(_))), "{error:?}");
    assert!([0, 16, 32].contains(&blocks.len()), "{}", blocks.len());
    wait_for(|| tiers.get_chain(&keys(0..160)).0.len() == 160);
}

/// Who comes while another's call runs waits for it, and is not sent away.
#[test]
fn several_callers_take_turns() {
    let store = holding(0..32, &[Fault::Slow(5)]);
    let tiers = tiers(LARGE, &[&store]);
    std::thread::scope(|scope| {
        for i in 0..32 {
            let tiers = &tiers;
            scope.spawn(move || assert_eq!(tiers.get(&key(i)).unwrap(), Some(prefix(i))));
        }
    });
    assert_eq!((stats(&tiers, 1).hits, stats(&tiers, 1).misses.values().sum::<u64>()), (32, 0));
}

#[test]
fn a_tier_that_fails_is_left_alone_and_tried_again() {
    let store = holding(0..0, &[Fault::Fail]);
    let tiers = tiers(LARGE, &[&store]);
    for _ in 0..3 {
        assert!(matches!(tiers.get(&key(0)), Err(StoreError::Failed(_))));
    }
    assert!(matches!(tiers.get(&key(0)), Err(StoreError::Busy)));
    assert_eq!(store.calls(), 3);
    // Writes have a pause of their own, and wait for its end.
    store.set(&[]);
    tiers.put(&key(1), prefix(1)).unwrap();
    assert!(tiers.flush(NEVER));
    store.blocks.lock().unwrap().insert(key(0), stored(&prefix(0)));
    wait_for(|| tiers.get(&key(0)).is_ok());
    assert_eq!(tiers.get(&key(0)).unwrap(), Some(prefix(0)));
}

/// Dropped, tiers do not wait for a store that fails.
#[test]
fn dropped_tiers_finish_their_writes() {
    let store = holding(0..0, &[Fault::Slow(1)]);
    let tiers = tiers(LARGE, &[&store]);
    (0..20).for_each(|i| tiers.put(&key(i), prefix(i)).unwrap());
    drop(tiers);
    assert_eq!(store.num_blocks(), 20);
    let store = holding(0..0, &[Fault::Fail]);
    let tiers = self::tiers(LARGE, &[&store]);
    (0..200).for_each(|i| tiers.put(&key(i), prefix(i)).unwrap());
    drop(tiers);
    assert!(store.calls() < 10, "{} calls", store.calls());
}

#[test]
fn prefetched_blocks_come_to_the_host_tier_from_whichever_has_them() {
    let [a, b] = [0; 2].map(|_| holding(0..0, &[]));
    for i in 0..40 {
        let store = if i % 7 == 3 { &b } else { &a };
        store.put(&key(i), prefix(i)).unwrap();
    }
    let tiers = tiers(LARGE, &[&a, &b]);
    tiers.prefetch(&keys(0..45));
    wait_for(|| stats(&tiers, 0).blocks == Some(40));
    for i in 0..40 {
        assert_eq!(tiers.get(&key(i)).unwrap(), Some(prefix(i)));
    }
    assert_eq!((stats(&tiers, 0).hits, stats(&tiers, 0).misses.values().sum::<u64>()), (40, 0));
}

#[test]
fn a_tier_slower_than_computing_is_a_miss() {
    let store = holding(0..100, &[Fault::Slow(2)]);
    let tiers = tiers(0, &[&store]);
    let hits = |tiers: &Tiers| (0..100).filter(|&i| tiers.get(&key(i)).unwrap().is_some()).count();
    assert_eq!(hits(&tiers), 100);
    assert!(stats(&tiers, 1).read_rate < Some(160.0 / 2e-3));
    // 160 bytes in 2 milliseconds at most. One in 32 is read to measure it again.
    tiers.set_compute_rate(1e9);
    assert_eq!((hits(&tiers), stats(&tiers, 1).misses["slower"]), (3, 97));
    tiers.set_compute_rate(1.0);
    assert_eq!(hits(&tiers), 100);
}

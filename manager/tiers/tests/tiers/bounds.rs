//! Host and file tiers against a model: what they hold, in which order they evict, and never more than their capacity.

use std::fs;
use std::path::Path;

use kvcache_manager::{BlockKind, BlockStore, StoreError, Usage};
use kvcache_tiers::{FileTier, HostTier};
use proptest::prelude::*;

use crate::files::files;
use crate::{block_of, key, keys, prefix};

const KEYS: u8 = 8;

#[derive(Debug, Clone)]
enum Op {
    Put(u8),
    Get(u8),
    Chain(u8, u8),
    Delete(u8),
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..KEYS).prop_map(Op::Put),
        2 => (0..KEYS).prop_map(Op::Get),
        2 => (0..KEYS, 0..KEYS).prop_map(|(a, b)| Op::Chain(a.min(b), a.max(b))),
        1 => (0..KEYS).prop_map(Op::Delete),
        1 => Just(Op::Reopen),
    ]
}

/// The blocks, the least recently used first.
#[derive(Default)]
struct Model {
    held: Vec<u8>,
    evicted: u64,
}

impl Model {
    fn nbytes(&self) -> u64 {
        self.held.iter().map(|&i| prefix(i).nbytes()).sum()
    }

    fn touch(&mut self, i: u8) -> bool {
        let at = self.held.iter().position(|&held| held == i);
        at.inspect(|&at| self.held[at..].rotate_left(1)).is_some()
    }

    fn put(&mut self, i: u8, capacity: u64) {
        if !self.touch(i) {
            self.held.push(i);
        }
        while self.nbytes() > capacity {
            self.held.remove(0);
            self.evicted += 1;
        }
    }
}

/// Runs a script; after each operation the store holds what the model holds.
fn agrees<S: BlockStore>(ops: &[Op], capacity: u64, mut reopened: impl FnMut(Option<S>) -> (S, bool)) {
    let (mut store, _) = reopened(None);
    let mut model = Model::default();
    for op in ops {
        match *op {
            Op::Put(i) if prefix(i).nbytes() > capacity => {
                let refused = store.put(&key(i), prefix(i));
                assert!(matches!(refused, Err(StoreError::Capacity { .. })), "{refused:?}");
            }
            Op::Put(i) => {
                store.put(&key(i), prefix(i)).unwrap();
                model.put(i, capacity);
            }
            Op::Get(i) => {
                let expected = model.touch(i).then(|| prefix(i));
                assert_eq!(store.get(&key(i)).unwrap(), expected, "{op:?}");
            }
            Op::Chain(from, to) => {
                let found: Vec<_> = (from..to).take_while(|i| model.held.contains(i)).collect();
                found.iter().rev().for_each(|&i| assert!(model.touch(i)));
                let (blocks, error) = store.get_chain(&keys(from..to));
                assert!(error.is_none());
                assert_eq!(blocks, found.into_iter().map(prefix).collect::<Vec<_>>(), "{op:?}");
            }
            Op::Delete(i) => {
                store.delete(&key(i)).unwrap();
                model.held.retain(|&held| held != i);
            }
            Op::Reopen => {
                let keeps;
                (store, keeps) = reopened(Some(store));
                model = Model { held: if keeps { model.held } else { Vec::new() }, evicted: 0 };
            }
        }
        let (blocks, nbytes) = (Some(model.held.len() as u64), Some(model.nbytes()));
        assert_eq!(store.usage(), Usage { blocks, nbytes, evicted: model.evicted }, "{op:?}");
        assert!(model.nbytes() <= capacity);
        for i in 0..KEYS {
            assert_eq!(store.contains(&key(i)).unwrap(), model.held.contains(&i), "{i} after {op:?}");
        }
    }
}

/// Bytes of all files in the subfolders of a folder.
fn on_disk(folder: &Path) -> u64 {
    files(folder).iter().map(|file| fs::metadata(file).unwrap().len()).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_host_tier_is_its_model(ops in prop::collection::vec(op(), 1..60), capacity in 100u64..700) {
        agrees(&ops, capacity, |_| (HostTier::new(capacity), false));
    }

    /// Reopened, it knows the order of last uses.
    #[test]
    fn a_file_tier_is_its_model(ops in prop::collection::vec(op(), 1..60), capacity in 100u64..700) {
        let folder = tempfile::tempdir().unwrap();
        agrees(&ops, capacity, |before| {
            if let Some(before) = before {
                assert_eq!(Some(on_disk(folder.path())), BlockStore::usage(&before).nbytes);
            }
            (FileTier::open(folder.path(), capacity).unwrap(), true)
        });
    }
}

/// Of private blocks there is no other copy: they make room neither for each other nor for prefixes.
#[test]
fn a_tier_full_of_private_blocks_refuses_more() {
    let folder = tempfile::tempdir().unwrap();
    let stores: [Box<dyn BlockStore>; 2] =
        [Box::new(HostTier::new(4 * 96)), Box::new(FileTier::open(folder.path(), 4 * 96).unwrap())];
    for store in stores {
        let private = |i| block_of(BlockKind::Private, i);
        for i in [0, 5, 10] {
            store.put(&key(i), private(i)).unwrap();
        }
        store.put(&key(15), prefix(15)).unwrap();
        // In the place of the prefix; then there is no room.
        store.put(&key(20), private(20)).unwrap();
        let error = store.put(&key(25), private(25)).unwrap_err();
        assert!(matches!(error, StoreError::Full { capacity: 384, .. }), "{error}");
        let _ = store.put(&key(30), prefix(30));
        for (i, is_there) in [(0, true), (5, true), (10, true), (15, false), (20, true), (25, false), (30, false)] {
            assert_eq!(store.contains(&key(i)).unwrap(), is_there, "{i}");
        }
        store.delete(&key(5)).unwrap();
        store.put(&key(25), private(25)).unwrap();
        assert_eq!(store.usage().nbytes, Some(4 * 96));
    }
}

//! Sessions of any sequences: what is saved is loaded, in whatever mode, layout and size, or nothing has changed.

use kvcache_manager::op::Serial;
use kvcache_manager::{Append, CacheMemory, HostMemory, Manager, MemoryError, Rope, Rotation, RowCopy, SeqId};
use kvcache_testing::manager::memory::{Memory, tensor};
use kvcache_testing::manager::run::Run;
use kvcache_testing::manager::script::{Cache, Operation, drawn, operations};
use proptest::prelude::*;

use crate::session::Path;

/// What a script leaves, with nothing queued.
fn run(cache: &Cache, operations: &[Operation]) -> Run {
    let mut run = Run::new(cache);
    operations.iter().for_each(|operation| run.apply(operation));
    run.create(0, 0);
    run.update();
    run
}

/// Each sequence's positions and rows.
fn contents(manager: &Manager, memory: &Memory, seqs: &[SeqId]) -> Vec<(Vec<i64>, Vec<u8>)> {
    let rows = |seq| memory.read(&manager.slots(seq).unwrap().collect::<Vec<_>>());
    seqs.iter().map(|&seq| (manager.positions(seq).unwrap().collect(), rows(seq))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// A session fits into a cache like the one that it was saved from, and into any other that is large enough; saved
    /// again it is the same file.
    #[test]
    fn what_is_saved_is_loaded(
        cache in drawn(Cache::draw),
        other in drawn(Cache::draw),
        operations in operations(Operation::draw, 25),
    ) {
        let path = Path::new();
        let mut run = run(&cache, &operations);
        let expected = contents(&run.manager, &run.memory, &run.ids);
        let Memory { cache: stored, scale, .. } = &mut run.memory;
        let host = HostMemory::new(run.manager.spec(), tensor(stored), scale.as_mut().map(tensor), &Serial).unwrap();
        run.manager.save(path.file(), &host).unwrap();
        let file = std::fs::read(path.file()).unwrap();

        // Room for all sequences in pages of their own.
        let room = |len: usize| len + 16;
        let in_all = expected.iter().map(|(positions, _)| room(positions.len())).sum::<usize>().max(16);
        let other = |max_t| Cache { max_t, max_pages: None, mode: other.mode, layout: other.layout, ..run.cache.clone() };
        let other = |max_t| Cache { prefix_sharing: other(max_t).paged(), ..other(max_t) };
        for to in [run.cache.clone(), other(in_all)] {
            let (mut manager, mut memory) = (Manager::new(to.spec()).unwrap(), Memory::new(&to.spec()));
            let loaded = manager.load(path.file(), &mut memory).unwrap();
            manager.check().unwrap();
            prop_assert!(contents(&manager, &memory, &loaded) == expected);
            manager.save(path.file(), &memory).unwrap();
            if to.mode == run.cache.mode {
                // The order of rows is that of sequences.
                prop_assert!(std::fs::read(path.file()).unwrap() == file);
                prop_assert!(manager.stats().used <= run.manager.stats().used);
            }
            // And it goes on.
            for &seq in &loaded {
                if let Ok(planned) = manager.begin_step(&[Append::tokens(seq, &[1, 2])]) {
                    planned.apply(&mut memory).unwrap().commit();
                }
                manager.check().unwrap();
            }
            std::fs::write(path.file(), &file).unwrap();
        }

        for (index, &seq) in run.ids.iter().enumerate() {
            run.manager.save_seq(path.file(), &run.memory, seq).unwrap();
            let alone = std::fs::read(path.file()).unwrap();
            std::fs::write(path.file(), &file).unwrap();
            let to = other(room(expected[index].0.len())).spec();
            let (mut manager, mut memory) = (Manager::new(to.clone()).unwrap(), Memory::new(&to));
            let loaded = manager.load_seq(path.file(), &mut memory, index).unwrap();
            prop_assert!(contents(&manager, &memory, &[loaded])[0] == expected[index]);
            manager.save(path.file(), &memory).unwrap();
            prop_assert!(std::fs::read(path.file()).unwrap() == alone);
            std::fs::write(path.file(), &file).unwrap();
        }
    }

    /// A failure at any write leaves sequences, their rows and the pages that were not to be written.
    #[test]
    fn a_failing_memory_changes_nothing(
        cache in drawn(Cache::draw),
        operations in operations(Operation::draw, 25),
        fails_at in 0usize..4,
        panics in any::<bool>(),
    ) {
        let path = Path::new();
        let Run { mut manager, mut memory, ids, .. } = run(&cache, &operations);
        manager.save(path.file(), &memory).unwrap();
        // Some stay, others are cached or free now.
        for &seq in ids.iter().skip(1).step_by(2) {
            manager.free(seq).unwrap();
        }
        let left: Vec<_> = ids.iter().copied().step_by(2).collect();
        let expected = contents(&manager, &memory, &left);
        let (stats, before) = (manager.stats(), manager.clone());
        let mut failing = Failing { memory: &mut memory, writes: fails_at, panics };
        let last = ids.len() - 1;
        let load = std::panic::AssertUnwindSafe(|| manager.load_seq(path.file(), &mut failing, last));
        let loaded = std::panic::catch_unwind(load);
        manager.check().unwrap();
        if !matches!(loaded, Ok(Ok(_))) {
            if let Ok(Err(error)) = &loaded {
                prop_assert!(["memory", "no_room", "no_slot", "too_many_pages"].contains(&error.kind()), "{error}");
                prop_assert!(error.kind() == "memory" || manager == before);
            }
            let got = manager.stats();
            prop_assert_eq!((got.used, got.shared, got.sequences), (stats.used, stats.shared, stats.sequences));
            prop_assert_eq!(got.free + got.cached, stats.free + stats.cached);
        }
        prop_assert!(contents(&manager, &memory, &left) == expected);
    }
}

/// A memory of which some write fails, after it has written half.
struct Failing<'a> {
    memory: &'a mut Memory,
    /// Writes that succeed before.
    writes: usize,
    panics: bool,
}

impl CacheMemory for Failing<'_> {
    fn copy_rows(&mut self, copies: &[RowCopy]) -> Result<(), MemoryError> {
        self.memory.copy_rows(copies)
    }

    fn rotate_keys(&mut self, rotations: &[Rotation], rope: &Rope) -> Result<(), MemoryError> {
        self.memory.rotate_keys(rotations, rope)
    }

    fn read_rows(&self, slots: &[usize], rows: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read_rows(slots, rows)
    }

    fn write_rows(&mut self, slots: &[usize], rows: &[u8]) -> Result<(), MemoryError> {
        if self.writes > 0 {
            self.writes -= 1;
            return self.memory.write_rows(slots, rows);
        }
        let half = slots.len().div_ceil(2);
        self.memory.write_rows(&slots[..half], &vec![0xff; half * rows.len() / slots.len()])?;
        assert!(!self.panics, "the memory panics");
        Err("injected".into())
    }
}

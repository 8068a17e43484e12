//! What the targets of the manager share.

use kvcache_manager::{CacheMemory, CacheSpec, MemoryError, Rope, Rotation, RowCopy};

/// A memory without bytes, which checks what it is asked. It can fail.
#[derive(Debug)]
pub struct Slots {
    max_t: usize,
    row_len: usize,
    /// Whether the next call fails.
    pub fails: bool,
}

impl Slots {
    /// The memory of a cache.
    pub fn new(spec: &CacheSpec) -> Self {
        Self { max_t: spec.geometry().max_t, row_len: spec.bytes_per_token(), fails: false }
    }

    fn check(&self, slots: &[usize], rows: &[u8]) {
        assert!(slots.iter().all(|&slot| slot < self.max_t));
        assert_eq!(rows.len(), slots.len() * self.row_len);
    }

    fn result(&mut self) -> Result<(), MemoryError> {
        if std::mem::take(&mut self.fails) { Err("injected".into()) } else { Ok(()) }
    }
}

impl CacheMemory for Slots {
    fn copy_rows(&mut self, copies: &[RowCopy]) -> Result<(), MemoryError> {
        assert!(copies.iter().all(|copy| copy.src.max(copy.dst) + copy.len <= self.max_t));
        self.result()
    }

    fn rotate_keys(&mut self, rotations: &[Rotation], _: &Rope) -> Result<(), MemoryError> {
        let mut slots: Vec<_> = rotations.iter().flat_map(|turn| turn.slot..turn.slot + turn.len).collect();
        slots.sort_unstable();
        assert!(slots.is_sorted_by(|a, b| a < b) && slots.last().is_none_or(|&slot| slot < self.max_t));
        self.result()
    }

    fn read_rows(&self, slots: &[usize], rows: &mut [u8]) -> Result<(), MemoryError> {
        self.check(slots, rows);
        Ok(())
    }

    fn write_rows(&mut self, slots: &[usize], rows: &[u8]) -> Result<(), MemoryError> {
        self.check(slots, rows);
        self.result()
    }
}

/// A directory for files, in memory where the system has such a place.
pub fn directory() -> std::path::PathBuf {
    let places = ["/dev/shm".into(), std::env::temp_dir()];
    places.into_iter().find(|path: &std::path::PathBuf| path.is_dir()).expect("a directory")
}

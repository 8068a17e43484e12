//! What the targets of the manager share.

use std::collections::BTreeSet;

use kvcache_manager::{CacheMemory, CacheSpec, MemoryError, Rope, Rotation, RowCopy};

/// What a slot holds, in the place of a token's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    /// Whose they are.
    pub tag: u32,
    /// The position that the keys are rotated for.
    pub rotated: i32,
}

impl Content {
    /// What nobody has written.
    const NONE: Self = Self { tag: u32::MAX, rotated: 0 };

    fn to_bytes(self) -> [u8; 8] {
        (u64::from(self.tag) << 32 | u64::from(self.rotated as u32)).to_le_bytes()
    }

    fn from_bytes(bytes: [u8; 8]) -> Self {
        let bits = u64::from_le_bytes(bytes);
        Self { tag: (bits >> 32) as u32, rotated: bits as u32 as i32 }
    }
}

/// A memory that has a number for each slot, and checks what it is asked. It can fail.
#[derive(Debug, Clone)]
pub struct Slots {
    /// By slot.
    pub contents: Vec<Content>,
    row_len: usize,
    /// How many calls pass before one fails, if one shall.
    pub fails_after: Option<usize>,
    /// The slots that the call that failed last was to write. Every second one of them holds what nobody has written.
    pub damaged: BTreeSet<usize>,
}

impl Slots {
    /// The memory of a cache.
    pub fn new(spec: &CacheSpec) -> Self {
        let row_len = spec.bytes_per_token();
        assert!(row_len >= 8, "a row has room for what a slot holds");
        let contents = vec![Content::NONE; spec.geometry().max_t];
        Self { contents, row_len, fails_after: None, damaged: BTreeSet::new() }
    }

    /// Fails if it is this call's turn, and then damages slots that it was to write.
    fn result(&mut self, slots: impl Iterator<Item = usize>) -> Result<(), MemoryError> {
        let Some(left) = self.fails_after else { return Ok(()) };
        self.fails_after = left.checked_sub(1);
        if left > 0 {
            return Ok(());
        }
        self.damaged = slots.collect();
        for &slot in self.damaged.iter().step_by(2) {
            self.contents[slot] = Content::NONE;
        }
        Err("injected".into())
    }
}

impl CacheMemory for Slots {
    fn copy_rows(&mut self, copies: &[RowCopy]) -> Result<(), MemoryError> {
        self.result(copies.iter().flat_map(|copy| copy.dst..copy.dst + copy.len))?;
        for copy in copies {
            self.contents.copy_within(copy.src..copy.src + copy.len, copy.dst);
        }
        Ok(())
    }

    fn rotate_keys(&mut self, rotations: &[Rotation], _: &Rope) -> Result<(), MemoryError> {
        let mut slots: Vec<_> = rotations.iter().flat_map(|turn| turn.slot..turn.slot + turn.len).collect();
        slots.sort_unstable();
        assert!(slots.is_sorted_by(|a, b| a < b), "a slot is in one rotation");
        self.result(slots.into_iter())?;
        for turn in rotations {
            for content in &mut self.contents[turn.slot..turn.slot + turn.len] {
                content.rotated = (i64::from(content.rotated) + turn.delta) as i32;
            }
        }
        Ok(())
    }

    fn read_rows(&self, slots: &[usize], rows: &mut [u8]) -> Result<(), MemoryError> {
        assert_eq!(rows.len(), slots.len() * self.row_len);
        for (row, &slot) in rows.chunks_exact_mut(self.row_len).zip(slots) {
            let (content, rest) = row.split_at_mut(8);
            content.copy_from_slice(&self.contents[slot].to_bytes());
            rest.fill(0);
        }
        Ok(())
    }

    fn write_rows(&mut self, slots: &[usize], rows: &[u8]) -> Result<(), MemoryError> {
        assert_eq!(rows.len(), slots.len() * self.row_len);
        self.result(slots.iter().copied())?;
        for (row, &slot) in rows.chunks_exact(self.row_len).zip(slots) {
            let (content, _) = row.as_chunks();
            self.contents[slot] = Content::from_bytes(content[0]);
        }
        Ok(())
    }
}

/// A directory for files, in memory where the system has such a place.
pub fn directory() -> std::path::PathBuf {
    let places = ["/dev/shm".into(), std::env::temp_dir()];
    places.into_iter().find(|path: &std::path::PathBuf| path.is_dir()).expect("a directory")
}

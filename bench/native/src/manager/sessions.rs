//! Saving and loading sequences, against writing and reading a file of the same bytes, and hashing them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use kvcache_manager::schema::CacheLayout;
use kvcache_manager::{Append, CacheMemory, Manager};
use kvcache_op::Serial;
use tempfile::TempDir;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::manager::case::{self, Case, Meter};
use crate::manager::memory::{HostCache, Random};
use crate::manager::setup::{NoBytes, text};

/// Slots of the cache.
const MAX_T: usize = 4096;
const SEQUENCES: usize = 8;
/// Rows of a sequence: together they are half of the cache.
const ROWS: usize = MAX_T / 2 / SEQUENCES;
/// Bytes that are hashed while they are in cache, and written or read in one go.
const CHUNK: usize = 256 << 10;
/// A folder in memory, where the system has one: a disk would hide what else takes time.
const IN_MEMORY: &str = "/dev/shm";

/// A cache with sequences of known tokens, and a file of them.
pub(crate) struct Sessions {
    memory: HostCache,
    manager: Manager,
    folder: TempDir,
    /// The bytes of the file.
    session: Vec<u8>,
}

impl Sessions {
    /// A cache of this layout: of float16 for 16 bits; of codes of 8 or 4 bits with float16 scales.
    ///
    /// # Errors
    /// If there is no such layout or width, or no folder for files.
    pub(crate) fn new(layout: usize, bits: usize) -> Result<Self, String> {
        let layout = CacheLayout::from_code(layout as i64).ok_or_else(|| format!("no layout is {layout}"))?;
        let memory = HostCache::of_width(layout, bits, MAX_T, None, &mut Random(3))?;
        let mut manager = Manager::new(memory.spec.clone()).map_err(text)?;
        for i in 0..SEQUENCES {
            let seq = manager.create();
            let tokens: Vec<u32> = (0..ROWS).map(|t| (i * ROWS + t) as u32).collect();
            let planned = manager.begin_step(&[Append::tokens(seq, &tokens)]).map_err(text)?;
            planned.apply(&mut NoBytes::default()).map_err(text)?.commit();
        }
        let folder = if Path::new(IN_MEMORY).is_dir() { TempDir::new_in(IN_MEMORY) } else { TempDir::new() };
        let folder = folder.map_err(text)?;
        let mut sessions = Self { memory, manager, folder, session: Vec::new() };
        sessions.save()?;
        sessions.session = fs::read(sessions.path("session")).map_err(text)?;
        Ok(sessions)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn save(&mut self) -> Result<(), String> {
        let path = self.path("session");
        self.manager.save(path, &self.memory.memory(&Serial)?).map_err(text)
    }

    /// Writes the same bytes beside the file, hashes them, and puts the new file into the place of the old one.
    fn write_and_hash(&self) -> io::Result<u128> {
        let (beside, path) = (self.path("beside"), self.path("copy"));
        let mut file = File::create(&beside)?;
        let mut hash = Xxh3::new();
        for chunk in self.session.chunks(CHUNK) {
            hash.update(chunk);
            file.write_all(chunk)?;
        }
        file.sync_all()?;
        fs::rename(beside, path)?;
        Ok(hash.digest128())
    }

    fn load(&mut self, manager: &mut Manager) -> Result<usize, String> {
        let path = self.path("session");
        Ok(manager.load(path, &mut self.memory.memory(&Serial)?).map_err(text)?.len())
    }

    /// Reads the file, and hashes what was read.
    fn read_and_hash(&self) -> io::Result<u128> {
        Ok(xxh3_128(&fs::read(self.path("session"))?))
    }

    /// The rows of all sequences of a manager, in canonical order.
    fn rows(&mut self, manager: &Manager, seqs: &[kvcache_manager::SeqId]) -> Result<Vec<u8>, String> {
        let mut slots = Vec::new();
        for &seq in seqs {
            slots.extend(manager.slots(seq).map_err(text)?);
        }
        let mut rows = vec![0; slots.len() * self.memory.spec.bytes_per_token()];
        self.memory.memory(&Serial)?.read_rows(&slots, &mut rows).map_err(text)?;
        Ok(rows)
    }
}

impl Case for Sessions {
    fn check(&mut self) -> Result<(), String> {
        let mut loaded = Manager::new(self.memory.spec.clone()).map_err(text)?;
        let path = self.path("session");
        let seqs = loaded.load(&path, &mut self.memory.memory(&Serial)?).map_err(text)?;
        let first = self.rows(&loaded, &seqs)?;
        self.memory.cache.fill(0);
        self.memory.scale.fill(0);
        let mut again = Manager::new(self.memory.spec.clone()).map_err(text)?;
        let seqs = again.load(&path, &mut self.memory.memory(&Serial)?).map_err(text)?;
        if self.rows(&again, &seqs)? != first || first.len() != MAX_T / 2 * self.memory.spec.bytes_per_token() {
            return Err("other rows are loaded than before".into());
        }
        again.save(&path, &self.memory.memory(&Serial)?).map_err(text)?;
        if fs::read(&path).map_err(text)? != self.session {
            return Err("what is loaded and saved again is another file".into());
        }
        let hash = self.write_and_hash().map_err(text)?;
        if self.read_and_hash().map_err(text)? != hash || fs::read(self.path("copy")).map_err(text)? != self.session {
            return Err("the bytes that are written are not those that are read".into());
        }
        Ok(())
    }

    fn measure(&mut self, contender: &str) -> Result<Meter, String> {
        let mut meter = Meter::default();
        match contender {
            "save" => meter.run(1, || self.save())?,
            "write and hash" => {
                meter.run(1, || self.write_and_hash()).map_err(text)?;
            }
            "load" => {
                let mut manager = Manager::new(self.memory.spec.clone()).map_err(text)?;
                meter.run(1, || self.load(&mut manager))?;
            }
            "read and hash" => {
                meter.run(1, || self.read_and_hash()).map_err(text)?;
            }
            _ => return case::unknown(contender),
        }
        Ok(meter)
    }
}

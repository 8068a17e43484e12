//! Pages as blocks in a store, beside what moves the same bytes without one.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvcache_manager::{Block, BlockKey, BlockKind, BlockStore};
use kvcache_tiers::{FileTier, ObjectTier};
use pyo3::prelude::*;

use crate::refused;
use crate::team::{Clocks, Sample};

/// No call to a store is cut short.
const NEVER: Duration = Duration::from_secs(60);
/// Bytes of a row.
const ROW_LEN: usize = 4096;

/// Pages of random bytes, and a store, which has all their blocks or none when a measurement begins.
#[pyclass(frozen)]
pub(crate) struct Blocks {
    store: Arc<dyn BlockStore>,
    folder: PathBuf,
    keys: Vec<BlockKey>,
    blocks: Vec<Block>,
    /// The bytes of each.
    bytes: Vec<Vec<u8>>,
}

#[pymethods]
impl Blocks {
    /// `count` pages of `rows` rows, for a store of a kind: `files`, in a folder, or the address of an object store, with
    /// its options. The folder is also that of files without a store.
    #[new]
    fn new(kind: &str, options: Vec<(String, String)>, folder: PathBuf, count: u8, rows: usize) -> PyResult<Self> {
        let capacity = 2 * u64::from(count) * ((rows * ROW_LEN) as u64 + 4096);
        let store: Arc<dyn BlockStore> = match kind {
            "files" => Arc::new(FileTier::open(folder.join("blocks"), capacity)?),
            url => Arc::new(ObjectTier::open(url, options).map_err(refused)?.timeout(NEVER)),
        };
        let keys: Vec<_> = (0..count).map(|i| BlockKey::from_bytes([i; 32])).collect();
        let mut state = 1u32;
        let mut byte = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let mut block = |key| {
            let rows: Vec<u8> = (0..rows * ROW_LEN).map(|_| byte()).collect();
            Block::new(BlockKind::Prefix, key, rows.into(), ROW_LEN).map_err(refused)
        };
        let blocks: Vec<Block> = keys.iter().map(&mut block).collect::<PyResult<_>>()?;
        let bytes = blocks.iter().map(|block| block.parts().concat()).collect();
        Ok(Self { store, folder, keys, blocks, bytes })
    }

    /// Moves all pages in one way, once, and compares what has come out: nanoseconds, and the part of them in which
    /// this thread held a processor.
    fn measure(&self, py: Python<'_>, how: &str) -> PyResult<Sample> {
        py.detach(|| self.run(how))
    }
}

impl Blocks {
    fn run(&self, how: &str) -> PyResult<Sample> {
        let bare = || (0..self.keys.len()).map(|i| self.folder.join(format!("bare-{i}")));
        let write = || Ok::<_, PyErr>(bare().zip(&self.bytes).try_for_each(|(file, bytes)| fs::write(file, bytes))?);
        match how {
            "put" => self.keys.iter().try_for_each(|key| self.store.delete(key)).map_err(refused)?,
            "get" | "chain" => self.put()?,
            "read" => write()?,
            _ => bare().filter(|file| file.exists()).try_for_each(fs::remove_file)?,
        }
        let (mut blocks, mut files) = (Vec::new(), Vec::new());
        let clocks = Clocks::start();
        match how {
            "put" => self.put()?,
            "write" => write()?,
            "get" => {
                for key in &self.keys {
                    blocks.extend(self.store.get(key).map_err(refused)?);
                }
            }
            "chain" => blocks = self.store.get_chain(&self.keys).0,
            "read" => files = bare().map(fs::read).collect::<Result<_, _>>()?,
            _ => return Err(refused(how)),
        }
        let (wall_ns, cpu_ns) = clocks.elapsed();
        let is_right = match how {
            "get" | "chain" => blocks == self.blocks,
            "read" => files == self.bytes,
            _ => true,
        };
        if !is_right {
            return Err(refused("other bytes than were put"));
        }
        Ok((wall_ns as f64, cpu_ns as f64 / wall_ns as f64))
    }

    fn put(&self) -> PyResult<()> {
        let blocks = self.keys.iter().zip(&self.blocks);
        blocks.into_iter().try_for_each(|(key, block)| self.store.put(key, block.clone())).map_err(refused)
    }
}

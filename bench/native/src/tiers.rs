//! Pages as blocks in a store, beside what moves the same bytes without one.

use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvcache_manager::{Block, BlockKey, BlockKind, BlockStore};
use kvcache_tiers::{FileTier, HostTier, ObjectTier, Tiers};
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
    pages: Vec<Vec<u8>>,
    /// The block of each page.
    blocks: Vec<Vec<u8>>,
}

#[pymethods]
impl Blocks {
    /// `count` pages of `rows` rows, for a store of a kind: `host`; `files`, in a folder; or the address of an object
    /// store, with its options. The folder is also that of files without a store.
    #[new]
    fn new(kind: &str, options: Vec<(String, String)>, folder: PathBuf, count: u8, rows: usize) -> PyResult<Self> {
        let capacity = 2 * u64::from(count) * ((rows * ROW_LEN) as u64 + 4096);
        let store: Arc<dyn BlockStore> = match kind {
            "host" => Arc::new(Tiers::new(HostTier::new(capacity), [])?),
            "files" => Arc::new(FileTier::open(folder.join("blocks"), capacity)?),
            url => Arc::new(ObjectTier::open(url, options).map_err(refused)?.timeout(NEVER)),
        };
        let keys: Vec<_> = (0..count).map(|i| BlockKey::from_bytes([i; 32])).collect();
        let mut state = 1u32;
        let mut byte = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let pages: Vec<Vec<u8>> = (0..count).map(|_| (0..rows * ROW_LEN).map(|_| byte()).collect()).collect();
        let blocks =
            keys.iter().zip(&pages).map(|(key, page)| Ok(block(key, page)?.to_vec())).collect::<PyResult<_>>()?;
        Ok(Self { store, folder, keys, pages, blocks })
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
        let write = || Ok::<_, PyErr>(bare().zip(&self.pages).try_for_each(|(file, page)| fs::write(file, page))?);
        let is_block = matches!(how, "get" | "chain");
        let expected = || self.pages.iter().zip(&self.blocks).map(|(page, block)| if is_block { block } else { page });
        match how {
            "put" => self.keys.iter().try_for_each(|key| self.store.delete(key)).map_err(refused)?,
            "get" | "chain" => self.put()?,
            "read" => write()?,
            _ => bare().filter(|file| file.exists()).try_for_each(fs::remove_file)?,
        }
        // Touched, so that no page fault is measured.
        let mut targets: Vec<Vec<u8>> = expected().map(|bytes| vec![1; bytes.len()]).collect();
        let clocks = Clocks::start();
        match how {
            "copy" => targets.iter_mut().zip(&self.pages).for_each(|(to, from)| black_box(to).copy_from_slice(from)),
            "put" => self.put()?,
            "write" => write()?,
            "get" => {
                for (key, to) in self.keys.iter().zip(&mut targets) {
                    give_back(key, self.store.get(key).map_err(refused)?, to)?;
                }
            }
            "chain" => {
                let (blocks, _) = self.store.get_chain(&self.keys);
                let mut blocks = blocks.into_iter();
                for (key, to) in self.keys.iter().zip(&mut targets) {
                    give_back(key, blocks.next(), to)?;
                }
            }
            "read" => {
                for (file, to) in bare().zip(&mut targets) {
                    to.copy_from_slice(&fs::read(file)?);
                }
            }
            _ => return Err(refused(how)),
        }
        let (wall_ns, cpu_ns) = clocks.elapsed();
        let has_given = !matches!(how, "put" | "write");
        if has_given && !targets.iter().eq(expected()) {
            return Err(refused("other bytes than were put"));
        }
        Ok((wall_ns as f64, cpu_ns as f64 / wall_ns as f64))
    }

    /// As when pages are swapped out: their rows are copied into blocks with a checksum.
    fn put(&self) -> PyResult<()> {
        for (key, page) in self.keys.iter().zip(&self.pages) {
            self.store.put(key, block(key, page)?).map_err(refused)?;
        }
        Ok(())
    }
}

fn block(key: &BlockKey, page: &[u8]) -> PyResult<Bytes> {
    Ok(Block::new(BlockKind::Prefix, key, page, ROW_LEN).map_err(refused)?.into_bytes())
}

/// As when pages are swapped in: the block is verified, and copied.
fn give_back(key: &BlockKey, block: Option<Bytes>, to: &mut [u8]) -> PyResult<()> {
    let block = block.ok_or_else(|| refused("a block is lost"))?;
    to.copy_from_slice(&Block::verify(key, block).map_err(refused)?.into_bytes());
    Ok(())
}

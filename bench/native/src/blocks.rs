//! Blocks that are put into files of a tier and got from them, one by one or as a chain.

use std::path::PathBuf;

use kvcache_manager::{Block, BlockKey, BlockKind, BlockStore};
use kvcache_tiers::FileTier;
use pyo3::prelude::*;

use crate::refused;

/// Blocks of rows of 4096 bytes, which a folder's tier has all of or none.
#[pyclass]
pub(crate) struct Blocks {
    store: FileTier,
    keys: Vec<BlockKey>,
    blocks: Vec<Block>,
    got: Vec<Block>,
}

#[pymethods]
impl Blocks {
    /// A block of each of these bytes.
    #[new]
    fn new(folder: PathBuf, contents: Vec<Vec<u8>>) -> PyResult<Self> {
        let capacity = contents.iter().map(|bytes| 2 * bytes.len() as u64 + 8192).sum();
        let keys: Vec<_> = (0..contents.len()).map(|i| BlockKey::from_bytes([i as u8; 32])).collect();
        let block = |(key, bytes): (&BlockKey, Vec<u8>)| Block::new(BlockKind::Prefix, key, bytes.into(), 4096);
        let blocks = keys.iter().zip(contents).map(block).collect::<Result<_, _>>().map_err(refused)?;
        Ok(Self { store: FileTier::open(folder, capacity)?, keys, blocks, got: Vec::new() })
    }

    /// Deletes all files.
    fn delete(&self) -> PyResult<()> {
        self.keys.iter().try_for_each(|key| self.store.delete(key)).map_err(refused)
    }

    /// Puts all blocks.
    fn put(&self) -> PyResult<()> {
        let blocks = self.keys.iter().zip(&self.blocks);
        blocks.into_iter().try_for_each(|(key, block)| self.store.put(key, block.clone())).map_err(refused)
    }

    /// Gets all blocks, one by one.
    fn get(&mut self) -> PyResult<()> {
        let got = self.keys.iter().filter_map(|key| self.store.get(key).transpose());
        self.got = got.collect::<Result<_, _>>().map_err(refused)?;
        Ok(())
    }

    /// Gets all blocks as a chain.
    fn get_chain(&mut self) {
        self.got = self.store.get_chain(&self.keys).0;
    }

    /// Whether the last blocks got equal the blocks put.
    fn is_right(&self) -> bool {
        self.got == self.blocks
    }
}

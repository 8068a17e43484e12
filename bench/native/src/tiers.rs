//! Pages as blocks in a store, and sequences that leave the cache, beside what moves the same bytes without them.

use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvcache_manager::op::Serial;
use kvcache_manager::schema::{Axis, CacheLayout, ElementType};
use kvcache_manager::{
    Append, Block, BlockKey, BlockKind, BlockStore, CacheSpec, Error, Geometry, HostMemory, Manager, Mode, SeqId,
};
use kvcache_tiers::{FileTier, HostTier, Tier, Tiers};
use ndarray::ArrayD;
use pyo3::prelude::*;

use crate::refused;
use crate::team::{Clocks, Sample};

/// No call to a store is cut short.
const NEVER: Duration = Duration::from_secs(60);
/// Bytes of a row.
const ROW_LEN: usize = 4096;

/// Pages of random bytes, and files, which have all their blocks or none when a measurement begins.
#[pyclass(frozen)]
pub(crate) struct Blocks {
    store: FileTier,
    folder: PathBuf,
    keys: Vec<BlockKey>,
    blocks: Vec<Block>,
    /// The bytes of each.
    bytes: Vec<Vec<u8>>,
}

#[pymethods]
impl Blocks {
    /// `count` pages of `rows` rows, in files of a folder, in which there are files without a tier, too.
    #[new]
    fn new(folder: PathBuf, count: u8, rows: usize) -> PyResult<Self> {
        let capacity = 2 * u64::from(count) * ((rows * ROW_LEN) as u64 + 4096);
        let store = FileTier::open(folder.join("blocks"), capacity)?;
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

/// Rows of a page, and of the sequence.
const PAGE_SIZE: usize = 16;
const ROWS: usize = 2048;
/// The name of a block that is no sequence's.
const OTHER: BlockKey = BlockKey::from_bytes([7; 32]);

/// A sequence of 64 MiB, in every other page of its cache, and a host tier; files behind it where a folder is given.
#[pyclass(unsendable)]
pub(crate) struct Swaps {
    manager: Manager,
    seq: SeqId,
    tiers: Arc<Tiers>,
    /// One that leaves a host tier no room for others.
    other_block: Block,
    cache: ArrayD<f32>,
    /// The sequence's rows.
    rows: Vec<f32>,
    copy: Vec<f32>,
}

#[pymethods]
impl Swaps {
    #[new]
    #[pyo3(signature = (cache_layout, folder=None))]
    fn new(cache_layout: i64, folder: Option<PathBuf>) -> PyResult<Self> {
        let geometry = Geometry { num_layer: 4, num_heads: 8, head_dim: 128, max_t: 2 * ROWS };
        let layout = CacheLayout::from_code(cache_layout).ok_or_else(|| refused(cache_layout))?;
        let builder = CacheSpec::builder(geometry).layout(layout).cache_type(ElementType::Float32);
        let spec = builder.mode(Mode::Paged { page_size: PAGE_SIZE }).build().map_err(refused)?;
        let capacity = 2 * (ROWS * spec.bytes_per_token()) as u64;
        let files = folder.map(|folder| Ok::<_, PyErr>(Arc::new(FileTier::open(folder, capacity)?))).transpose()?;
        let far = files.map(|files| Tier::new("files", files).deadline(NEVER).max_queued(capacity));
        let tiers = Arc::new(Tiers::new(HostTier::new(capacity), far)?);
        // With its header and checksum it is as large as the host tier.
        let other_block = Block::new(BlockKind::Prefix, &OTHER, vec![0; capacity as usize - 80].into(), 1);
        let numbers = (0..ROWS * spec.bytes_per_token() / 2).map(|i| (i % 9973) as f32).collect();
        let cache = ArrayD::from_shape_vec(&spec.cache_shape()[..], numbers).map_err(refused)?;
        let mut manager = Manager::with_store(spec, tiers.clone()).map_err(refused)?;
        let (other, seq) = (manager.create(), manager.create());
        let other_block = other_block.map_err(refused)?;
        let mut this = Self { manager, seq, tiers, other_block, cache, rows: Vec::new(), copy: Vec::new() };
        for _ in 0..ROWS / PAGE_SIZE {
            this.with(|manager, memory| {
                let appends = [other, seq].map(|seq| Append::count(seq, PAGE_SIZE));
                manager.begin_step(&appends)?.apply(memory)?.commit();
                Ok(())
            })?;
        }
        this.manager.free(other).map_err(refused)?;
        this.rows = this.rows()?;
        this.copy = vec![1.0; this.rows.len()];
        Ok(this)
    }

    /// The sequence goes out and in, once, its slots filled with other numbers meanwhile, and is compared. What is
    /// named is measured: `out`, `in`, or a `copy` of as many bytes into memory that was written before.
    fn measure(&mut self, how: &str) -> PyResult<Sample> {
        let seq = self.seq;
        let clocks = Clocks::start();
        black_box(&mut self.copy).copy_from_slice(black_box(&self.rows));
        let copy = clocks.elapsed();
        let clocks = Clocks::start();
        self.with(|manager, memory| {
            manager.swap_out(seq)?;
            manager.update(memory)
        })?;
        let out = clocks.elapsed();
        self.cache.fill(-1.0);
        let clocks = Clocks::start();
        self.with(|manager, memory| manager.swap_in(seq, memory).map(drop))?;
        let back = clocks.elapsed();
        if self.rows()? != self.rows || self.copy != self.rows {
            return Err(refused("other rows come back than went out"));
        }
        let (wall_ns, cpu_ns) = match how {
            "copy" => copy,
            "out" => out,
            "in" => back,
            _ => return Err(refused(how)),
        };
        // One thread works: its processor time is what counts.
        Ok((cpu_ns as f64, cpu_ns as f64 / wall_ns as f64))
    }

    /// Nanoseconds that swapping in takes when the blocks are in files, read while a step of `step_ns` nanoseconds runs
    /// if there is one; without files, when they are near.
    #[pyo3(signature = (far, step_ns=None))]
    fn swap_in(&mut self, far: bool, step_ns: Option<u64>) -> PyResult<f64> {
        let seq = self.seq;
        self.with(|manager, memory| {
            manager.swap_out(seq)?;
            manager.update(memory)
        })?;
        if far {
            // Evicts them, and goes.
            self.tiers.put(&OTHER, self.other_block.clone()).map_err(refused)?;
            self.tiers.delete(&OTHER).map_err(refused)?;
            if !self.tiers.flush(NEVER) {
                return Err(refused("the files are not written"));
            }
        }
        self.cache.fill(-1.0);
        if let Some(ns) = step_ns {
            self.manager.prefetch(&[seq]).map_err(refused)?;
            let step = Instant::now();
            while step.elapsed() < Duration::from_nanos(ns) {
                std::hint::spin_loop();
            }
        }
        let begin = Instant::now();
        self.with(|manager, memory| manager.swap_in(seq, memory).map(drop))?;
        let wall_ns = begin.elapsed().as_nanos() as f64;
        if self.rows()? != self.rows { Err(refused("other rows come back than went out")) } else { Ok(wall_ns) }
    }
}

impl Swaps {
    fn with(&mut self, act: impl FnOnce(&mut Manager, &mut HostMemory<'_>) -> Result<(), Error>) -> PyResult<()> {
        let spec = self.manager.spec().clone();
        let mut memory = HostMemory::new(&spec, (&mut self.cache).into(), None, &Serial).map_err(refused)?;
        act(&mut self.manager, &mut memory).map_err(refused)
    }

    /// The sequence's rows, gathered from its slots.
    fn rows(&self) -> PyResult<Vec<f32>> {
        let slots: Vec<usize> = self.manager.slots(self.seq).map_err(refused)?.collect();
        let axis = self.manager.spec().layout().axes().iter().position(|&axis| axis == Axis::Token);
        Ok(self.cache.select(ndarray::Axis(axis.unwrap_or_default()), &slots).iter().copied().collect())
    }
}

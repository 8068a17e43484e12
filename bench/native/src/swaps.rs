//! A sequence that leaves the cache for host memory and comes back, beside a copy of its bytes.

use std::hint::black_box;
use std::sync::Arc;

use kvcache_manager::op::Serial;
use kvcache_manager::schema::{Axis, CacheLayout, ElementType};
use kvcache_manager::{Append, CacheSpec, Error, Geometry, HostMemory, Manager, Mode, SeqId};
use kvcache_tiers::{HostTier, Tiers};
use ndarray::ArrayD;
use pyo3::prelude::*;

use crate::refused;
use crate::team::{Clocks, Sample};

/// Rows of a page, and of the sequence.
const PAGE_SIZE: usize = 16;
const ROWS: usize = 2048;

/// A sequence of 64 MiB, in every other page of its cache.
#[pyclass(unsendable)]
pub(crate) struct Swaps {
    manager: Manager,
    seq: SeqId,
    cache: ArrayD<f32>,
    /// The sequence's rows.
    rows: Vec<f32>,
    copy: Vec<f32>,
}

#[pymethods]
impl Swaps {
    #[new]
    fn new(cache_layout: i64) -> PyResult<Self> {
        let geometry = Geometry { num_layer: 4, num_heads: 8, head_dim: 128, max_t: 2 * ROWS };
        let layout = CacheLayout::from_code(cache_layout).ok_or_else(|| refused(cache_layout))?;
        let builder = CacheSpec::builder(geometry).layout(layout).cache_type(ElementType::Float32);
        let spec = builder.mode(Mode::Paged { page_size: PAGE_SIZE }).build().map_err(refused)?;
        let tiers = Tiers::new(HostTier::new(2 * (ROWS * spec.bytes_per_token()) as u64), [])?;
        let numbers = (0..ROWS * spec.bytes_per_token() / 2).map(|i| (i % 9973) as f32).collect();
        let cache = ArrayD::from_shape_vec(&spec.cache_shape()[..], numbers).map_err(refused)?;
        let mut manager = Manager::with_store(spec, Arc::new(tiers)).map_err(refused)?;
        let (other, seq) = (manager.create(), manager.create());
        let mut this = Self { manager, seq, cache, rows: Vec::new(), copy: Vec::new() };
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
        Ok((wall_ns as f64, cpu_ns as f64 / wall_ns as f64))
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

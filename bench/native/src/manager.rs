//! Steps of sequences that decode, planned by the cache manager without Python in the way.

use std::sync::Arc;

use kvcache_manager::schema::ElementType;
use kvcache_manager::{
    Append, CacheMemory, CacheSpec, Geometry, Manager, MemoryError, Mode, Rope, Rotation, RowCopy, SeqId,
};
use kvcache_tiers::{HostTier, Tiers};
use pyo3::prelude::*;

use crate::refused;
use crate::team::{Clocks, Sample};

/// Rows of a page.
const PAGE_SIZE: usize = 16;
/// Steps that are measured in one go: each sequence takes four pages meanwhile.
const STEPS: usize = 64;

/// A memory without bytes: steps that decode copy nothing.
struct NoBytes;

impl CacheMemory for NoBytes {
    fn copy_rows(&mut self, copies: &[RowCopy]) -> Result<(), MemoryError> {
        copies.is_empty().then_some(()).ok_or_else(|| "there are no rows".into())
    }

    fn rotate_keys(&mut self, _: &[Rotation], _: &Rope) -> Result<(), MemoryError> {
        Err("there are no keys".into())
    }

    fn read_rows(&self, _: &[usize], _: &mut [u8]) -> Result<(), MemoryError> {
        Err("there are no rows".into())
    }

    fn write_rows(&mut self, _: &[usize], _: &[u8]) -> Result<(), MemoryError> {
        Err("there are no rows".into())
    }

    fn write_layer_rows(&mut self, _: usize, _: &[usize], _: &[u8]) -> Result<(), MemoryError> {
        Err("there are no rows".into())
    }
}

/// Sequences of about equal length. After each measurement they are cut back.
#[pyclass(unsendable)]
pub(crate) struct Steps {
    manager: Manager,
    seqs: Vec<SeqId>,
    /// The rows of each sequence when a measurement begins.
    lens: Vec<usize>,
    /// Whether tokens are; then the next one is new, so that no page is as another.
    is_known: bool,
    next: u32,
}

#[pymethods]
impl Steps {
    /// `batch` sequences of `kvlen` rows and up to a page more, so that their pages end in different steps, in a cache
    /// of `max_t` slots. Beside them there are `idle` sequences of a row each, in no step. If `is_tiered` is given
    /// tokens are known, and pages go to a host tier or nowhere.
    #[new]
    #[pyo3(signature = (batch, kvlen, max_t, idle, is_tiered=None))]
    fn new(batch: usize, kvlen: usize, max_t: usize, idle: usize, is_tiered: Option<bool>) -> PyResult<Self> {
        let geometry = Geometry { num_layer: 1, num_heads: 1, head_dim: 2, max_t };
        let builder = CacheSpec::builder(geometry).cache_type(ElementType::Float32);
        let spec = builder.mode(Mode::Paged { page_size: PAGE_SIZE }).max_pages(kvlen / PAGE_SIZE + 6).build();
        let spec = spec.map_err(refused)?;
        let manager = match is_tiered {
            Some(true) => Manager::with_store(spec, Arc::new(Tiers::new(HostTier::new(1 << 30), [])?)),
            _ => Manager::new(spec),
        };
        let mut manager = manager.map_err(refused)?;
        let is_known = is_tiered.is_some();
        let lens: Vec<usize> = (0..batch).map(|i| kvlen + i % PAGE_SIZE).collect();
        let mut seqs = Vec::new();
        for &len in lens.iter().chain(std::iter::repeat_n(&1, idle)) {
            let seq = manager.create();
            let tokens = vec![seqs.len() as u32; if is_known { len } else { 0 }];
            step(&mut manager, &[if is_known { Append::tokens(seq, &tokens) } else { Append::count(seq, len) }])?;
            seqs.push(seq);
        }
        seqs.truncate(batch);
        Ok(Self { manager, seqs, lens, is_known, next: 0 })
    }

    /// A step of one token for each sequence: begin_step, apply and commit, of the sequences in the same order as the
    /// last one or, if `changed`, in another.
    fn measure(&mut self, changed: bool) -> PyResult<Sample> {
        let first = self.next;
        self.next += STEPS as u32 + 1;
        let tokens: Vec<[u32; 1]> = (first..self.next).map(|token| [token]).collect();
        let is_known = self.is_known;
        let append = |seq, token| if is_known { Append::tokens(seq, token) } else { Append::count(seq, 1) };
        let of = |token| self.seqs.iter().map(|&seq| append(seq, token)).collect();
        let mut steps: Vec<Vec<_>> = tokens.iter().map(|token| of(token.as_slice())).collect();
        steps.iter_mut().skip(1).step_by(2).for_each(|step| step.rotate_left(usize::from(changed)));
        step(&mut self.manager, &steps[0])?;
        let clocks = Clocks::start();
        steps[1..].iter().try_for_each(|appends| step(&mut self.manager, appends))?;
        let sample = sample(&clocks);
        self.cut_back()?;
        Ok(sample)
    }

    /// A copy of such a step's tensors, whose pages are first compared with the slots of each sequence.
    fn memcpy(&mut self) -> PyResult<Sample> {
        let appends: Vec<_> = self.seqs.iter().map(|&seq| Append::count(seq, 1)).collect();
        let step = self.manager.begin_step(&appends).and_then(|plan| plan.apply(&mut NoBytes)).map_err(refused)?;
        let pages: Vec<i64> = step.cachestarts().iter().copied().collect();
        let max_pages = pages.len() / self.seqs.len();
        let own = [step.seqstarts(), step.kvstarts(), step.start_pos(), step.token_ids(), step.positions()].concat();
        step.commit();
        for (&seq, row) in self.seqs.iter().zip(pages.chunks(max_pages)) {
            let mut slots = self.manager.slots(seq).map_err(refused)?.enumerate();
            if !slots.all(|(t, slot)| row[t / PAGE_SIZE] as usize + t % PAGE_SIZE == slot) {
                return Err(refused("the tensors of a step are not those of its sequences' slots"));
            }
        }
        self.cut_back()?;
        let (tensors, mut copied) = ([pages, own].concat(), Vec::new());
        copied.resize(tensors.len(), 0);
        let clocks = Clocks::start();
        for _ in 0..STEPS {
            std::hint::black_box(&mut copied).copy_from_slice(std::hint::black_box(&tensors));
        }
        Ok(sample(&clocks))
    }
}

impl Steps {
    fn cut_back(&mut self) -> PyResult<()> {
        for (&seq, &len) in self.seqs.iter().zip(&self.lens) {
            self.manager.seq_rm(seq, len as i64..).map_err(refused)?;
        }
        self.manager.check().map_err(refused)
    }
}

fn step(manager: &mut Manager, appends: &[Append<'_>]) -> PyResult<()> {
    manager.begin_step(appends).and_then(|planned| planned.apply(&mut NoBytes)).map_err(refused)?.commit();
    Ok(())
}

/// The thread's time of one of [`STEPS`].
fn sample(clocks: &Clocks) -> Sample {
    let (wall_ns, cpu_ns) = clocks.elapsed();
    (cpu_ns as f64 / STEPS as f64, cpu_ns as f64 / wall_ns as f64)
}

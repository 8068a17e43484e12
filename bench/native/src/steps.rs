//! Steps of sequences that decode, planned by the cache manager without Python in the way.

use std::hint::black_box;
use std::sync::Arc;

use kvcache_manager::op::Serial;
use kvcache_manager::schema::ElementType;
use kvcache_manager::{Append, CacheSettings, Geometry, HostMemory, Manager, Mode, SeqId};
use kvcache_tiers::{HostTier, Tiers};
use ndarray::ArrayD;
use pyo3::prelude::*;

use crate::refused;

/// Rows of a page.
const PAGE_SIZE: usize = 16;

/// Sequences of about equal length, which are cut back before each measurement.
#[pyclass(unsendable)]
pub(crate) struct Steps {
    manager: Manager,
    cache: ArrayD<f32>,
    seqs: Vec<SeqId>,
    /// The rows of each sequence when a measurement begins.
    lens: Vec<usize>,
    /// Whether the manager is given tokens: each is then new, so that no page equals another.
    has_tokens: bool,
    next: u32,
    /// What each step appends: a sequence, and its token.
    planned: Vec<Vec<(SeqId, [u32; 1])>>,
    /// A step's tensors, and where they are copied.
    copied: [Vec<i64>; 2],
}

#[pymethods]
impl Steps {
    /// The steps of one measurement: each sequence takes four pages meanwhile.
    #[classattr]
    const STEPS: usize = 64;

    /// `batch` sequences of `kvlen` rows and up to a page more, so that their pages end in different steps, in a cache
    /// of `max_t` slots. Beside them there are `idle` sequences of a row each, in no step. If `has_tiers` is given
    /// tokens are known, and pages go to a host tier or nowhere.
    #[new]
    #[pyo3(signature = (batch, kvlen, max_t, idle=0, has_tiers=None))]
    fn new(batch: usize, kvlen: usize, max_t: usize, idle: usize, has_tiers: Option<bool>) -> PyResult<Self> {
        let geometry = Geometry { num_layer: 1, num_heads: 1, head_dim: 2, max_t };
        let (cache_type, mode) = (ElementType::Float32, Mode::Paged { page_size: PAGE_SIZE });
        let max_pages = Some(kvlen / PAGE_SIZE + 6);
        let spec = CacheSettings { geometry, cache_type, mode, max_pages, ..CacheSettings::default() }.check();
        let spec = spec.map_err(refused)?;
        let manager = match has_tiers {
            Some(true) => Manager::with_store(spec, Arc::new(Tiers::new(HostTier::new(1 << 30), [])?)),
            _ => Manager::new(spec),
        };
        let manager = manager.map_err(refused)?;
        let cache = ArrayD::zeros(&manager.spec().cache_shape()[..]);
        let (has_tokens, copied) = (has_tiers.is_some(), [Vec::new(), Vec::new()]);
        let lens: Vec<usize> = (0..batch).map(|i| kvlen + i % PAGE_SIZE).collect();
        let mut this =
            Self { manager, cache, seqs: Vec::new(), lens, has_tokens, next: 0, planned: Vec::new(), copied };
        for len in [this.lens.clone(), vec![1; idle]].concat() {
            let seq = this.manager.create();
            let tokens = vec![this.seqs.len() as u32; if has_tokens { len } else { 0 }];
            this.step(&[if has_tokens { Append::tokens(seq, &tokens) } else { Append::count(seq, len) }])?;
            this.seqs.push(seq);
        }
        this.seqs.truncate(batch);
        Ok(this)
    }

    /// Cuts the sequences back and plans steps of one token for each, in the order of the last step or, if `changed`,
    /// in another.
    fn prepare(&mut self, changed: bool) -> PyResult<()> {
        for (&seq, &len) in self.seqs.iter().zip(&self.lens) {
            self.manager.seq_rm(seq, len as i64..).map_err(refused)?;
        }
        self.manager.check().map_err(refused)?;
        let first = self.next;
        self.next += Self::STEPS as u32 + 1;
        let batch = |token| self.seqs.iter().map(|&seq| (seq, [token])).collect();
        self.planned = (first..self.next).map(batch).collect();
        self.planned.iter_mut().skip(1).step_by(2).for_each(|step| step.rotate_left(usize::from(changed)));
        let warm_up = self.planned.remove(0);
        self.append(&warm_up)
    }

    /// The planned steps: begin_step, apply and commit of each.
    fn run(&mut self) -> PyResult<()> {
        std::mem::take(&mut self.planned).iter().try_for_each(|step| self.append(step))
    }

    /// Makes a step whose pages are compared with the slots of each sequence, and keeps its tensors for `copy`.
    fn prepare_copy(&mut self) -> PyResult<()> {
        self.prepare(false)?;
        let appends: Vec<_> = self.seqs.iter().map(|&seq| Append::count(seq, 1)).collect();
        let mut memory = memory(&self.manager, &mut self.cache)?;
        let step = self.manager.begin_step(&appends).and_then(|plan| plan.apply(&mut memory)).map_err(refused)?;
        let pages: Vec<i64> = step.cachestarts().iter().copied().collect();
        let own = [step.seqstarts(), step.kvstarts(), step.start_pos(), step.token_ids(), step.positions()].concat();
        step.commit();
        for (&seq, row) in self.seqs.iter().zip(pages.chunks(pages.len() / self.seqs.len())) {
            let mut slots = self.manager.slots(seq).map_err(refused)?.enumerate();
            if !slots.all(|(t, slot)| row[t / PAGE_SIZE] as usize + t % PAGE_SIZE == slot) {
                return Err(refused("the tensors of a step do not name its sequences' slots"));
            }
        }
        let tensors = [pages, own].concat();
        self.copied = [tensors.clone(), tensors];
        Ok(())
    }

    /// Copies the tensors of a step, as often as `run` makes steps.
    fn copy(&mut self) {
        let [from, to] = &mut self.copied;
        (0..Self::STEPS).for_each(|_| black_box(&mut *to).copy_from_slice(black_box(from)));
    }
}

impl Steps {
    /// Makes a step that appends a token to each of these sequences.
    fn append(&mut self, batch: &[(SeqId, [u32; 1])]) -> PyResult<()> {
        let has_tokens = self.has_tokens;
        let append = |seq, token| if has_tokens { Append::tokens(seq, token) } else { Append::count(seq, 1) };
        let appends: Vec<_> = batch.iter().map(|(seq, token)| append(*seq, token.as_slice())).collect();
        self.step(&appends)
    }

    fn step(&mut self, appends: &[Append<'_>]) -> PyResult<()> {
        let mut memory = memory(&self.manager, &mut self.cache)?;
        self.manager.begin_step(appends).and_then(|plan| plan.apply(&mut memory)).map_err(refused)?.commit();
        Ok(())
    }
}

fn memory<'a>(manager: &Manager, cache: &'a mut ArrayD<f32>) -> PyResult<HostMemory<'a>> {
    HostMemory::new(manager.spec(), cache.into(), None, &Serial).map_err(refused)
}

//! `InfLlm`: attention over the first tokens, the last tokens, and blocks that queries select.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kvcache_manager as core;
use kvcache_manager::{BlockScore, CacheSettings, Eviction, FarPositions, InfLlmConfig, Mode};
use numpy::ndarray::Dimension;
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray, PyReadonlyArray2, PyReadonlyArray3};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::append::counts_of;
use crate::arguments::{Number, ShiftLimit, choice, type_error};
use crate::buffers::Pool;
use crate::id::Id;
use crate::infllm_step::InfLlmStep;
use crate::memory::HostMemory;
use crate::refusal::{Refusal, Result};
use crate::rope::Rope;
use crate::shared_manager::{InfLlmParts, SharedInfLlm};
use crate::spec;
use crate::tiers::tiers_of;

/// Attention over the first tokens of a sequence, its last ones, and a few blocks in between, which queries select
/// (InfLLM, Quest; without blocks StreamingLLM). What a sequence has in the cache does not grow with it: the rows of
/// blocks are kept in tiers, and selected ones are loaded. It owns all slots of a cache with
/// `cache_mode` 1.
///
/// init, local: the first and the last tokens, which attention always sees. block: the tokens of a block. These three
/// are multiples of the page size. topk: the blocks that attention sees.
/// score: what queries are compared with, as mean over heads: "representatives", the mean key of the `repr_topk` tokens
/// that got the most attention while they were local (4 if None, or all of a shorter block); "page_bounds", the largest
/// product that a key within the block's bounds can have (Quest); "none" keeps no blocks (topk is 0 then). alpha: how
/// much of a block's score is new; the rest is its score before.
/// max_cached: the blocks of a sequence that stay in the cache, at most; topk if None. eviction: of those that are not
/// wanted the least recently wanted goes ("lru"), or the one with the least attention mass, which is multiplied by
/// `decay` in every step ("decayed").
/// positions: "true_distance"; "far_constant", far keys are local - 1 in front of the first new token, in a cache of
/// key_form "raw"; "far_fixed", blocks are rotated once to the positions after the first tokens, and the others stay
/// below `n_ctx`, moved back in time (K-shift), by `rope`.
/// per_layer: each layer selects for itself; else all see the same blocks, by the mean score of the layers that
/// selected.
/// num_repeat: heads of queries for each head of the cache.
/// key_form, rope, max_pages, shift_limit: as `Manager` has them.
/// tiers: where blocks are kept, as for `Manager`; by default in this process' memory, as much as they need.
///
/// A step: `begin_step` loads blocks, the model runs, `observe` takes the attention mass of every layer (for
/// "representatives" and "decayed" alone), the step is committed, which forms blocks, and `select` takes the queries of
/// the layers. So a selection lags one step behind. It holds until the next one.
///
/// Raises ManagerError: spec_range, spec_name, not_paged, multiple, fraction, rotated_keys, static_scales,
/// not_shiftable, out_of_memory.
#[pyclass(frozen, module = "kvcache_ops.manager")]
#[derive(Debug)]
pub struct InfLlm {
    spec: Py<PyAny>,
    shared: Arc<SharedInfLlm>,
}

/// An array of float32.
fn floats<'py, D: Dimension>(name: &str, array: &Bound<'py, PyAny>) -> PyResult<PyReadonlyArray<'py, f32, D>> {
    let expected = || format!("a numpy array of float32 with {} axes", D::NDIM.unwrap_or_default());
    array.extract().map_err(|_| type_error(name, &expected(), array))
}

#[pymethods]
impl InfLlm {
    #[new]
    #[pyo3(
        signature = (
            spec, *, init, local, block, topk, repr_topk=None, max_cached=None, alpha=1.0, score="representatives",
            positions="true_distance", n_ctx=None, eviction="lru", decay=0.1, per_layer=false,
            num_repeat=Number::from(1), key_form="roped", rope=None, max_pages=None,
            shift_limit=ShiftLimit::default(), tiers=None
        ),
        text_signature = "(spec, *, init, local, block, topk, repr_topk=None, max_cached=None, alpha=1.0, \
            score='representatives', positions='true_distance', n_ctx=None, eviction='lru', decay=0.1, \
            per_layer=False, num_repeat=1, key_form='roped', rope=None, max_pages=None, shift_limit='default', \
            tiers=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "by keyword alone")]
    fn new(
        spec: Bound<'_, PyAny>,
        init: Number,
        local: Number,
        block: Number,
        topk: Number,
        repr_topk: Option<Number>,
        max_cached: Option<Number>,
        alpha: f32,
        score: &str,
        positions: &str,
        n_ctx: Option<Number>,
        eviction: &str,
        decay: f32,
        per_layer: bool,
        num_repeat: Number,
        key_form: &str,
        rope: Option<&Bound<'_, Rope>>,
        max_pages: Option<Number>,
        shift_limit: ShiftLimit,
        tiers: Option<&Bound<'_, PyAny>>,
    ) -> Result<Self> {
        let scores = [
            ("representatives", BlockScore::Representatives),
            ("page_bounds", BlockScore::PageBounds),
            ("none", BlockScore::None),
        ];
        // Without it no position is legal.
        let n_ctx = n_ctx.map_or(Ok(0), |n_ctx| n_ctx.size("n_ctx"))?;
        let all_positions = [
            ("true_distance", FarPositions::TrueDistance),
            ("far_constant", FarPositions::FarConstant),
            ("far_fixed", FarPositions::FarFixed { n_ctx }),
        ];
        let evictions = [("lru", Eviction::Lru), ("decayed", Eviction::Decayed { decay })];
        let topk = topk.size("topk")?;
        let default = InfLlmConfig::new(init.size("init")?, local.size("local")?, block.size("block")?, topk);
        let config = InfLlmConfig {
            repr_topk: repr_topk.map_or(Ok(default.repr_topk), |topk| topk.size("repr_topk"))?,
            max_cached: max_cached.map_or(Ok(topk), |cached| cached.size("max_cached"))?,
            alpha,
            score: choice("score", score, &scores)?,
            positions: choice("positions", positions, &all_positions)?,
            eviction: choice("eviction", eviction, &evictions)?,
            per_layer,
            num_repeat: num_repeat.size("num_repeat")?,
            ..default
        };
        let paged = spec.getattr("cache_mode")?.extract::<i64>()? == 1;
        let mode = if paged { spec::mode(&spec, None)? } else { Mode::Runs };
        let settings = spec::settings(&spec)?;
        let settings = CacheSettings {
            mode,
            max_pages: max_pages.map(|pages| pages.size("max_pages")).transpose()?,
            key_form: spec::key_form(key_form)?,
            rope: rope.map(|rope| rope.get().0.clone()),
            shift_limit: shift_limit.0,
            ..settings
        };
        let cache = settings.check()?;
        let tiers = tiers_of(tiers)?;
        let store: Arc<dyn core::BlockStore> = tiers.get().expect("tiers_of gives some").clone();
        let infllm = core::InfLlm::new(cache, config, store);
        let parts = InfLlmParts { tiers, loads: AtomicUsize::new(0), indices: Pool::default() };
        let shared = SharedInfLlm::new(infllm?, parts);
        Ok(Self { spec: spec.unbind(), shared: Arc::new(shared) })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.spec)?;
        // A step that Python has needs the tiers, too.
        if Arc::strong_count(&self.shared) == 1 { self.shared.parts.tiers.traverse(&visit) } else { Ok(()) }
    }

    fn __clear__(&self) {
        if Arc::strong_count(&self.shared) == 1 {
            self.shared.parts.tiers.clear();
        }
    }

    /// The cache whose slots it owns.
    #[getter]
    fn spec(&self, py: Python<'_>) -> Py<PyAny> {
        self.spec.clone_ref(py)
    }

    /// A sequence without tokens; its id: `s`, from a `Manager`, or one that no sequence here has.
    ///
    /// Raises ManagerError: known_seq, step_open.
    #[pyo3(signature = (s=None))]
    fn create(&self, py: Python<'_>, s: Option<Id>) -> Result<u64> {
        self.with(py, |infllm| Ok(Id(infllm.create(s.map(|s| s.0))?).number()))
    }

    /// A sequence with all that `s` has; its id: `to`, or a new one. No bytes move.
    ///
    /// Raises ManagerError: unknown_seq, lost, known_seq, step_open.
    #[pyo3(signature = (s, to=None))]
    fn fork(&self, py: Python<'_>, s: Id, to: Option<Id>) -> Result<u64> {
        self.with(py, |infllm| Ok(Id(infllm.fork(s.0, to.map(|to| to.0))?).number()))
    }

    /// Removes a sequence, and the blocks that no other one has.
    ///
    /// Raises ManagerError: unknown_seq, step_open.
    fn free(&self, py: Python<'_>, s: Id) -> Result<()> {
        self.with(py, |infllm| infllm.free(s.0))
    }

    /// Opens a step that appends `n` tokens to each sequence of `appends`, a dict {s: n}: all of them or none. Loads
    /// the blocks that they see and that are not in the cache.
    ///
    /// Raises ManagerError: unknown_seq, lost, empty_append, position_overflow, too_many_pages, shift_limit,
    /// not_selected, block_lost, memory, step_open; CapacityError: out_of_pages.
    fn begin_step(
        &self,
        py: Python<'_>,
        appends: &Bound<'_, PyDict>,
        memory: &Bound<'_, HostMemory>,
    ) -> Result<InfLlmStep> {
        let appends = counts_of(appends)?;
        let kept = memory.clone().unbind();
        self.shared.with_memory(py, memory, |infllm, memory| {
            let step = infllm.begin_step(&appends, memory)?;
            self.shared.parts.loads.store(step.loads(), Ordering::Relaxed);
            let opened = InfLlmStep::new(&self.shared, kept, &step)?;
            step.detach();
            Ok::<_, Refusal>(opened)
        })
    }

    /// Takes the attention mass of a layer in the open step: float32 of shape (heads of queries, kvstarts[B]), for each
    /// key the sum of the softmax's probabilities over the queries of its own entry.
    ///
    /// Raises ManagerError: layer, shape, mass (NaN, infinite or negative), observed_twice; step_closed, if no step is
    /// open.
    fn observe(&self, py: Python<'_>, layer: Number, scores: &Bound<'_, PyAny>) -> Result<()> {
        let layer = layer.count("layer")?;
        let scores: PyReadonlyArray2<'_, f32> = floats("scores", scores)?;
        self.shared.with(py, |infllm| {
            let mut step = infllm.open_step().ok_or_else(Refusal::step_closed)?;
            let observed = step.observe(layer, scores.as_array());
            step.detach();
            Ok(observed?)
        })
    }

    /// Takes the queries of a layer in the last step: float32 of shape (its tokens, heads of queries, head_dim), as
    /// attention multiplies them with the keys of blocks. The next step sees the blocks that fit them best.
    ///
    /// Raises ManagerError: layer, shape, selected_twice, step_open.
    fn select(&self, py: Python<'_>, layer: Number, queries: &Bound<'_, PyAny>) -> Result<()> {
        let layer = layer.count("layer")?;
        let queries: PyReadonlyArray3<'_, f32> = floats("queries", queries)?;
        let queries = queries.as_array();
        self.with(py, |infllm| py.detach(|| infllm.select(layer, queries)))
    }

    /// The blocks that the next step of a sequence sees in a layer, int64 in ascending order.
    ///
    /// Raises ManagerError: unknown_seq, lost, layer, not_selected.
    #[pyo3(signature = (s, layer=Number::from(0)), text_signature = "($self, s, layer=0)")]
    fn blocks<'py>(&self, py: Python<'py>, s: Id, layer: Number) -> Result<Bound<'py, PyArray1<i64>>> {
        let layer = layer.count("layer")?;
        let blocks = self.with(py, |infllm| infllm.blocks(s.0, layer))?;
        Ok(blocks.into_iter().map(i64::from).collect::<Vec<_>>().into_pyarray(py))
    }

    /// The parts of a sequence: its first tokens, its blocks, and the tokens after these.
    ///
    /// Raises ManagerError: unknown_seq.
    fn partition(&self, py: Python<'_>, s: Id) -> Result<(usize, usize, usize)> {
        let parts = self.with(py, |infllm| infllm.partition(s.0))?;
        Ok((parts.init, parts.blocks, parts.rest))
    }

    /// The tokens of a sequence.
    ///
    /// Raises ManagerError: unknown_seq.
    fn seq_len(&self, py: Python<'_>, s: Id) -> Result<usize> {
        self.with(py, |infllm| infllm.seq_len(s.0))
    }

    /// The pages of the cache that a sequence has.
    ///
    /// Raises ManagerError: unknown_seq.
    fn num_pages(&self, py: Python<'_>, s: Id) -> Result<usize> {
        self.with(py, |infllm| infllm.num_pages(s.0))
    }

    /// The pages that a sequence has at most, when no step gives it more than `n` tokens.
    ///
    /// Raises ManagerError: spec_range.
    fn max_pages(&self, py: Python<'_>, n: Number) -> Result<usize> {
        let n = n.count("n")?;
        self.with(py, |infllm| infllm.config().max_pages(infllm.spec().page_size(), n))
    }

    /// Saves a sequence with all of its blocks, to be loaded by `load_seq`. The file is replaced once it is whole on
    /// disk.
    ///
    /// Raises ManagerError: unknown_seq, lost, block_lost, memory, step_open, io.
    fn save_seq(&self, py: Python<'_>, path: PathBuf, memory: &Bound<'_, HostMemory>, s: Id) -> Result<()> {
        self.shared.with_memory(py, memory, |infllm, memory| infllm.save_seq(&path, memory, s.0))
    }

    /// Adds the sequence of a file, saved with the same configuration of blocks, in the same types; its id: `s`, or a
    /// new one. A selection of another topk is forgotten.
    ///
    /// Raises ManagerError: known_seq, too_many_pages, memory, store, step_open, and what is wrong with the file: io,
    /// digest, metadata, ...; CapacityError: out_of_pages.
    #[pyo3(signature = (path, memory, s=None))]
    fn load_seq(&self, py: Python<'_>, path: PathBuf, memory: &Bound<'_, HostMemory>, s: Option<Id>) -> Result<u64> {
        let load = |infllm: &mut core::InfLlm, memory: &mut core::HostMemory<'_>| {
            infllm.load_seq(&path, memory, s.map(|s| s.0))
        };
        Ok(Id(self.shared.with_memory(py, memory, load)?).number())
    }

    /// The blocks that were loaded for the last step: those that it sees and that were not in the cache.
    #[getter]
    fn loads(&self) -> usize {
        self.shared.parts.loads.load(Ordering::Relaxed)
    }

    /// Verifies the invariants.
    ///
    /// Raises ManagerError: broken.
    fn check(&self, py: Python<'_>) -> Result<()> {
        self.with(py, |infllm| infllm.check())
    }
}

impl InfLlm {
    fn with<R>(&self, py: Python<'_>, used: impl FnOnce(&mut core::InfLlm) -> Result<R, core::Error>) -> Result<R> {
        self.shared.with(py, |infllm| Ok(used(infllm)?))
    }
}

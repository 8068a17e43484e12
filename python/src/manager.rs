//! `Manager`: sequences come and go, steps append to them.

use std::sync::Arc;

use kvcache_manager as core;
use kvcache_manager::{CacheSettings, ContextShift, Create, RowCopy};
use numpy::{IntoPyArray, PyArray1};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::append::{Append, appends_of};
use crate::arguments::{Number, ShiftLimit, positions};
use crate::id::Id;
use crate::memory::HostMemory;
use crate::refusal::Result;
use crate::rope::Rope;
use crate::shared_manager::{Parts, Pools, SharedManager};
use crate::spec;
use crate::step::Step;
use crate::tiers::tiers_of;

/// Decides which slots of the cache of a `CacheSpec` hold which tokens of which sequence. It has metadata only.
///
/// mode: "paged" (pages of the spec's page_size, shared and copied on write) with cache_mode 1; with 0 "runs"
/// (neighboring slots, the default) or "cells" (slots anywhere; attention sees all of them, under a mask). max_pages
/// fixes the columns of `cachestarts` in "paged"; the number of cells of a step is rounded up to a multiple of `pad`.
/// key_form: "roped" (keys are stored after rotary embedding, and rotated when positions change; `rope` says how) or
/// "raw" (the graph rotates them by `key_positions`). window: attention sees the last `window` positions, and the first
/// `sink` rows; `slack` more positions are kept. keep_rows, in "paged": of rows that the window has passed only the
/// pages go; the rows stay in `start_pos`, with the cache's first page, which nothing is written to, in `cachestarts`.
/// Attention has a window of its own then. defrag_threshold: the part of free slots past which a commit queues a
/// defragmentation; None or below 0: never. shift_limit: how many updates may rotate a sequence's rows: a number, None
/// (any), "default" (int4: 4, else any). prefix_sharing: whether sequences of the same tokens share pages. fingerprint:
/// names the model and its adapters, which decide the keys and values of tokens. computed_by: names what decides their
/// bits (instruction set, versions): prefixes in tiers are found where it is equal; sessions need not agree in it.
/// tiers: where rows go when the cache is full, the nearest first: a HostTier, then FileTier, ObjectTier, RedisTier, or
/// objects with get(key) -> bytes | None, put(key, block), contains(key) -> bool and delete(key), whose keys are texts
/// of 64 hexadecimal digits. What a tier fails to give, or not in time, is computed again. Managers of one model share
/// tiers: give a fingerprint of it.
///
/// Sequences are named by ints. A refused call changes nothing; while a step is open, every change is refused
/// (step_open). Threads may share a manager: calls wait for each other, without the GIL while bytes are moved.
///
/// Raises ManagerError for what is out of range or does not go together, or needs too much memory (out_of_memory).
#[pyclass(frozen, module = "kvcache_ops.manager")]
#[derive(Debug)]
pub struct Manager {
    spec: Py<PyAny>,
    pub(crate) shared: Arc<SharedManager>,
}

impl Manager {
    pub(crate) fn with<R>(
        &self,
        py: Python<'_>,
        used: impl FnOnce(&mut core::Manager) -> Result<R, core::Error>,
    ) -> Result<R> {
        self.shared.with(py, |manager| Ok(used(manager)?))
    }

    /// Numbers of the rows of a sequence.
    fn by_row<'py>(
        &self,
        py: Python<'py>,
        used: impl FnOnce(&mut core::Manager) -> Result<Vec<i64>, core::Error>,
    ) -> Result<Bound<'py, PyArray1<i64>>> {
        Ok(self.with(py, used)?.into_pyarray(py))
    }
}

#[pymethods]
impl Manager {
    #[new]
    #[pyo3(
        signature = (
            spec, *, mode=None, max_pages=None, key_form="roped", rope=None, window=None, sink=Number::from(0),
            slack=Number::from(0), keep_rows=false, pad=Number::from(32), defrag_threshold=None,
            shift_limit=ShiftLimit::default(), prefix_sharing=true, fingerprint="", computed_by="", tiers=None
        ),
        text_signature = "(spec, *, mode=None, max_pages=None, key_form='roped', rope=None, window=None, sink=0, \
            slack=0, keep_rows=False, pad=32, defrag_threshold=None, shift_limit='default', prefix_sharing=True, \
            fingerprint='', computed_by='', tiers=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "by keyword alone")]
    fn new(
        spec: Bound<'_, PyAny>,
        mode: Option<&str>,
        max_pages: Option<Number>,
        key_form: &str,
        rope: Option<&Bound<'_, Rope>>,
        window: Option<Number>,
        sink: Number,
        slack: Number,
        keep_rows: bool,
        pad: Number,
        defrag_threshold: Option<f64>,
        shift_limit: ShiftLimit,
        prefix_sharing: bool,
        fingerprint: &str,
        computed_by: &str,
        tiers: Option<&Bound<'_, PyAny>>,
    ) -> Result<Self> {
        let settings = spec::settings(&spec)?;
        let settings = CacheSettings {
            mode: spec::mode(&spec, mode)?,
            max_pages: max_pages.map(|pages| pages.size("max_pages")).transpose()?,
            prefix_sharing,
            fingerprint: fingerprint.to_owned(),
            computed_by: computed_by.to_owned(),
            key_form: spec::key_form(key_form)?,
            rope: rope.map(|rope| rope.get().0.clone()),
            window: window.map(|window| window.size("window")).transpose()?,
            sink: sink.size("sink")?,
            slack: slack.size("slack")?,
            keep_rows,
            pad: pad.size("pad")?,
            defrag_threshold,
            shift_limit: shift_limit.0,
            ..settings
        };
        let core_spec = settings.check()?;
        let tiers = tiers.map(|tiers| tiers_of(Some(tiers))).transpose()?.unwrap_or_default();
        let manager = match tiers.get() {
            None => core::Manager::new(core_spec),
            Some(tiers) => core::Manager::with_store(core_spec, Arc::clone(tiers) as Arc<dyn core::BlockStore>),
        };
        let shared = SharedManager::new(manager?, Parts { pools: Pools::default(), tiers });
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

    /// The cache that it manages.
    #[getter]
    fn spec(&self, py: Python<'_>) -> Py<PyAny> {
        self.spec.clone_ref(py)
    }

    /// A new, empty sequence; its id. In mode "runs" its first rows take at least `reserve` slots. Sequences share
    /// prefixes only with others of the same `salt`.
    ///
    /// Raises ManagerError: step_open.
    #[pyo3(
        signature = (reserve=Number::from(0), salt=Default::default()), text_signature = "($self, reserve=0, salt=b'')"
    )]
    fn create(&self, py: Python<'_>, reserve: Number, salt: &[u8]) -> Result<u64> {
        let reserve = reserve.count("reserve")?;
        self.with(py, |manager| {
            if let Some(step) = manager.open_step() {
                step.detach();
                return Err(core::Error::StepOpen);
            }
            Ok(Id(manager.create_with(&Create { reserve, salt })).number())
        })
    }

    /// Removes a sequence, whose id is never given again. Full pages of known tokens stay cached.
    ///
    /// Raises ManagerError: unknown_seq, step_open.
    fn free(&self, py: Python<'_>, s: Id) -> Result<()> {
        self.with(py, |manager| py.detach(|| manager.free(s.0)))
    }

    /// A new sequence with the rows of `s`, shared until one of the two changes them, in mode "runs" copied; its id.
    ///
    /// Raises ManagerError: unknown_seq, step_open, lost; CapacityError: no_slot.
    fn fork(&self, py: Python<'_>, s: Id) -> Result<u64> {
        self.with(py, |manager| Ok(Id(manager.fork(s.0)?).number()))
    }

    /// Removes the rows of `s`, or of all sequences if it is None, at positions [p0, p1); returns how many they were.
    /// The others keep their positions. p0 < 0 is 0, p1 < 0 is after the last position.
    ///
    /// Raises ManagerError: unknown_seq, step_open, lost, window_lost; CapacityError: out_of_pages, no_slot.
    #[pyo3(signature = (s, p0=Number::from(-1), p1=Number::from(-1)), text_signature = "($self, s, p0=-1, p1=-1)")]
    fn seq_rm(&self, py: Python<'_>, s: Option<Id>, p0: Number, p1: Number) -> Result<usize> {
        let positions = positions(p0, p1)?;
        self.with(py, |manager| manager.seq_rm(s.map(|s| s.0), positions))
    }

    /// Copies the rows of `src` at positions [p0, p1), as in `seq_rm`, to the empty sequence `dst`; returns how many.
    ///
    /// Raises ManagerError: not_empty, unknown_seq, step_open, lost; CapacityError: out_of_pages, no_slot.
    #[pyo3(
        signature = (src, dst, p0=Number::from(-1), p1=Number::from(-1)),
        text_signature = "($self, src, dst, p0=-1, p1=-1)"
    )]
    fn seq_cp(&self, py: Python<'_>, src: Id, dst: Id, p0: Number, p1: Number) -> Result<usize> {
        let positions = positions(p0, p1)?;
        self.with(py, |manager| manager.seq_cp(src.0, dst.0, positions))
    }

    /// Empties all other sequences. They stay, without rows.
    ///
    /// Raises ManagerError: unknown_seq, step_open.
    fn seq_keep(&self, py: Python<'_>, s: Id) -> Result<()> {
        self.with(py, |manager| py.detach(|| manager.seq_keep(s.0)))
    }

    /// Adds `delta` to the positions [p0, p1) of `s`, as in `seq_rm`; rows whose position would be below 0 are removed.
    /// Keys that are stored roped are rotated by the next step or `update`.
    ///
    /// Raises ManagerError: position_order, position_overflow, not_shiftable, shift_limit, unknown_seq, step_open,
    /// lost; CapacityError: out_of_pages, no_slot.
    fn seq_add(&self, py: Python<'_>, s: Id, p0: Number, p1: Number, delta: Number) -> Result<()> {
        let (positions, delta) = (positions(p0, p1)?, delta.any("delta")?);
        self.with(py, |manager| manager.seq_add(s.0, positions, delta))
    }

    /// Divides the positions [p0, p1) of `s`, as in `seq_rm`, by `d` and rounds them down. Keys that are stored roped
    /// are rotated by the next step or `update`.
    ///
    /// Raises ManagerError: range (d < 1), and as `seq_add`.
    fn seq_div(&self, py: Python<'_>, s: Id, p0: Number, p1: Number, d: Number) -> Result<()> {
        let (positions, d) = (positions(p0, p1)?, d.any("d")?);
        self.with(py, |manager| manager.seq_div(s.0, positions, d))
    }

    /// The rows of a sequence.
    ///
    /// Raises ManagerError: unknown_seq.
    fn seq_len(&self, py: Python<'_>, s: Id) -> Result<usize> {
        self.with(py, |manager| manager.seq_len(s.0))
    }

    /// The first position of a sequence, or None if it is empty.
    ///
    /// Raises ManagerError: unknown_seq.
    fn pos_min(&self, py: Python<'_>, s: Id) -> Result<Option<i64>> {
        self.with(py, |manager| manager.pos_min(s.0))
    }

    /// The last position of a sequence, or None if it is empty.
    ///
    /// Raises ManagerError: unknown_seq.
    fn pos_max(&self, py: Python<'_>, s: Id) -> Result<Option<i64>> {
        self.with(py, |manager| manager.pos_max(s.0))
    }

    /// Shape (seq_len), int64: the positions of the rows.
    ///
    /// Raises ManagerError: unknown_seq.
    fn positions<'py>(&self, py: Python<'py>, s: Id) -> Result<Bound<'py, PyArray1<i64>>> {
        self.by_row(py, |manager| Ok(manager.positions(s.0)?.collect()))
    }

    /// Shape (seq_len), int64: the slots of the rows, where they are once queued copies are made. Shape (0) while the
    /// sequence is swapped out. With keep_rows, rows that the window has passed have slots of the cache's first page.
    ///
    /// Raises ManagerError: unknown_seq.
    fn slots<'py>(&self, py: Python<'py>, s: Id) -> Result<Bound<'py, PyArray1<i64>>> {
        self.by_row(py, |manager| Ok(manager.slots(s.0)?.map(|slot| slot as i64).collect()))
    }

    /// How many tokens a step would find that appends these alone: in the prefix index, then in tiers, as far as there
    /// are pages for them. What tiers give is kept until a step is committed, and the next step takes it.
    ///
    /// Raises ManagerError: step_open, unknown_seq, lost, swapped.
    fn find_prefix(&self, py: Python<'_>, append: &Bound<'_, Append>) -> Result<usize> {
        let append = append.get().borrow();
        self.with(py, |manager| py.detach(|| manager.find_prefix(&append)))
    }

    /// Shape (seq_len), int64: how far the keys of the rows have still to be rotated, in positions.
    ///
    /// Raises ManagerError: unknown_seq.
    fn pending<'py>(&self, py: Python<'py>, s: Id) -> Result<Bound<'py, PyArray1<i64>>> {
        self.by_row(py, |manager| Ok(manager.pending(s.0)?.collect()))
    }

    /// Makes room for `n_new` tokens in a context of `n_ctx` positions, if there is none: removes `n_discard` positions
    /// after the first `n_keep` and moves the rest down. Returns how many were removed; 0 where there is room. Unless
    /// given, n_discard is half of what is after n_keep.
    ///
    /// Raises ManagerError: no_progress, range, and as `seq_rm` and `seq_add`.
    #[pyo3(
        signature = (s, n_ctx, n_new, n_keep=Number::from(0), n_discard=None),
        text_signature = "($self, s, n_ctx, n_new, n_keep=0, n_discard=None)"
    )]
    fn context_shift(
        &self,
        py: Python<'_>,
        s: Id,
        n_ctx: Number,
        n_new: Number,
        n_keep: Number,
        n_discard: Option<Number>,
    ) -> Result<i64> {
        let shift = ContextShift {
            n_ctx: n_ctx.any("n_ctx")?,
            n_new: n_new.any("n_new")?,
            n_keep: n_keep.any("n_keep")?,
            n_discard: n_discard.map(|n| n.any("n_discard")).transpose()?,
        };
        self.with(py, |manager| manager.context_shift(s.0, &shift))
    }

    /// Self-extend, before each step: where `ga_w` positions or more are not grouped yet, every `ga_n` of these become
    /// one, a whole number of ga_w at a time, and later ones move down. Returns the position of the next token.
    ///
    /// Raises ManagerError: group_width (ga_w is no multiple of ga_n), range, and as `seq_add`.
    fn self_extend(&self, py: Python<'_>, s: Id, ga_n: Number, ga_w: Number) -> Result<i64> {
        let (ga_n, ga_w) = (ga_n.any("ga_n")?, ga_w.any("ga_w")?);
        self.with(py, |manager| manager.self_extend(s.0, ga_n, ga_w))
    }

    /// Moves rows together, in at most `max_moves` copies (src, dst, len), in slots, of the next step or `update`.
    ///
    /// Raises ManagerError: step_open.
    #[pyo3(signature = (max_moves=None))]
    fn defrag(&self, py: Python<'_>, max_moves: Option<Number>) -> Result<Vec<(usize, usize, usize)>> {
        let max_moves = max_moves.map(|moves| moves.count("max_moves")).transpose()?;
        self.with(py, |manager| Ok(moves(manager.defrag(max_moves)?)))
    }

    /// Moves the highest page in use to the lowest free one below it, `pages` times at most; returns the copies.
    ///
    /// Raises ManagerError: step_open.
    fn compact(&self, py: Python<'_>, pages: Number) -> Result<Vec<(usize, usize, usize)>> {
        let pages = pages.count("pages")?;
        self.with(py, |manager| Ok(moves(manager.compact(pages)?)))
    }

    /// Runs queued copies, then rotates the keys whose positions have changed. A step does so by itself.
    ///
    /// Raises ManagerError: step_open, memory_spec, and as `HostMemory`.
    fn update(&self, py: Python<'_>, memory: &Bound<'_, HostMemory>) -> Result<()> {
        self.shared.with_memory(py, memory, |manager, memory| manager.update(memory))
    }

    /// Plans a step that appends rows to sequences, all of them or none, and makes it ready to be run: makes queued
    /// copies, rotates keys, copies shared pages that the step writes. No appends are a legal step.
    ///
    /// Raises ManagerError: step_open, unknown_seq, lost, empty_append, duplicate_seq, position_order,
    /// position_overflow, too_many_pages, memory_spec, and as `HostMemory`; CapacityError: out_of_pages, no_slot;
    /// TypeError for anything but an Append.
    fn begin_step(&self, appends: &Bound<'_, PyAny>, memory: &Bound<'_, HostMemory>) -> Result<Step> {
        let py = memory.py();
        let appends = appends_of(appends)?;
        let appends: Vec<_> = appends.iter().map(|append| append.get().borrow()).collect();
        self.shared.with_memory(py, memory, |manager, memory| {
            let step = manager.begin_step(&appends)?.apply(memory)?;
            let opened = Step::new(&self.shared, &step)?;
            step.detach();
            Ok::<_, core::Error>(opened)
        })
    }

    /// Verifies every invariant of the manager.
    ///
    /// Raises ManagerError: broken.
    fn check(&self, py: Python<'_>) -> Result<()> {
        self.with(py, |manager| manager.check())
    }

    /// How full the cache is, in slots: slots (all), used, free, cached (pages kept for their prefix), shared (by
    /// several sequences), largest_free_run, fragmentation (the part up to the last used slot that is not used), head
    /// (the cell at which the next search begins), n_kv (the slots up to the last used one, padded); and the number of
    /// sequences, and prefix_hits: rows mapped instead of computed since the manager was made.
    fn stats<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        let stats = self.with(py, |manager| Ok(manager.stats()))?;
        Ok(pythonize::pythonize(py, &stats).map_err(PyErr::from)?)
    }
}

/// Copies as (src, dst, len), in slots.
fn moves(copies: Vec<RowCopy>) -> Vec<(usize, usize, usize)> {
    copies.into_iter().map(|RowCopy { src, dst, len }| (src, dst, len)).collect()
}

//! Sequences that leave the cache for tiers and come back, and what tiers are told and say.

use std::sync::Arc;

use kvcache_tiers::Tiers;
use pyo3::prelude::*;

use crate::id::Id;
use crate::manager::Manager;
use crate::memory::HostMemory;
use crate::refusal::{Refusal, Result};
use crate::tiers::{DEADLINE, seconds};

#[pymethods]
impl Manager {
    /// Lets `s` leave the cache: its slots are free, and its rows are stored once the next step or `update` begins. It
    /// keeps its id, positions and tokens; until `swap_in` it can only be freed.
    ///
    /// Raises ManagerError: tiers_full (the tiers do not take rows that were swapped out before; details: nbytes,
    /// reason), no_tiers, unknown_seq, step_open, lost, swapped.
    fn swap_out(&self, py: Python<'_>, s: Id) -> Result<()> {
        self.with(py, |manager| manager.swap_out(s.0))
    }

    /// Brings `s` back into the cache, with every bit; returns how many rows were read from tiers. What is queued is
    /// done first, as by `update`.
    ///
    /// Raises ManagerError: rows_missing (the tiers lack rows, or are late; details: missing, rows, reason),
    /// no_tiers, unknown_seq, step_open, lost, memory_spec, and as `HostMemory`; CapacityError: out_of_pages,
    /// no_slot. The sequence stays swapped out then.
    fn swap_in(&self, py: Python<'_>, s: Id, memory: &Bound<'_, HostMemory>) -> Result<usize> {
        self.shared.with_memory(py, memory, |manager, memory| manager.swap_in(s.0, memory))
    }

    /// Says that sequences will be swapped in soon: what is far away is brought nearer meanwhile, also while a step
    /// runs. With a memory and without an open step, what is queued is done first, as by `update`.
    ///
    /// Raises ManagerError: no_tiers, unknown_seq, memory_spec, and as `HostMemory`.
    #[pyo3(signature = (seqs, memory=None))]
    fn prefetch(&self, py: Python<'_>, seqs: Vec<Id>, memory: Option<&Bound<'_, HostMemory>>) -> Result<()> {
        let seqs: Vec<_> = seqs.into_iter().map(|s| s.0).collect();
        let Some(memory) = memory else {
            return self.with(py, |manager| py.detach(|| manager.prefetch(&seqs)));
        };
        self.all_tiers()?;
        self.shared.with_memory(py, memory, |manager, memory| {
            // Refused before anything is done.
            seqs.iter().try_for_each(|&seq| manager.seq_len(seq).map(drop))?;
            if manager.open_step().map(kvcache_manager::Step::detach).is_none() {
                manager.update(memory)?;
            }
            manager.prefetch(&seqs)
        })
    }

    /// Has the next step or `update` store all full pages of known tokens, so that other managers find prompts that
    /// begin with them. Without it a page is stored when it is evicted.
    ///
    /// Raises ManagerError: no_tiers, step_open.
    fn offload_prefix(&self, py: Python<'_>) -> Result<()> {
        self.with(py, kvcache_manager::Manager::offload_prefix)
    }

    /// Waits at most `timeout` seconds until what was stored is written. Returns whether it is.
    ///
    /// Raises ManagerError: no_tiers, range.
    #[pyo3(signature = (timeout=DEADLINE), text_signature = "($self, timeout=2.0)")]
    fn flush(&self, py: Python<'_>, timeout: f64) -> Result<bool> {
        let timeout = seconds("timeout", timeout)?;
        let tiers = self.all_tiers()?;
        Ok(py.detach(|| tiers.flush(timeout)))
    }

    /// Says how many tokens are computed in a second: from then on rows are not fetched from a tier that is slower, as
    /// measured, than computing them.
    ///
    /// Raises ManagerError: no_tiers, range.
    fn set_compute_rate(&self, py: Python<'_>, tokens_per_second: f64) -> Result<()> {
        if !(tokens_per_second.is_finite() && tokens_per_second > 0.0) {
            let message = format!("tokens_per_second is {tokens_per_second}, expected a number above 0");
            let refusal = Refusal::manager("range", message).with("name", "tokens_per_second");
            return Err(refusal.with("got", tokens_per_second));
        }
        let row_len = self.with(py, |manager| Ok(manager.spec().bytes_per_token()))?;
        self.all_tiers()?.set_compute_rate(tokens_per_second * row_len as f64);
        Ok(())
    }

    /// What each tier has done, the nearest first, each a dict: name, hits, misses (by reason: absent, late, busy,
    /// failed, slower, length, format, checksum, key; of the first also geometry, rows of another cache, whichever tier
    /// gave them), bytes_read, bytes_written, puts, writes_dropped, evicted, blocks, nbytes and read_rate (bytes a
    /// second), the last three None where they are not known. Without tiers an empty list.
    fn tiers<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        let tiers = self.shared.parts.tiers.get();
        let mut stats = tiers.map_or_else(Vec::new, |tiers| py.detach(|| tiers.stats()));
        if let Some(first) = stats.first_mut() {
            let geometry = self.with(py, |manager| {
                Ok(manager.store_stats().and_then(|stats| stats.misses.get("geometry").copied()).unwrap_or(0))
            })?;
            first.misses.insert("geometry", geometry);
        }
        Ok(pythonize::pythonize(py, &stats).map_err(PyErr::from)?)
    }
}

impl Manager {
    fn all_tiers(&self) -> Result<&Arc<Tiers>> {
        self.shared.parts.tiers.get().ok_or_else(|| kvcache_manager::Error::NoTiers.into())
    }
}

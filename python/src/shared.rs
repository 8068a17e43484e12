//! What a manager and its steps have in common.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvcache_manager::{CacheSpec, Error, Manager};
use kvcache_tiers::Tiers;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::buffers::Pool;
use crate::memory::{Detaching, HostMemory};
use crate::refusal::Refusal;

/// A manager and what its steps have of it. One thread at a time has it; meanwhile it may run no Python code, which
/// could want it too.
#[derive(Debug)]
pub struct Shared {
    spec: CacheSpec,
    manager: Mutex<Manager>,
    /// The number of the open step, or of the last one.
    latest: AtomicU64,
    /// The number of a step that Python has no longer. If it is open it is rolled back before anything else is done,
    /// and not when it is collected: that may be while the manager is locked.
    abandoned: AtomicU64,
    pub pools: Pools,
    pub tiers: Option<Arc<Tiers>>,
}

/// Memory of the arrays of steps.
#[derive(Debug, Default)]
pub struct Pools {
    pub indices: Pool,
    pub cachestarts: Pool,
    pub key_positions: Pool,
    pub masks: Pool,
}

impl Shared {
    pub fn new(manager: Manager, tiers: Option<Arc<Tiers>>) -> Self {
        Self {
            spec: manager.spec().clone(),
            manager: Mutex::new(manager),
            latest: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
            pools: Pools::default(),
            tiers,
        }
    }

    /// Has `used` use the manager, while no other thread does.
    ///
    /// # Errors
    /// What `used` says; a refusal of kind `broken` after a panic.
    pub fn with<R>(&self, py: Python<'_>, used: impl FnOnce(&mut Manager) -> Result<R, Refusal>) -> PyResult<R> {
        // Made into an exception, which is Python code, when the lock is free again.
        Ok(self.locked(py, used)?)
    }

    /// As [`with`](Self::with), for what moves bytes of the cache.
    ///
    /// # Errors
    /// Those of `with` and of [`HostMemory::arrays`].
    pub fn with_memory<R>(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, HostMemory>,
        used: impl FnOnce(&mut Manager, &mut Detaching<'_, '_>) -> Result<R, Error>,
    ) -> PyResult<R> {
        let arrays = memory.get().arrays(py, &self.spec)?;
        self.with(py, |manager| arrays.using(py, |memory| Ok(used(manager, memory)?)))
    }

    fn locked<R>(&self, py: Python<'_>, used: impl FnOnce(&mut Manager) -> Result<R, Refusal>) -> Result<R, Refusal> {
        let Ok(mut manager) = self.manager.lock_py_attached(py) else {
            let message = "the manager cannot be used any more: an earlier call of it panicked".to_owned();
            return Err(Refusal::new("broken", message, Vec::new()));
        };
        let abandoned = self.abandoned.swap(0, Ordering::Relaxed);
        if abandoned != 0
            && self.is_latest(abandoned)
            && let Some(step) = manager.open_step()
        {
            step.rollback();
        }
        used(&mut manager)
    }

    /// The number of the step that has just been opened. To be called while the manager is locked.
    pub fn opened(&self) -> u64 {
        1 + self.latest.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether this is the open step, if one is open. To be called while the manager is locked.
    pub fn is_latest(&self, step: u64) -> bool {
        step == self.latest.load(Ordering::Relaxed)
    }

    /// Python has this step no longer.
    pub fn abandon(&self, step: u64) {
        // An older one is not open.
        self.abandoned.fetch_max(step, Ordering::Relaxed);
    }
}

/// Waits for what is to be written, without the GIL, which tiers of Python need.
impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(tiers) = self.tiers.take() {
            let _ = Python::try_attach(|py| py.detach(|| tiers.flush(Duration::from_secs(5))));
        }
    }
}

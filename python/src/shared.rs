//! What a manager and its steps have in common.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use kvcache_manager::{CacheSpec, InfLlm, InfLlmStep, Manager, Step};
use kvcache_tiers::Tiers;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::buffers::Pool;
use crate::memory::{Detaching, HostMemory};
use crate::refusal::{Refusal, refusal};

/// What has a cache, and steps that are opened one at a time.
pub trait Managed {
    const NAME: &str;
    type Step<'m>
    where
        Self: 'm;

    fn spec(&self) -> &CacheSpec;
    fn open_step(&mut self) -> Option<Self::Step<'_>>;
    fn rollback(step: Self::Step<'_>);
}

macro_rules! managed {
    ($($name:literal: $managed:ty, $step:ident;)*) => { $(
        impl Managed for $managed {
            const NAME: &str = $name;
            type Step<'m> = $step<'m>;

            fn spec(&self) -> &CacheSpec {
                self.spec()
            }

            fn open_step(&mut self) -> Option<$step<'_>> {
                self.open_step()
            }

            fn rollback(step: $step<'_>) {
                step.rollback();
            }
        }
    )* };
}

managed! {
    "manager": Manager, Step;
    "InfLlm": InfLlm, InfLlmStep;
}

/// A manager and what its steps have of it. One thread at a time has it; meanwhile it may run no Python code, which
/// could want it too.
#[derive(Debug)]
pub struct Shared<M, P> {
    spec: CacheSpec,
    manager: Mutex<M>,
    /// The number of the open step, or of the last one.
    latest: AtomicU64,
    /// The number of a step that Python has no longer. If it is open it is rolled back before anything else is done,
    /// and not when it is collected: that may be while the manager is locked.
    abandoned: AtomicU64,
    /// What is used without the lock.
    pub parts: P,
}

/// Beside a `Manager`.
#[derive(Debug)]
pub struct Parts {
    pub pools: Pools,
    pub tiers: HeldTiers,
}

/// Beside an `InfLlm`: the blocks that were loaded for the last step, and the arrays of steps.
#[derive(Debug)]
pub struct InfLlmParts {
    pub tiers: HeldTiers,
    pub loads: AtomicUsize,
    pub indices: Pool,
}

pub type SharedManager = Shared<Manager, Parts>;
pub type SharedInfLlm = Shared<InfLlm, InfLlmParts>;

/// Memory of the arrays of steps.
#[derive(Debug, Default)]
pub struct Pools {
    pub indices: Pool,
    pub cachestarts: Pool,
    pub key_positions: Pool,
    pub masks: Pool,
}

impl<M: Managed, P> Shared<M, P> {
    pub fn new(manager: M, parts: P) -> Self {
        Self {
            spec: manager.spec().clone(),
            manager: Mutex::new(manager),
            latest: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
            parts,
        }
    }

    /// Has `used` use the manager, while no other thread does.
    ///
    /// # Errors
    /// What `used` says; a refusal of kind `broken` after a panic.
    pub fn with<R>(&self, py: Python<'_>, used: impl FnOnce(&mut M) -> Result<R, Refusal>) -> PyResult<R> {
        // Made into an exception, which is Python code, when the lock is free again.
        Ok(self.locked(py, used)?)
    }

    /// As [`with`](Self::with), for what moves bytes of the cache.
    ///
    /// # Errors
    /// Those of `with` and of [`HostMemory::arrays`].
    pub fn with_memory<R, E: Into<Refusal>>(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, HostMemory>,
        used: impl FnOnce(&mut M, &mut Detaching<'_, '_>) -> Result<R, E>,
    ) -> PyResult<R> {
        let arrays = memory.get().arrays(py, &self.spec)?;
        self.with(py, |manager| arrays.using(py, |memory| used(manager, memory).map_err(Into::into)))
    }

    fn locked<R>(&self, py: Python<'_>, used: impl FnOnce(&mut M) -> Result<R, Refusal>) -> Result<R, Refusal> {
        let Ok(mut manager) = self.manager.lock_py_attached(py) else {
            let message = format!("the {} cannot be used any more: an earlier call of it panicked", M::NAME);
            return Err(refusal!("broken", message));
        };
        let abandoned = self.abandoned.swap(0, Ordering::Relaxed);
        if abandoned != 0
            && let Some(step) = self.step(&mut manager, abandoned)
        {
            M::rollback(step);
        }
        used(&mut manager)
    }

    /// The number of the step that has just been opened. To be called while the manager is locked.
    pub fn opened(&self) -> u64 {
        1 + self.latest.fetch_add(1, Ordering::Relaxed)
    }

    /// The open step, if it is this one. To be called while the manager is locked.
    pub fn step<'m>(&self, manager: &'m mut M, number: u64) -> Option<M::Step<'m>> {
        if number == self.latest.load(Ordering::Relaxed) { manager.open_step() } else { None }
    }

    /// Python has this step no longer.
    pub fn abandon(&self, step: u64) {
        // An older one is not open.
        self.abandoned.fetch_max(step, Ordering::Relaxed);
    }
}

/// Tiers. Dropped, they wait for what is to be written, without the GIL, which tiers of Python need.
#[derive(Debug)]
pub struct HeldTiers(pub Option<Arc<Tiers>>);

impl Drop for HeldTiers {
    fn drop(&mut self) {
        if let Some(tiers) = self.0.take() {
            let _ = Python::try_attach(|py| py.detach(|| drop(tiers)));
        }
    }
}

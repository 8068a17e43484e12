//! A manager behind a mutex, shared with its open step.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use kvcache_manager::{self as core, CacheSpec, InfLlm, Manager, StateCache, Stepped};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::buffers::Pool;
use crate::memory::HostMemory;
use crate::refusal::{Refusal, Result};
use crate::tiers::HeldTiers;

/// A manager whose steps are opened one at a time.
pub trait Managed: Stepped + Sized {
    const NAME: &str;
    /// The memory that its cache needs.
    type Spec: Clone + std::fmt::Debug;
    fn spec(&self) -> &Self::Spec;
    /// The open step, which is rolled back when it is dropped.
    fn open_step(&mut self) -> Option<core::OpenStep<'_, Self>>;
}

macro_rules! managed {
    ($($name:literal: $managed:ty, $spec:ty = |$self:ident| $of:expr;)*) => { $(
        impl Managed for $managed {
            const NAME: &str = $name;
            type Spec = $spec;

            fn spec(&self) -> &$spec {
                let $self = self;
                $of
            }

            fn open_step(&mut self) -> Option<core::OpenStep<'_, Self>> {
                self.open_step()
            }
        }
    )* };
}

managed! {
    "manager": Manager, CacheSpec = |manager| manager.spec();
    "InfLlm": InfLlm, CacheSpec = |manager| manager.spec();
    "StateCache": StateCache, () = |_states| &();
}

/// A manager behind a mutex, shared with its open step. While a thread has it, it may run no Python code, which
/// could want it too.
#[derive(Debug)]
pub struct Shared<M: Managed, P> {
    /// The memory that the cache needs.
    pub spec: M::Spec,
    manager: Mutex<M>,
    /// The number of the open step, or of the last one.
    latest: AtomicU64,
    /// The number of a step that Python has no longer. If it is open it is rolled back before anything else is done,
    /// and not when it is collected: that may be while the manager is locked.
    abandoned: AtomicU64,
    /// State that is used without the lock.
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

    /// Has `used` use the manager, while no other thread does. After a panic of an earlier one it is `broken`. A
    /// refusal becomes an exception, which is Python code, when the lock is free again.
    pub fn with<R>(&self, py: Python<'_>, used: impl FnOnce(&mut M) -> Result<R>) -> Result<R> {
        let Ok(mut manager) = self.manager.lock_py_attached(py) else {
            let message = format!("the {} cannot be used any more: an earlier call of it panicked", M::NAME);
            return Err(Refusal::manager("broken", message));
        };
        let abandoned = self.abandoned.swap(0, Ordering::Relaxed);
        if abandoned != 0 {
            drop(self.step(&mut manager, abandoned));
        }
        used(&mut manager)
    }

    /// The open step, if it is this one. To be called while the manager is locked.
    fn step<'m>(&self, manager: &'m mut M, number: u64) -> Option<core::OpenStep<'m, M>> {
        if number == self.latest.load(Ordering::Relaxed) { manager.open_step() } else { None }
    }
}

impl<M: Managed<Spec = CacheSpec>, P> Shared<M, P> {
    /// Has `used` use the manager and the cache's memory, as [`with`](Self::with), without the GIL: tiers may be
    /// Python's.
    pub fn with_memory<R: Send, E: Into<Refusal>>(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, HostMemory>,
        used: impl FnOnce(&mut M, &mut core::HostMemory<'_>) -> Result<R, E> + Send,
    ) -> Result<R>
    where
        M: Send,
    {
        let arrays = memory.get().arrays(py, &self.spec)?;
        self.with(py, |manager| arrays.using(py, |memory| used(manager, memory).map_err(Into::into)))
    }
}

/// A step that Python has.
#[derive(Debug)]
pub struct OpenStep<M: Managed, P> {
    pub shared: Arc<Shared<M, P>>,
    number: u64,
}

impl<M: Managed, P> OpenStep<M, P> {
    /// The step that has just been opened. To be called while the manager is locked.
    pub fn new(shared: &Arc<Shared<M, P>>) -> Self {
        Self { number: 1 + shared.latest.fetch_add(1, Ordering::Relaxed), shared: Arc::clone(shared) }
    }

    /// Has `used` use the step while no other thread uses the manager.
    pub fn with<R>(&self, py: Python<'_>, used: impl FnOnce(core::OpenStep<'_, M>) -> Result<R>) -> Result<R> {
        self.shared.with(py, |manager| used(self.step(manager)?))
    }

    /// The step, of the locked manager; one that has ended is `step_closed`.
    pub fn step<'m>(&self, manager: &'m mut M) -> Result<core::OpenStep<'m, M>> {
        self.shared.step(manager, self.number).ok_or_else(Refusal::step_closed)
    }

    /// Has `end` end the step.
    pub fn end(&self, py: Python<'_>, end: impl FnOnce(core::OpenStep<'_, M>)) -> Result<()> {
        self.with(py, |step| {
            end(step);
            Ok(())
        })
    }

    /// Has `end` end the step, if it is open; whether it was.
    pub fn end_open(&self, py: Python<'_>, end: impl FnOnce(core::OpenStep<'_, M>)) -> Result<bool> {
        self.shared.with(py, |manager| Ok(self.shared.step(manager, self.number).map(end).is_some()))
    }
}

impl<M: Managed, P> Drop for OpenStep<M, P> {
    fn drop(&mut self) {
        // An older one is not open.
        self.shared.abandoned.fetch_max(self.number, Ordering::Relaxed);
    }
}

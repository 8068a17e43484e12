//! Tiers: where rows go when the cache is full, and `Manager`'s methods that move them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvcache_manager::{Block, BlockKey, BlockStore, StoreError};
use kvcache_tiers::{self as core, Tier, Tiers};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyDict;

use crate::arguments;
use crate::id::Id;
use crate::manager::Manager;
use crate::memory::HostMemory;
use crate::numbers::type_error;
use crate::refusal::{Refusal, refusal};
use crate::stats::dict;

/// The seconds that a tier has for an answer, unless it is given others.
const DEADLINE: f64 = 2.0;

/// Blocks in this process' memory, at most `nbytes` bytes for each manager that is given it: the least recently used ones
/// go on to the next tier.
///
/// Raises ManagerError: range.
#[pyclass(frozen, module = "kvcache_ops.manager")]
#[derive(Debug)]
pub struct HostTier {
    nbytes: u64,
}

#[pymethods]
impl HostTier {
    #[new]
    fn new(#[pyo3(from_py_with = arguments::nbytes)] nbytes: usize) -> Self {
        Self { nbytes: nbytes as u64 }
    }
}

/// Blocks in files of a folder, at most `nbytes` bytes: the least recently used ones are removed. Processes may share the
/// folder, and find what an earlier one has left.
///
/// deadline: the seconds after which a call of the tier is given up.
///
/// Raises ManagerError: range, tier (the folder cannot be made or read).
#[pyclass(frozen, module = "kvcache_ops.manager")]
#[derive(Debug)]
pub struct FileTier(Tier);

#[pymethods]
impl FileTier {
    #[new]
    #[pyo3(signature = (path, nbytes, *, deadline=DEADLINE), text_signature = "(path, nbytes, *, deadline=2.0)")]
    fn new(path: PathBuf, #[pyo3(from_py_with = arguments::nbytes)] nbytes: usize, deadline: f64) -> PyResult<Self> {
        let deadline = seconds("deadline", deadline)?;
        let store = core::FileTier::open(&path, nbytes as u64)
            .map_err(|error| unusable(format!("{}: {error}", path.display())))?;
        Ok(Self(Tier::new("file", Arc::new(store)).deadline(deadline)))
    }
}

/// Blocks in an object store: "s3://bucket/prefix", "gs://...", "az://...", or "file:///folder". Further options are
/// those of the Rust crate object_store, by their names ("aws_endpoint", "aws_access_key_id", "allow_http" ...); what is not given is
/// read from the environment. What is there
/// is bounded by the store's own rules (a lifecycle of the bucket).
///
/// deadline: the seconds after which a call of the tier is given up.
///
/// Raises ManagerError: range, tier (a url or an option that is none, or a build without object stores).
#[pyclass(frozen, module = "kvcache_ops.manager")]
#[derive(Debug)]
pub struct ObjectTier(Tier);

#[pymethods]
impl ObjectTier {
    #[new]
    #[pyo3(
        signature = (url, *, deadline=DEADLINE, **options),
        text_signature = "(url, *, deadline=2.0, **options)"
    )]
    fn new(url: &str, deadline: f64, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut named = Vec::new();
        for (name, value) in options.into_iter().flatten() {
            // True is "true" to the store.
            let value = match value.extract::<bool>() {
                Ok(flag) => flag.to_string(),
                Err(_) => value.str()?.to_string(),
            };
            named.push((name.to_string(), value));
        }
        far_away::objects(url, named, seconds("deadline", deadline)?).map(Self)
    }
}

/// Blocks in a Redis server: "redis://host:port/database". What is there is bounded by the server's `maxmemory`.
///
/// deadline: the seconds after which a call of the tier is given up.
///
/// Raises ManagerError: range, tier (a url that is none, or a build without Redis).
#[pyclass(frozen, module = "kvcache_ops.manager")]
#[derive(Debug)]
pub struct RedisTier(Tier);

#[pymethods]
impl RedisTier {
    #[new]
    #[pyo3(signature = (url, *, deadline=DEADLINE), text_signature = "(url, *, deadline=2.0)")]
    fn new(url: &str, deadline: f64) -> PyResult<Self> {
        far_away::redis(url, seconds("deadline", deadline)?).map(Self)
    }
}

/// Tiers on other machines, which wheels have; builds for tests do without their dependencies.
#[cfg(feature = "remote")]
mod far_away {
    use super::{Arc, Duration, PyResult, Tier, core, unusable};

    pub(super) fn objects(url: &str, options: Vec<(String, String)>, deadline: Duration) -> PyResult<Tier> {
        let store = core::ObjectTier::open(url, options).map_err(|error| unusable(format!("{url}: {error}")))?;
        Ok(Tier::new("object", Arc::new(store.timeout(deadline))).deadline(deadline))
    }

    pub(super) fn redis(url: &str, deadline: Duration) -> PyResult<Tier> {
        let store = core::RedisTier::open(url).map_err(|error| unusable(error.to_string()))?;
        Ok(Tier::new("redis", Arc::new(store.timeout(deadline))).deadline(deadline))
    }
}

#[cfg(not(feature = "remote"))]
mod far_away {
    use super::{Duration, PyResult, Tier, unusable};

    pub(super) fn objects(url: &str, _: Vec<(String, String)>, _: Duration) -> PyResult<Tier> {
        Err(unusable(format!("{url}: this build has no object stores, the feature `remote`")))
    }

    pub(super) fn redis(_: &str, _: Duration) -> PyResult<Tier> {
        Err(unusable("this build has no Redis, the feature `remote`".to_owned()))
    }
}

/// A number of seconds.
fn seconds(name: &'static str, got: f64) -> PyResult<Duration> {
    match Duration::try_from_secs_f64(got) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => {
            let message = format!("{name} is {got}, expected seconds above 0");
            Err(refusal!("range", message, name = name, got = got).into())
        }
    }
}

fn unusable(message: String) -> PyErr {
    refusal!("tier", message).into()
}

/// A tier that is an object of Python's.
#[derive(Debug)]
struct PythonStore(Py<PyAny>);

impl PythonStore {
    const METHODS: [&str; 4] = ["get", "put", "contains", "delete"];

    fn call<T: Send>(&self, used: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T> + Send) -> Result<T, StoreError> {
        let failed = |error: String| StoreError::Failed(error.into());
        let result = Python::try_attach(|py| used(self.0.bind(py)).map_err(|error| error.to_string()));
        result.ok_or_else(|| failed("the interpreter is shutting down".to_owned()))?.map_err(failed)
    }
}

impl BlockStore for PythonStore {
    fn get(&self, key: &BlockKey) -> Result<Option<Block>, StoreError> {
        let bytes = self.call(|store| {
            let block = store.call_method1("get", (key.to_string(),))?;
            let block: Option<PyBackedBytes> = block.extract()?;
            Ok(block.map(|block| Bytes::copy_from_slice(&block)))
        })?;
        Ok(bytes.map(|bytes| Block::verify(key, bytes)).transpose()?)
    }

    fn put(&self, key: &BlockKey, block: Block) -> Result<(), StoreError> {
        let bytes = block.parts().concat();
        self.call(|store| store.call_method1("put", (key.to_string(), &bytes[..])).map(drop))
    }

    fn contains(&self, key: &BlockKey) -> Result<bool, StoreError> {
        self.call(|store| store.call_method1("contains", (key.to_string(),))?.is_truthy())
    }

    fn delete(&self, key: &BlockKey) -> Result<(), StoreError> {
        self.call(|store| store.call_method1("delete", (key.to_string(),)).map(drop))
    }
}

/// The tiers of a manager; without any, this process' memory.
///
/// # Errors
/// `TypeError` for what is no list of tiers, or for a HostTier behind another one.
pub fn tiers_of(tiers: Option<&Bound<'_, PyAny>>) -> PyResult<Arc<Tiers>> {
    let Some(tiers) = tiers else {
        let all = Tiers::new(core::HostTier::new(u64::MAX), []);
        return Ok(Arc::new(all.map_err(|error| unusable(error.to_string()))?));
    };
    let (mut nbytes, mut far) = (0, Vec::new());
    for (i, tier) in tiers.try_iter()?.enumerate() {
        let tier = tier?;
        if let Ok(tier) = tier.cast::<HostTier>() {
            if i > 0 {
                return Err(PyTypeError::new_err(format!("tiers[{i}]: expected the HostTier to be the first tier")));
            }
            nbytes = tier.get().nbytes;
        } else if let Ok(tier) = tier.cast::<FileTier>() {
            far.push(tier.get().0.clone());
        } else if let Ok(tier) = tier.cast::<ObjectTier>() {
            far.push(tier.get().0.clone());
        } else if let Ok(tier) = tier.cast::<RedisTier>() {
            far.push(tier.get().0.clone());
        } else {
            for method in PythonStore::METHODS {
                if !tier.getattr_opt(method)?.is_some_and(|method| method.is_callable()) {
                    let name = format!("tiers[{i}]");
                    return Err(type_error(&name, &format!("a tier, with the method {method}"), &tier));
                }
            }
            let name = tier.get_type().name()?.to_string();
            far.push(Tier::new(name, Arc::new(PythonStore(tier.unbind()))));
        }
    }
    Ok(Arc::new(Tiers::new(core::HostTier::new(nbytes), far).map_err(|error| unusable(error.to_string()))?))
}

#[pymethods]
impl Manager {
    /// Lets `s` leave the cache: its slots are free, and its rows are stored once the next step or `update` begins. It
    /// keeps its id, positions and tokens; until `swap_in` it can only be freed.
    ///
    /// Raises ManagerError: no_tiers, unknown_seq, step_open, lost, swapped.
    fn swap_out(&self, py: Python<'_>, s: Id) -> PyResult<()> {
        self.with(py, |manager| manager.swap_out(s.0))
    }

    /// Brings `s` back into the cache, with every bit; gives how many rows were read from tiers. What is queued is done
    /// first, as by `update`.
    ///
    /// Raises ManagerError: rows_missing (the tiers have not all rows, or not in time; details: missing, rows, reason),
    /// no_tiers, unknown_seq, step_open, lost, memory_spec, and those of `HostMemory`; CapacityError: out_of_pages,
    /// no_slot. The sequence stays swapped out then.
    fn swap_in(&self, py: Python<'_>, s: Id, memory: &Bound<'_, HostMemory>) -> PyResult<usize> {
        self.shared.with_memory(py, memory, |manager, memory| memory.detached(|memory| manager.swap_in(s.0, memory)))
    }

    /// Says that sequences will be swapped in soon: what is far away is brought nearer meanwhile, also while a step runs.
    /// With a memory and without an open step, what is queued is done first, as by `update`.
    ///
    /// Raises ManagerError: no_tiers, unknown_seq, memory_spec, and those of `HostMemory`.
    #[pyo3(signature = (seqs, memory=None))]
    fn prefetch(&self, py: Python<'_>, seqs: Vec<Id>, memory: Option<&Bound<'_, HostMemory>>) -> PyResult<()> {
        let seqs: Vec<_> = seqs.into_iter().map(|s| s.0).collect();
        let Some(memory) = memory else {
            return self.with(py, |manager| py.detach(|| manager.prefetch(&seqs)));
        };
        self.shared.with_memory(py, memory, |manager, memory| {
            let is_open = manager.open_step().map(kvcache_manager::Step::detach).is_some();
            memory.detached(|memory| {
                if !is_open {
                    manager.update(memory)?;
                }
                manager.prefetch(&seqs)
            })
        })
    }

    /// Has the next step or `update` store all full pages of known tokens, so that other managers find prompts that begin
    /// with them. Without it a page is stored when it is evicted.
    ///
    /// Raises ManagerError: no_tiers, step_open.
    fn offload_prefix(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, kvcache_manager::Manager::offload_prefix)
    }

    /// Waits until what was stored is written, for at most `timeout` seconds. Whether it is.
    ///
    /// Raises ManagerError: no_tiers, range.
    #[pyo3(signature = (timeout=DEADLINE), text_signature = "($self, timeout=2.0)")]
    fn flush(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = seconds("timeout", timeout)?;
        let tiers = self.all_tiers()?;
        Ok(py.detach(|| tiers.flush(timeout)))
    }

    /// Says how many tokens are computed in a second: from then on rows are not fetched from a tier that is slower, as
    /// measured, than computing them.
    ///
    /// Raises ManagerError: no_tiers, range.
    fn set_compute_rate(&self, py: Python<'_>, tokens_per_second: f64) -> PyResult<()> {
        if !(tokens_per_second.is_finite() && tokens_per_second > 0.0) {
            let message = format!("tokens_per_second is {tokens_per_second}, expected a number above 0");
            return Err(refusal!("range", message, name = "tokens_per_second", got = tokens_per_second).into());
        }
        let row_len = self.with(py, |manager| Ok(manager.spec().bytes_per_token()))?;
        self.all_tiers()?.set_compute_rate(tokens_per_second * row_len as f64);
        Ok(())
    }

    /// What each tier has done, the nearest first, each a dict: name, hits, misses (by reason: absent, late, busy,
    /// failed, slower, length, format, checksum, key), bytes_read, bytes_written, puts, writes_dropped, evicted, blocks,
    /// nbytes and read_rate (bytes a second), the last three None where they are not known. Without tiers an empty list.
    fn tiers<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let Some(tiers) = &self.shared.parts.tiers else { return Ok(Vec::new()) };
        let stats = py.detach(|| tiers.stats());
        let dict = |tier: core::TierStats| {
            let misses = PyDict::new(py);
            for (reason, count) in tier.misses.by_reason() {
                misses.set_item(reason, count)?;
            }
            let dict = dict!(py, tier; name, hits, bytes_read, bytes_written, puts, writes_dropped, evicted, blocks, nbytes,
                read_rate);
            dict.set_item("misses", misses)?;
            Ok(dict)
        };
        stats.into_iter().map(dict).collect()
    }
}

impl Manager {
    fn all_tiers(&self) -> PyResult<&Arc<Tiers>> {
        self.shared.parts.tiers.as_ref().ok_or_else(|| Refusal::from(kvcache_manager::Error::NoTiers).into())
    }
}

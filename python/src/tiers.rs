//! Tiers: where rows go when the cache is full.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use kvcache_manager::{Block, BlockKey, BlockStore, LongestBlock, StoreError};
use kvcache_tiers::{self as core, Tier, Tiers};
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyDict;

use crate::arguments::{Number, type_error};
use crate::refusal::{Refusal, Result};

/// The seconds that a tier has for an answer, unless it is given others.
pub(crate) const DEADLINE: f64 = 2.0;
/// The bytes that wait to be written to a tier at most, unless it is given others.
const MAX_QUEUED: i64 = 256 << 20;

/// Blocks in this process' memory, at most `nbytes` bytes for each manager that is given it: the least recently used
/// ones continue to the next tier.
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
    fn new(nbytes: Number) -> Result<Self> {
        Ok(Self { nbytes: nbytes.count("nbytes")? as u64 })
    }
}

/// Blocks in files of a folder, at most `nbytes` bytes: the least recently used ones are removed. Processes may share
/// the folder, and find what an earlier one left.
///
/// deadline: the seconds after which a call of the tier is given up.
/// max_queued: the most bytes that wait to be written. Further pages are dropped; rows of sequences that are
/// swapped out wait for room.
///
/// Raises ManagerError: range, tier (the folder cannot be made or read).
#[pyclass(frozen, module = "kvcache_ops.manager")]
#[derive(Debug)]
pub struct FileTier(Tier);

#[pymethods]
impl FileTier {
    #[new]
    #[pyo3(
        signature = (path, nbytes, *, deadline=DEADLINE, max_queued=MAX_QUEUED.into()),
        text_signature = "(path, nbytes, *, deadline=2.0, max_queued=268435456)"
    )]
    fn new(path: PathBuf, nbytes: Number, deadline: f64, max_queued: Number) -> Result<Self> {
        let (deadline, max_queued) = (seconds("deadline", deadline)?, max_queued.count("max_queued")? as u64);
        let store = core::FileTier::open(&path, nbytes.count("nbytes")? as u64)
            .map_err(|error| unusable(format!("{}: {error}", path.display())))?;
        Ok(Self(Tier::new("file", Arc::new(store)).deadline(deadline).max_queued(max_queued)))
    }
}

/// Blocks in an object store: "s3://bucket/prefix", "gs://...", "az://...", or "file:///folder". Further options are
/// of the Rust crate object_store, by their names ("aws_endpoint", "aws_access_key_id", "allow_http" ...); what
/// is not given is read from the environment. What is there is bounded by the store's own rules (a lifecycle of the
/// bucket).
///
/// deadline: the seconds after which a call of the tier is given up. max_queued: as `FileTier` has it.
///
/// Raises ManagerError: range, tier (a url or an option that is none, or a build without object stores).
#[pyclass(frozen, module = "kvcache_ops.manager")]
#[derive(Debug)]
pub struct ObjectTier(Tier);

#[pymethods]
impl ObjectTier {
    #[new]
    #[pyo3(
        signature = (url, *, deadline=DEADLINE, max_queued=MAX_QUEUED.into(), **options),
        text_signature = "(url, *, deadline=2.0, max_queued=268435456, **options)"
    )]
    fn new(url: &str, deadline: f64, max_queued: Number, options: Option<&Bound<'_, PyDict>>) -> Result<Self> {
        let (deadline, max_queued) = (seconds("deadline", deadline)?, max_queued.count("max_queued")? as u64);
        let mut named = Vec::new();
        for (name, value) in options.into_iter().flatten() {
            // True is "true" to the store.
            let value = match value.extract::<bool>() {
                Ok(flag) => flag.to_string(),
                Err(_) => value.str()?.to_string(),
            };
            named.push((name.to_string(), value));
        }
        Ok(Self(remote::objects(url, named, deadline)?.max_queued(max_queued)))
    }
}

/// Blocks in a Redis server: "redis://host:port/database". What is there is bounded by the server's `maxmemory`.
///
/// deadline: the seconds after which a call of the tier is given up. max_queued: as `FileTier` has it.
///
/// Raises ManagerError: range, tier (a url that is none, or a build without Redis).
#[pyclass(frozen, module = "kvcache_ops.manager")]
#[derive(Debug)]
pub struct RedisTier(Tier);

#[pymethods]
impl RedisTier {
    #[new]
    #[pyo3(
        signature = (url, *, deadline=DEADLINE, max_queued=MAX_QUEUED.into()),
        text_signature = "(url, *, deadline=2.0, max_queued=268435456)"
    )]
    fn new(url: &str, deadline: f64, max_queued: Number) -> Result<Self> {
        let (deadline, max_queued) = (seconds("deadline", deadline)?, max_queued.count("max_queued")? as u64);
        Ok(Self(remote::redis(url, deadline)?.max_queued(max_queued)))
    }
}

/// Tiers on other machines, which wheels have; builds for tests do without their dependencies.
#[cfg(feature = "remote")]
mod remote {
    use super::{Arc, Duration, Result, Tier, core, unusable};

    pub(super) fn objects(url: &str, options: Vec<(String, String)>, deadline: Duration) -> Result<Tier> {
        let store = core::ObjectTier::open(url, options).map_err(|error| unusable(format!("{url}: {error}")))?;
        Ok(Tier::new("object", Arc::new(store.timeout(deadline))).deadline(deadline))
    }

    pub(super) fn redis(url: &str, deadline: Duration) -> Result<Tier> {
        let store = core::RedisTier::open(url).map_err(|error| unusable(error.to_string()))?;
        Ok(Tier::new("redis", Arc::new(store.timeout(deadline))).deadline(deadline))
    }
}

#[cfg(not(feature = "remote"))]
mod remote {
    use super::{Duration, Result, Tier, unusable};

    pub(super) fn objects(url: &str, _: Vec<(String, String)>, _: Duration) -> Result<Tier> {
        Err(unusable(format!("{url}: this build has no object stores, the feature `remote`")))
    }

    pub(super) fn redis(_: &str, _: Duration) -> Result<Tier> {
        Err(unusable("this build has no Redis, the feature `remote`".to_owned()))
    }
}

/// A number of seconds.
pub(crate) fn seconds(name: &'static str, got: f64) -> Result<Duration> {
    match Duration::try_from_secs_f64(got) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => {
            let message = format!("{name} is {got}, expected seconds above 0");
            Err(Refusal::manager("range", message).with("name", name).with("got", got))
        }
    }
}

fn unusable(message: String) -> Refusal {
    Refusal::manager("tier", message)
}

/// A tier that is an object of Python's, until this is garbage together with its manager.
#[derive(Debug)]
pub struct PythonStore {
    /// Locked by who has the GIL, and meanwhile keeps it.
    object: Mutex<Option<Py<PyAny>>>,
    longest: LongestBlock,
}

impl PythonStore {
    const METHODS: [&str; 4] = ["get", "put", "contains", "delete"];

    /// The store that an object is, if it has the methods of one.
    fn new(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        for method in Self::METHODS {
            if !object.getattr_opt(method)?.is_some_and(|method| method.is_callable()) {
                return Err(type_error(name, &format!("a tier, with the method {method}"), object));
            }
        }
        Ok(Self { object: Mutex::new(Some(object.clone().unbind())), longest: LongestBlock::default() })
    }

    fn object(&self) -> MutexGuard<'_, Option<Py<PyAny>>> {
        self.object.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<T: Send>(&self, used: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T> + Send) -> Result<T, StoreError> {
        let failed = |error: String| StoreError::Failed(error.into());
        let result = Python::try_attach(|py| {
            let object = self.object().as_ref().map(|object| object.clone_ref(py));
            let object = object.ok_or_else(|| failed("the tier was collected".to_owned()))?;
            used(object.bind(py)).map_err(|error| failed(error.to_string()))
        });
        result.ok_or_else(|| failed("the interpreter is shutting down".to_owned()))?
    }
}

impl BlockStore for PythonStore {
    fn get(&self, key: &BlockKey) -> Result<Option<Block>, StoreError> {
        let bytes = self.call(|store| {
            let block = store.call_method1("get", (key.to_string(),))?;
            let block: Option<PyBackedBytes> = block.extract()?;
            // Before there is memory for it.
            let copied =
                |block: PyBackedBytes| self.longest.check(block.len() as u64).map(|()| Bytes::copy_from_slice(&block));
            Ok(block.map(copied))
        })?;
        let Some(bytes) = bytes.transpose()? else { return Ok(None) };
        Ok(Some(Block::verify(key, bytes)?))
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

    fn expect_blocks(&self, nbytes: u64) {
        self.longest.expect(nbytes);
    }
}

/// Tiers, and the Python objects among them. Dropped, they wait for what is to be written, without the GIL,
/// which tiers of Python need.
#[derive(Debug, Default)]
pub struct HeldTiers {
    tiers: Option<Arc<Tiers>>,
    python: Vec<Arc<PythonStore>>,
}

impl HeldTiers {
    /// The tiers, if there are any.
    pub fn get(&self) -> Option<&Arc<Tiers>> {
        self.tiers.as_ref()
    }

    /// Tells the garbage collector of Python's objects, for the one object of Python's that owns these tiers.
    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.python.iter().try_for_each(|store| visit.call(&*store.object()))
    }

    /// Lets go of Python's objects, which are garbage: what is queued for them is dropped.
    pub fn clear(&self) {
        for store in &self.python {
            let object = store.object().take();
            drop(object);
        }
    }
}

impl Drop for HeldTiers {
    fn drop(&mut self) {
        if let Some(tiers) = self.tiers.take() {
            let _ = Python::try_attach(|py| py.detach(|| drop(tiers)));
        }
    }
}

/// The tiers of a manager; without any, this process' memory.
pub fn tiers_of(tiers: Option<&Bound<'_, PyAny>>) -> Result<HeldTiers> {
    let held = |host, far, python| -> Result<HeldTiers> {
        let tiers = Tiers::new(core::HostTier::new(host), far).map_err(|error| unusable(error.to_string()))?;
        Ok(HeldTiers { tiers: Some(Arc::new(tiers)), python })
    };
    let (mut nbytes, mut far, mut python) = (0, Vec::new(), Vec::new());
    let Some(tiers) = tiers else { return held(u64::MAX, far, python) };
    for (i, tier) in tiers.try_iter()?.enumerate() {
        let tier = tier?;
        let remote = tier.cast::<FileTier>().map(|tier| &tier.get().0);
        let remote = remote.or_else(|_| tier.cast::<ObjectTier>().map(|tier| &tier.get().0));
        let remote = remote.or_else(|_| tier.cast::<RedisTier>().map(|tier| &tier.get().0));
        match (remote, tier.cast::<HostTier>()) {
            (Ok(tier), _) => far.push(tier.clone()),
            (_, Ok(tier)) if i == 0 => nbytes = tier.get().nbytes,
            (_, Ok(_)) => {
                let message = format!("tiers[{i}]: expected the HostTier to be the first tier");
                return Err(PyTypeError::new_err(message).into());
            }
            _ => {
                let store = Arc::new(PythonStore::new(&format!("tiers[{i}]"), &tier)?);
                python.push(store.clone());
                far.push(Tier::new(tier.get_type().name()?.to_string(), store));
            }
        }
    }
    held(nbytes, far, python)
}

//! Blocks in an object store.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use kvcache_manager::{Block, BlockError, BlockKey, BlockStore, LongestBlock, StoreError, up_to_missing};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, ObjectStoreScheme, PutMode, PutOptions, PutPayload, parse_url};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use url::Url;

use crate::bounded_http::{Bounded, NotImplemented};

/// So many blocks of a chain are asked for at once.
const CONCURRENT: usize = 16;
const TIMEOUT: Duration = Duration::from_secs(2);
/// Variables of the environment that begin so are options of an object store.
const VARIABLES: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];

/// The runtime of all object stores of a process, and the process: a fork of it has none of the threads.
static RUNTIME: Mutex<Option<(u32, &Runtime)>> = Mutex::new(None);

fn runtime() -> io::Result<&'static Runtime> {
    let (mut runtime, process) = (RUNTIME.lock().unwrap_or_else(PoisonError::into_inner), std::process::id());
    if let Some((of, runtime)) = *runtime
        && of == process
    {
        return Ok(runtime);
    }
    let new = Builder::new_multi_thread().worker_threads(2).thread_name("kvcache tiers").enable_all().build()?;
    let new: &Runtime = Box::leak(Box::new(new));
    *runtime = Some((process, new));
    Ok(new)
}

/// Blocks in an object store: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`,
/// `file:///folder` or `memory:///`. A block is an object named by its key.
///
/// It never evicts: bound it by a rule of the bucket that expires objects. Whoever may write to the bucket decides what
/// is found there; a block that was altered does not verify, but one that was made on purpose does. What is longer than
/// a block is not read.
///
/// A block is put only where there is none. A store that knows no conditional puts, because it says so or the option
/// `aws_conditional_put` is `disabled`, is asked first whether it has the block; two that put one at once write the
/// same.
pub struct ObjectTier {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    timeout: Duration,
    longest: Arc<LongestBlock>,
    /// The store knows no conditional puts.
    asks_first: Arc<AtomicBool>,
}

impl fmt::Debug for ObjectTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectTier({}, {})", self.store, self.prefix)
    }
}

/// A store of this builder with options, whose HTTP is bounded.
macro_rules! bounded {
    ($builder:ty, $url:expr, $options:expr, $http:expr) => {{
        let builder = <$builder>::new().with_url($url.as_str()).with_http_connector($http);
        let with = |builder: $builder, (name, value): (String, String)| match name.parse() {
            Ok(key) => builder.with_config(key, value),
            Err(_) => builder,
        };
        Arc::new($options.into_iter().fold(builder, with).build().map_err(failed)?)
    }};
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::Failed(error.into())
}

impl ObjectTier {
    /// A store by its address, with options as crate `object_store` names them: `aws_endpoint`, `aws_access_key_id`,
    /// `allow_http` and so on. Those that are not given are read from the environment, as `AWS_ACCESS_KEY_ID`. Nothing
    /// is asked of the store yet.
    ///
    /// # Errors
    /// [`StoreError::Failed`]: an address or an option that is not known, or lacks something.
    pub fn open<K, V>(url: &str, options: impl IntoIterator<Item = (K, V)>) -> Result<Self, StoreError>
    where
        K: Into<String>,
        V: Into<String>,
    {
        let url = Url::parse(url).map_err(failed)?;
        let (scheme, prefix) = ObjectStoreScheme::parse(&url).map_err(failed)?;
        let is_option = |name: &str| match scheme {
            ObjectStoreScheme::AmazonS3 => name.parse::<AmazonS3ConfigKey>().is_ok(),
            ObjectStoreScheme::GoogleCloudStorage => name.parse::<GoogleConfigKey>().is_ok(),
            ObjectStoreScheme::MicrosoftAzure => name.parse::<AzureConfigKey>().is_ok(),
            _ => false,
        };
        let mut all: Vec<(String, String)> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| VARIABLES.iter().any(|&variable| name.starts_with(variable)))
            .map(|(name, value)| (name.to_ascii_lowercase(), value))
            .filter(|(name, _)| is_option(name))
            .collect();
        for (name, value) in options {
            let name = name.into().to_ascii_lowercase();
            if !is_option(&name) {
                return Err(failed(format!("{name:?} is no option of {}", url.scheme())));
            }
            all.push((name, value.into()));
        }
        // For TLS; an application's own provider, which it has installed before, stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let longest = Arc::<LongestBlock>::default();
        let http = Bounded(longest.clone());
        let store: Arc<dyn ObjectStore> = match scheme {
            ObjectStoreScheme::AmazonS3 => bounded!(AmazonS3Builder, url, all, http),
            ObjectStoreScheme::GoogleCloudStorage => bounded!(GoogleCloudStorageBuilder, url, all, http),
            ObjectStoreScheme::MicrosoftAzure => bounded!(MicrosoftAzureBuilder, url, all, http),
            _ => parse_url(&url).map_err(failed)?.0.into(),
        };
        Ok(Self { store, prefix, timeout: TIMEOUT, longest, asks_first: Arc::default() })
    }

    /// The most time of a call, all its attempts included; of a chain for each block, 16 of which are read at once. It
    /// is 2 seconds unless this is called, as a [`Tier`](crate::Tier)'s deadline is.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    fn path(&self, key: &BlockKey) -> Path {
        let name = key.to_string();
        self.prefix.clone().join(&name[..2]).join(name)
    }

    /// Runs a call on the runtime, and waits for it. That is possible on every thread, even on one of a runtime.
    fn run<T: Send + 'static>(&self, call: impl Future<Output = T> + Send + 'static) -> Result<T, StoreError> {
        let runtime = runtime()?;
        let (sender, receiver) = sync_channel(1);
        runtime.spawn(async move {
            // The one who waits is there until this is sent.
            let _ = sender.send(call.await);
        });
        receiver.recv().map_err(|_| failed("the call has panicked"))
    }

    /// Runs a call that is late after the timeout.
    fn call<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.run(in_time(self.timeout, call))?
    }

    /// Reads the block of a key.
    fn read(&self, key: &BlockKey) -> impl Future<Output = Result<Option<Block>, StoreError>> + Send + use<> {
        let (store, path, key, longest) = (self.store.clone(), self.path(key), *key, self.longest.clone());
        in_time(self.timeout, async move {
            let Some(found) = existing(store.get(&path).await)? else { return Ok(None) };
            // Before there is memory for it: an object may have any length.
            longest.check(found.meta.size)?;
            Ok(Some(Block::verify(&key, found.bytes().await.map_err(refused)?)?))
        })
    }
}

/// Runs a call that is late after `limit`.
async fn in_time<T>(limit: Duration, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    timeout(limit, call).await.unwrap_or(Err(StoreError::Late(limit)))
}

/// None if there is no such object.
fn existing<T>(result: Result<T, Error>) -> Result<Option<T>, StoreError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(refused(error)),
    }
}

/// The error of this type that another one comes from.
fn cause<T: StdError + 'static>(error: &Error) -> Option<&T> {
    let error: &(dyn StdError + 'static) = error;
    std::iter::successors(Some(error), |&error| error.source()).find_map(<dyn StdError>::downcast_ref)
}

/// A bad block, where an answer is too long for one; or else a failure.
fn refused(error: Error) -> StoreError {
    let bad = cause::<BlockError>(&error).copied();
    bad.map_or_else(|| failed(error), StoreError::Bad)
}

impl BlockStore for ObjectTier {
    fn get(&self, key: &BlockKey) -> Result<Option<Block>, StoreError> {
        self.run(self.read(key))?
    }

    fn put(&self, key: &BlockKey, block: Block) -> Result<(), StoreError> {
        let (store, path, asks_first) = (self.store.clone(), self.path(key), self.asks_first.clone());
        self.call(async move {
            let payload: PutPayload = block.parts().into_iter().collect();
            if !asks_first.load(Ordering::Relaxed) {
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                match store.put_opts(&path, payload.clone(), options).await {
                    Ok(_) | Err(Error::AlreadyExists { .. }) => return Ok(()),
                    Err(Error::NotImplemented { .. }) => {}
                    Err(error) if cause::<NotImplemented>(&error).is_some() => {}
                    Err(error) => return Err(refused(error)),
                }
                asks_first.store(true, Ordering::Relaxed);
            }
            if existing(store.head(&path).await)?.is_none() {
                store.put(&path, payload).await.map_err(refused)?;
            }
            Ok(())
        })
    }

    fn contains(&self, key: &BlockKey) -> Result<bool, StoreError> {
        let (store, path) = (self.store.clone(), self.path(key));
        self.call(async move { Ok(existing(store.head(&path).await)?.is_some()) })
    }

    fn delete(&self, key: &BlockKey) -> Result<(), StoreError> {
        let (store, path) = (self.store.clone(), self.path(key));
        self.call(async move { existing(store.delete(&path).await).map(drop) })
    }

    fn expect_blocks(&self, nbytes: u64) {
        self.longest.expect(nbytes);
    }

    fn get_chain(&self, keys: &[BlockKey]) -> (Vec<Block>, Option<StoreError>) {
        let reads: Vec<_> = keys.iter().map(|key| self.read(key)).collect();
        let found = self.run(async move {
            let (mut found, mut reads) = (Vec::new(), stream::iter(reads).buffered(CONCURRENT));
            while let Some(block) = reads.next().await {
                let is_last = !matches!(block, Ok(Some(_)));
                found.push(block);
                if is_last {
                    break;
                }
            }
            found
        });
        found.map_or_else(|error| (Vec::new(), Some(error)), up_to_missing)
    }
}

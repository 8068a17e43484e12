//! Blocks in an object store.

use std::fmt;
use std::io;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use kvcache_manager::{Block, BlockKey, BlockStore, StoreError, up_to_missing};
use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, ObjectStoreScheme, PutMode, PutOptions, parse_url_opts};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use url::Url;

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
/// is found there; a block that was altered does not verify, but one that was made on purpose does.
pub struct ObjectTier {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    timeout: Duration,
}

impl fmt::Debug for ObjectTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectTier({}, {})", self.store, self.prefix)
    }
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
        let (scheme, _) = ObjectStoreScheme::parse(&url).map_err(failed)?;
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
        let (store, prefix) = parse_url_opts(&url, all).map_err(failed)?;
        Ok(Self { store: store.into(), prefix, timeout: TIMEOUT })
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
        let (store, path, key) = (self.store.clone(), self.path(key), *key);
        in_time(self.timeout, async move {
            let Some(found) = existing(store.get(&path).await)? else { return Ok(None) };
            Ok(Some(Block::verify(&key, found.bytes().await.map_err(failed)?)?))
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
        Err(error) => Err(failed(error)),
    }
}

impl BlockStore for ObjectTier {
    fn get(&self, key: &BlockKey) -> Result<Option<Block>, StoreError> {
        self.run(self.read(key))?
    }

    fn put(&self, key: &BlockKey, block: Block) -> Result<(), StoreError> {
        let (store, path) = (self.store.clone(), self.path(key));
        self.call(async move {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            match store.put_opts(&path, block.parts().into_iter().collect(), options).await {
                Ok(_) | Err(Error::AlreadyExists { .. }) => Ok(()),
                Err(error) => Err(failed(error)),
            }
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

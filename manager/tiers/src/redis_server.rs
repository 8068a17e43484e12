//! Blocks in a Redis server.

use std::fmt;
use std::slice;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use kvcache_manager::{Block, BlockKey, BlockStore, LongestBlock, StoreError, up_to_missing};
use redis::{Client, Cmd, Connection, FromRedisValue, Pipeline, RedisError, cmd};

use crate::tiers::CHUNK;

const TIMEOUT: Duration = Duration::from_secs(2);

/// Blocks in a Redis server, or in one that speaks its protocol, as Valkey. A block is a string named `kvcache:` and
/// its key.
///
/// The server's `maxmemory` is its bound, and `maxmemory-policy allkeys-lru` makes it evict; with `noeviction`, its
/// default, a full server refuses puts. It knows the time of a use by seconds, so it does not evict tails first.
/// Connections are not encrypted.
pub struct RedisTier {
    client: Client,
    timeout: Duration,
    expiry: Option<Duration>,
    longest: LongestBlock,
    /// Connections whose last call has succeeded.
    idle: Mutex<Vec<Connection>>,
}

impl fmt::Debug for RedisTier {
    /// Without the password that the address may have.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisTier({})", self.client.get_connection_info().addr())
    }
}

impl RedisTier {
    /// A server by its address, `redis://host:port/db` or `unix:///path`. It is not connected to yet.
    ///
    /// # Errors
    /// [`StoreError::Failed`]: an address that is not of this form.
    pub fn open(url: &str) -> Result<Self, StoreError> {
        let client = Client::open(url).map_err(|error| StoreError::Failed(error.into()))?;
        Ok(Self { client, timeout: TIMEOUT, expiry: None, longest: LongestBlock::default(), idle: Mutex::default() })
    }

    /// The time for which connecting, writing and reading may each stall; 2 seconds unless this is called.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The server removes a block so long after it was put; never unless this is called.
    pub fn expiry(mut self, expiry: Duration) -> Self {
        self.expiry = Some(expiry.max(Duration::from_millis(1)));
        self
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(&self) -> Result<Connection, RedisError> {
        let connection = self.client.get_connection_with_timeout(self.timeout)?;
        connection.set_read_timeout(Some(self.timeout))?;
        connection.set_write_timeout(Some(self.timeout))?;
        Ok(connection)
    }

    /// Asks on a connection that is idle, or else on a new one.
    fn query<T>(&self, ask: impl Fn(&mut Connection) -> Result<T, RedisError>) -> Result<T, RedisError> {
        loop {
            let idle = self.idle().pop();
            let is_old = idle.is_some();
            let mut connection = idle.map_or_else(|| self.connect(), Ok)?;
            match ask(&mut connection) {
                Ok(answer) => {
                    self.idle().push(connection);
                    return Ok(answer);
                }
                // The server may have closed it, as when it was restarted: another one, at last a new one.
                Err(error) if is_old && error.is_connection_dropped() => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn call<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, StoreError> {
        self.query(|connection| command.query(connection)).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: RedisError) -> StoreError {
        if error.is_timeout() { StoreError::Late(self.timeout) } else { StoreError::Failed(error.into()) }
    }

    /// The blocks of keys. Of a value that is longer than a block, as long as another program has left it there, only
    /// so much is asked for that this can be told.
    fn read(&self, keys: &[BlockKey]) -> Result<Vec<Result<Option<Block>, StoreError>>, StoreError> {
        let longest = self.longest.nbytes();
        let mut gets = Pipeline::with_capacity(keys.len());
        gets.ignore_errors(); // of a value that is no string
        keys.iter().for_each(|key| _ = gets.cmd("GETRANGE").arg(name(key)).arg(0).arg(longest));
        let found = self.query(|connection| gets.query::<Vec<Result<Bytes, RedisError>>>(connection));
        let found = found.map_err(|error| self.failed(error))?;
        let verified = |(key, bytes): (&BlockKey, Result<Bytes, RedisError>)| {
            let bytes = bytes.map_err(|error| self.failed(error))?;
            self.longest.check(bytes.len() as u64)?;
            // Of what is not there it gives nothing.
            Ok((!bytes.is_empty()).then(|| Block::verify(key, bytes)).transpose()?)
        };
        Ok(keys.iter().zip(found).map(verified).collect())
    }
}

fn name(key: &BlockKey) -> String {
    format!("kvcache:{key}")
}

impl BlockStore for RedisTier {
    fn get(&self, key: &BlockKey) -> Result<Option<Block>, StoreError> {
        self.read(slice::from_ref(key))?.pop().unwrap_or(Ok(None))
    }

    fn put(&self, key: &BlockKey, block: Block) -> Result<(), StoreError> {
        let mut set = cmd("SET");
        set.arg(name(key)).arg(block.parts().concat()).arg("NX");
        if let Some(expiry) = self.expiry {
            set.arg("PX").arg(u64::try_from(expiry.as_millis()).unwrap_or(i64::MAX as u64));
        }
        // Nothing is answered if it is there already.
        self.call::<Option<String>>(&set).map(drop)
    }

    fn contains(&self, key: &BlockKey) -> Result<bool, StoreError> {
        self.call(cmd("EXISTS").arg(name(key)))
    }

    fn delete(&self, key: &BlockKey) -> Result<(), StoreError> {
        self.call(cmd("DEL").arg(name(key)))
    }

    fn expect_blocks(&self, nbytes: u64) {
        self.longest.expect(nbytes);
    }

    fn get_chain(&self, keys: &[BlockKey]) -> (Vec<Block>, Option<StoreError>) {
        let mut blocks = Vec::new();
        for keys in keys.chunks(CHUNK) {
            let (found, error) = match self.read(keys) {
                Ok(found) => up_to_missing(found),
                Err(error) => (Vec::new(), Some(error)),
            };
            let is_whole = found.len() == keys.len();
            blocks.extend(found);
            if !is_whole {
                return (blocks, error);
            }
        }
        (blocks, None)
    }
}

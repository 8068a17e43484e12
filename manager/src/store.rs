//! Where rows are kept outside the cache: blocks by key.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use sha2::block_api::compress256;
use sha2::{Digest, Sha256};

use crate::block::{Block, BlockError};

/// The name of a block, of 32 bytes. Written as 64 hexadecimal digits.
///
/// The name of a page of known tokens is what SHA-256's compression function makes of the page's tokens and of the name
/// of the page before it, which is its state; before the first page it is a digest of all that makes rows of the same
/// tokens differ. So a name is the same in every process that stores such rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey([u8; 32]);

impl BlockKey {
    /// The digest of some parts, one after the other.
    pub(crate) fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hash = Sha256::new();
        parts.into_iter().for_each(|part| hash.update(part));
        Self(hash.finalize().into())
    }

    /// The name of a page of these tokens behind the page of this name. All pages of a chain have as many.
    pub(crate) fn followed_by(&self, tokens: &[u32]) -> Self {
        let mut state = [0; 8];
        state.iter_mut().zip(self.0.as_chunks().0).for_each(|(word, &bytes)| *word = u32::from_be_bytes(bytes));
        for tokens in tokens.chunks(16) {
            let mut block = [0; 64];
            block.as_chunks_mut().0.iter_mut().zip(tokens).for_each(|(bytes, token)| *bytes = token.to_le_bytes());
            compress256(&mut state, &[block]);
        }
        let mut key = [0; 32];
        key.as_chunks_mut().0.iter_mut().zip(state).for_each(|(bytes, word)| *bytes = word.to_be_bytes());
        Self(key)
    }

    /// A key of these bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A text that is no key: 64 lowercase hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected 64 lowercase hexadecimal digits")]
pub struct NoBlockKey;

impl FromStr for BlockKey {
    type Err = NoBlockKey;

    fn from_str(text: &str) -> Result<Self, NoBlockKey> {
        let digit = |&byte: &u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(NoBlockKey),
        };
        let mut key = [0; 32];
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != key.len() || !rest.is_empty() {
            return Err(NoBlockKey);
        }
        for (byte, [high, low]) in key.iter_mut().zip(pairs) {
            *byte = digit(high)? << 4 | digit(low)?;
        }
        Ok(Self(key))
    }
}

/// Why a store has not done what it was asked for. To a manager all of these are a miss.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum StoreError {
    /// It did not answer in time.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// It is not asked: it has not answered an earlier question yet, or has failed shortly before.
    #[error("not asked: an earlier call has not ended or has failed")]
    Busy,
    /// The block is larger than what it may hold.
    #[error("a block of {len} bytes is larger than the capacity, {capacity} bytes")]
    Capacity {
        /// The block's bytes.
        len: u64,
        /// The most that it may hold.
        capacity: u64,
    },
    /// It has other bytes than the block's.
    #[error(transparent)]
    Bad(#[from] BlockError),
    /// It failed.
    #[error(transparent)]
    Failed(#[from] Box<dyn std::error::Error + Send + Sync>),
}

impl From<std::io::Error> for StoreError {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.into())
    }
}

/// What a store holds, as far as it knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// How many blocks.
    pub blocks: Option<u64>,
    /// Their bytes.
    pub nbytes: Option<u64>,
    /// The blocks that it has removed to stay within its capacity.
    pub evicted: u64,
}

/// Blocks of rows by key, outside the cache: in host memory, in files, on another machine. A block is immutable: what
/// is put under a key once is what any later `put` of the key has.
///
/// A manager calls it from one thread at a time, and other managers may at the same time. It waits for every answer:
/// a store that may be slow needs a deadline of its own, as `kvcache-tiers` adds to any store. A store that keeps bytes
/// writes [`Block::parts`] and gives what [`Block::verify`] makes of them. Whatever goes wrong is a miss.
pub trait BlockStore: fmt::Debug + Send + Sync {
    /// The block of a key, if it is there.
    ///
    /// # Errors
    /// [`StoreError`].
    fn get(&self, key: &BlockKey) -> Result<Option<Block>, StoreError>;

    /// Keeps a block, as long as there is room.
    ///
    /// # Errors
    /// [`StoreError`]; the block is not there then, or whole.
    fn put(&self, key: &BlockKey, block: Block) -> Result<(), StoreError>;

    /// Whether a block is there.
    ///
    /// # Errors
    /// [`StoreError`].
    fn contains(&self, key: &BlockKey) -> Result<bool, StoreError>;

    /// Removes a block, if it is there.
    ///
    /// # Errors
    /// [`StoreError`].
    fn delete(&self, key: &BlockKey) -> Result<(), StoreError>;

    /// The blocks of a chain, each of which is of no use without those before it: up to the first that is not there.
    /// A store that evicts lets go of the last first. Gives what it has with the error that ended it.
    fn get_chain(&self, keys: &[BlockKey]) -> (Vec<Block>, Option<StoreError>) {
        up_to_missing(keys.iter().map(|key| self.get(key)))
    }

    /// Says that blocks will be asked for soon: a store that has them far away may bring them nearer meanwhile. Does
    /// not wait.
    fn prefetch(&self, _keys: &[BlockKey]) {}

    /// What it holds. Does not wait.
    fn usage(&self) -> Usage {
        Usage::default()
    }
}

/// The blocks of a chain, as [`BlockStore::get_chain`] gives them: those that were found, up to the first that was not.
pub fn up_to_missing(
    found: impl IntoIterator<Item = Result<Option<Block>, StoreError>>,
) -> (Vec<Block>, Option<StoreError>) {
    let mut blocks = Vec::new();
    for block in found {
        match block {
            Ok(Some(block)) => blocks.push(block),
            Ok(None) => break,
            Err(error) => return (blocks, Some(error)),
        }
    }
    (blocks, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From SHA-256's initial state on, the tokens of a padded message give its digest.
    #[test]
    fn tokens_are_compressed_as_sha_256_does() {
        let initial: BlockKey = "6a09e667bb67ae853c6ef372a54ff53a510e527f9b05688c1f83d9ab5be0cd19".parse().unwrap();
        let message: Vec<u8> = (0..116).collect();
        let mut padded = [&message[..], &[0x80, 0, 0, 0]].concat();
        padded.extend((8 * message.len() as u64).to_be_bytes());
        let tokens: Vec<u32> = padded.as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect();
        assert_eq!(initial.followed_by(&tokens), BlockKey::digest([&message[..]]));
    }

    #[test]
    fn keys_are_read_as_written() {
        let key = BlockKey::digest([&b"a"[..], b"bc"]);
        assert_eq!(key, BlockKey::digest([&b"abc"[..]]));
        assert_eq!(key.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(key.to_string().parse(), Ok(key));
        for text in ["", &key.to_string()[1..], &key.to_string().to_uppercase(), &format!("{key}00")] {
            assert_eq!(text.parse::<BlockKey>(), Err(NoBlockKey), "{text}");
        }
    }
}

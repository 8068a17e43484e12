//! Blocks: the keys that name them, and their bytes: a header, rows, and a checksum.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use sha2::block_api::compress256;
use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::Xxh3;

/// The first bytes of a block: its format and version.
const MAGIC: [u8; 8] = *b"kvblock1";
/// Magic, kind, key, number of rows, bytes of a row; all integers little-endian.
const HEADER: usize = 64;
const CHECKSUM: usize = 16;

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

    /// The name of a page of these tokens after the page of this name. All pages of a chain have as many.
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
        let mut key = [0; 32];
        if text.len() != 2 * key.len() || !text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(NoBlockKey);
        }
        for (i, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| NoBlockKey)?;
        }
        Ok(Self(key))
    }
}

/// The kind of a block's rows, for stores that treat the two differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// A page of known tokens, which any sequence of the same tokens can begin with.
    Prefix,
    /// Rows of one sequence of one manager, which nobody else can name.
    Private,
}

/// Why bytes are not the block that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum BlockError {
    /// Not as long as a block of its rows.
    #[error("the block is cut or too long")]
    Length,
    /// No block, or one of another version.
    #[error("no block of this version")]
    Format,
    /// Other bytes than those that were put.
    #[error("the checksum differs")]
    Checksum,
    /// The block of another key.
    #[error("the block of another key")]
    Key,
    /// Rows of another size, or another number of them.
    #[error("rows of another size or number")]
    Geometry,
}

/// Rows under a key. Bytes from outside become a block by [`verify`](Self::verify) alone, so one that stays in this
/// process is not verified again; its checksum is computed where its bytes leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    header: [u8; HEADER],
    rows: Bytes,
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

fn checksum(header: &[u8], rows: &[u8]) -> [u8; CHECKSUM] {
    let mut hash = Xxh3::new();
    hash.update(header);
    hash.update(rows);
    hash.digest128().to_le_bytes()
}

impl Block {
    /// A block of rows of `row_len` bytes each. They are not copied.
    ///
    /// # Errors
    /// [`BlockError::Geometry`] if these are not whole rows.
    pub fn new(kind: BlockKind, key: &BlockKey, rows: Bytes, row_len: usize) -> Result<Self, BlockError> {
        if row_len == 0 || !rows.len().is_multiple_of(row_len) {
            return Err(BlockError::Geometry);
        }
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&MAGIC);
        header[8..16].copy_from_slice(&u64::from(kind == BlockKind::Private).to_le_bytes());
        header[16..48].copy_from_slice(key.as_bytes());
        header[48..56].copy_from_slice(&((rows.len() / row_len) as u64).to_le_bytes());
        header[56..].copy_from_slice(&(row_len as u64).to_le_bytes());
        Ok(Self { header, rows })
    }

    /// The bytes that a block begins with, before its rows.
    pub const HEADER: usize = HEADER;

    /// The length of a block with rows of so many bytes in all.
    pub const fn len_with(rows: u64) -> u64 {
        rows.saturating_add((HEADER + CHECKSUM) as u64)
    }

    /// The length that a block has by its [header](Self::HEADER), so that a store can tell before it reads the rest;
    /// none if the header is cut, or says what no length can be.
    pub fn len_of(header: &[u8]) -> Option<u64> {
        let header: &[u8; HEADER] = header.first_chunk()?;
        let rows = number(&header[48..56]).checked_mul(number(&header[56..]))?;
        rows.checked_add((HEADER + CHECKSUM) as u64)
    }

    /// The block of a key, if these bytes, which a store has kept, are it. They are not copied.
    ///
    /// # Errors
    /// [`BlockError`], but for [`BlockError::Geometry`]: the caller checks that.
    pub fn verify(key: &BlockKey, bytes: Bytes) -> Result<Self, BlockError> {
        let Some(header) = bytes.first_chunk() else { return Err(BlockError::Length) };
        if header[..8] != MAGIC || number(&header[8..16]) > 1 {
            return Err(BlockError::Format);
        }
        if Self::len_of(header) != Some(bytes.len() as u64) {
            return Err(BlockError::Length);
        }
        let end = bytes.len() - CHECKSUM;
        if checksum(header, &bytes[HEADER..end]) != bytes[end..] {
            return Err(BlockError::Checksum);
        }
        if header[16..48] != *key.as_bytes() {
            return Err(BlockError::Key);
        }
        Ok(Self { header: *header, rows: bytes.slice(HEADER..end) })
    }

    /// The kind of its rows.
    pub fn kind(&self) -> BlockKind {
        if number(&self.header[8..16]) == 0 { BlockKind::Prefix } else { BlockKind::Private }
    }

    /// The number of its bytes in a store.
    pub fn nbytes(&self) -> u64 {
        Self::len_with(self.rows.len() as u64)
    }

    /// Its bytes in a store, in order: a header, the rows, which are not copied, and a checksum of both.
    pub fn parts(&self) -> [Bytes; 3] {
        let checksum = checksum(&self.header, &self.rows);
        [Bytes::copy_from_slice(&self.header), self.rows.clone(), Bytes::copy_from_slice(&checksum)]
    }

    /// Checks that it is the block of a key, with that many rows of this size.
    pub(crate) fn check(&self, key: &BlockKey, num_rows: usize, row_len: usize) -> Result<(), BlockError> {
        if self.header[16..48] != *key.as_bytes() {
            return Err(BlockError::Key);
        }
        let expected = [num_rows, row_len].map(|number| (number as u64).to_le_bytes());
        if self.header[48..] == *expected.as_flattened() { Ok(()) } else { Err(BlockError::Geometry) }
    }

    /// Its rows in canonical order.
    pub(crate) fn rows(&self) -> &Bytes {
        &self.rows
    }

    /// Its rows in canonical order.
    pub(crate) fn into_rows(self) -> Bytes {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_and_every_altered_byte_is_found() {
        let (key, other) = (BlockKey::from_bytes([7; 32]), BlockKey::from_bytes([8; 32]));
        let rows = Bytes::from_static(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        let block = Block::new(BlockKind::Private, &key, rows, 5).unwrap();
        let bytes = block.parts().concat();
        assert_eq!((block.nbytes(), block.kind()), (bytes.len() as u64, BlockKind::Private));
        assert_eq!(Block::verify(&key, bytes.clone().into()), Ok(block.clone()));
        assert_eq!((block.check(&key, 3, 5), block.check(&key, 5, 3)), (Ok(()), Err(BlockError::Geometry)));
        assert_eq!(block.check(&other, 3, 5), Err(BlockError::Key));
        assert_eq!(Block::verify(&other, bytes.clone().into()), Err(BlockError::Key));
        for len in 0..bytes.len() {
            assert!(Block::verify(&key, bytes[..len].to_vec().into()).is_err(), "{len}");
        }
        for at in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            assert!(Block::verify(&key, altered.into()).is_err(), "{at}");
        }
    }

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

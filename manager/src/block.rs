//! The bytes of a block: what it is, rows, and a checksum.

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use crate::store::BlockKey;

/// What a block begins with: its format and version.
const MAGIC: [u8; 8] = *b"kvblock1";
/// Magic, kind, key, number of rows, bytes of a row; all integers little-endian.
pub(crate) const HEADER: usize = 64;
const CHECKSUM: usize = 16;

/// What a block holds, for stores that treat the two differently.
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

/// A verified block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    bytes: Bytes,
    kind: BlockKind,
    num_rows: usize,
    row_len: usize,
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

impl Block {
    /// A block of rows of `row_len` bytes each.
    ///
    /// # Errors
    /// [`BlockError::Geometry`] if these are not whole rows.
    pub fn new(kind: BlockKind, key: &BlockKey, rows: &[u8], row_len: usize) -> Result<Self, BlockError> {
        if row_len == 0 || !rows.len().is_multiple_of(row_len) {
            return Err(BlockError::Geometry);
        }
        let num_rows = rows.len() / row_len;
        let mut bytes = vec![0; Self::len(num_rows, row_len)];
        bytes[HEADER..HEADER + rows.len()].copy_from_slice(rows);
        Self::seal(&mut bytes, kind, key, num_rows, row_len);
        Ok(Self { bytes: bytes.into(), kind, num_rows, row_len })
    }

    /// What these bytes say that they hold, if they begin as a block does. They are not verified.
    pub fn kind_of(bytes: &[u8]) -> Option<BlockKind> {
        match (bytes.get(..8)? == MAGIC, number(bytes.get(8..16)?)) {
            (true, 0) => Some(BlockKind::Prefix),
            (true, 1) => Some(BlockKind::Private),
            _ => None,
        }
    }

    /// The length of a block, in bytes.
    pub(crate) fn len(num_rows: usize, row_len: usize) -> usize {
        HEADER + num_rows * row_len + CHECKSUM
    }

    /// Completes bytes whose rows are in place, from byte [`HEADER`] on.
    pub(crate) fn seal(bytes: &mut [u8], kind: BlockKind, key: &BlockKey, num_rows: usize, row_len: usize) {
        let end = bytes.len() - CHECKSUM;
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&u64::from(kind == BlockKind::Private).to_le_bytes());
        bytes[16..48].copy_from_slice(key.as_bytes());
        bytes[48..56].copy_from_slice(&(num_rows as u64).to_le_bytes());
        bytes[56..HEADER].copy_from_slice(&(row_len as u64).to_le_bytes());
        let checksum = xxh3_128(&bytes[..end]);
        bytes[end..].copy_from_slice(&checksum.to_le_bytes());
    }

    /// The block of a key, if these bytes are it.
    ///
    /// # Errors
    /// [`BlockError`], but for [`BlockError::Geometry`]: that is for who asked to check.
    pub fn verify(key: &BlockKey, bytes: Bytes) -> Result<Self, BlockError> {
        let Some(end) = bytes.len().checked_sub(CHECKSUM).filter(|&end| end >= HEADER) else {
            return Err(BlockError::Length);
        };
        let kind = Self::kind_of(&bytes).ok_or(BlockError::Format)?;
        let (num_rows, row_len) = (number(&bytes[48..56]), number(&bytes[56..HEADER]));
        if num_rows.checked_mul(row_len) != Some((end - HEADER) as u64) {
            return Err(BlockError::Length);
        }
        if xxh3_128(&bytes[..end]).to_le_bytes() != bytes[end..] {
            return Err(BlockError::Checksum);
        }
        if bytes[16..48] != *key.as_bytes() {
            return Err(BlockError::Key);
        }
        Ok(Self { bytes, kind, num_rows: num_rows as usize, row_len: row_len as usize })
    }

    /// What it holds.
    pub fn kind(&self) -> BlockKind {
        self.kind
    }

    /// Checks that it has so many rows of this size.
    pub(crate) fn check(&self, num_rows: usize, row_len: usize) -> Result<(), BlockError> {
        if (self.num_rows, self.row_len) == (num_rows, row_len) { Ok(()) } else { Err(BlockError::Geometry) }
    }

    /// Its rows in canonical order.
    pub(crate) fn rows(&self) -> &[u8] {
        &self.bytes[HEADER..self.bytes.len() - CHECKSUM]
    }

    /// The bytes that it was made of.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_and_every_altered_byte_is_found() {
        let key = BlockKey::from_bytes([7; 32]);
        let mut bytes = vec![0; Block::len(3, 5)];
        bytes[HEADER..HEADER + 15].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        Block::seal(&mut bytes, BlockKind::Private, &key, 3, 5);
        let block = Block::verify(&key, bytes.clone().into()).unwrap();
        assert_eq!((block.kind(), block.rows()), (BlockKind::Private, &bytes[HEADER..HEADER + 15]));
        assert_eq!((block.check(3, 5), block.check(5, 3)), (Ok(()), Err(BlockError::Geometry)));
        assert_eq!(Block::verify(&BlockKey::from_bytes([8; 32]), bytes.clone().into()), Err(BlockError::Key));
        for len in 0..bytes.len() {
            assert!(Block::verify(&key, bytes[..len].to_vec().into()).is_err(), "{len}");
        }
        for at in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            assert!(Block::verify(&key, altered.into()).is_err(), "{at}");
        }
    }
}

//! The bytes of a block: what it is, rows, and a checksum.

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use crate::store::BlockKey;

/// What a block begins with: its format and version.
const MAGIC: [u8; 8] = *b"kvblock1";
/// Magic, kind, key, number of rows, bytes of a row; all integers little-endian.
const HEADER: usize = 64;
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
    /// [`BlockError`], but for [`BlockError::Geometry`]: that is for who asked to check.
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

    /// What it holds.
    pub fn kind(&self) -> BlockKind {
        if number(&self.header[8..16]) == 0 { BlockKind::Prefix } else { BlockKind::Private }
    }

    /// The number of its bytes in a store.
    pub fn nbytes(&self) -> u64 {
        (HEADER + self.rows.len() + CHECKSUM) as u64
    }

    /// Its bytes in a store, in order: a header, the rows, which are not copied, and a checksum of both.
    pub fn parts(&self) -> [Bytes; 3] {
        let checksum = checksum(&self.header, &self.rows);
        [Bytes::copy_from_slice(&self.header), self.rows.clone(), Bytes::copy_from_slice(&checksum)]
    }

    /// Checks that it is the block of a key, with so many rows of this size.
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
}

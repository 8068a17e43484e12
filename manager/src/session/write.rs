//! Writing a session.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use super::contents::{SavedSequence, header};
use super::error::SessionError;
use super::header::{Header, PREFIX};
use super::read::{BLOCK, io};
use super::spec::SessionSpec;

/// What is written, but for the rows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Session {
    pub(crate) spec: SessionSpec,
    pub(crate) sequences: Vec<SavedSequence>,
    /// The rows that sequences have, each of them once.
    pub(crate) num_rows: usize,
}

/// Writes a session to a file, which then has this session whole or is as it was before. `read_rows` gives the rows of
/// a range.
pub(crate) fn write<E: From<SessionError>>(
    path: &Path,
    session: &Session,
    read_rows: impl FnMut(Range<usize>, &mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    replace(path, |file| write_to(file, session, read_rows))
}

/// Writes a file, which then has all that `fill` has written or is as it was before.
pub(crate) fn replace<E: From<SessionError>>(
    path: &Path,
    fill: impl FnOnce(&mut File) -> Result<(), E>,
) -> Result<(), E> {
    // The directory, without which a file name is in the current one.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(directory).map_err(io("create a file"))?;
    fill(file.as_file_mut())?;
    file.as_file().sync_all().map_err(io("write the file to disk"))?;
    file.persist(path).map_err(|error| io("rename the file")(error.error))?;
    sync_directory(directory)?;
    Ok(())
}

/// Writes the entry of a renamed file to disk.
#[cfg(unix)]
fn sync_directory(directory: &Path) -> Result<(), SessionError> {
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(io("write the directory to disk"))
}

/// Other systems have no such call.
#[cfg(not(unix))]
fn sync_directory(_: &Path) -> Result<(), SessionError> {
    Ok(())
}

/// Writes all bytes of a session, the digest last.
pub(super) fn write_to<E: From<SessionError>>(
    file: &mut (impl Write + Seek),
    session: &Session,
    mut read_rows: impl FnMut(Range<usize>, &mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let Session { spec, sequences, num_rows } = session;
    let mut writer = Writer::new(file, &header(spec, sequences, *num_rows)?)?;
    for sequence in sequences {
        writer.write_all(&sequence.rows, |row| row.to_le_bytes())?;
    }
    for sequence in sequences {
        writer.write_all(&sequence.tokens, |token| token.to_le_bytes())?;
    }
    for sequence in sequences {
        writer.write_all(&sequence.positions, |position| position.to_le_bytes())?;
    }
    let step = (BLOCK / spec.row_len.max(1)).max(1);
    let mut rows = vec![0; step.min(*num_rows) * spec.row_len];
    for start in (0..*num_rows).step_by(step) {
        let end = (start + step).min(*num_rows);
        let rows = &mut rows[..(end - start) * spec.row_len];
        read_rows(start..end, rows)?;
        writer.write(rows)?;
    }
    writer.finish()?;
    Ok(())
}

pub(crate) struct Writer<'a, W> {
    file: &'a mut W,
    hash: Xxh3,
    block: Vec<u8>,
    /// Where the digest goes.
    digest: u64,
}

impl<'a, W: Write + Seek> Writer<'a, W> {
    /// Begins a file with a header, whose digest is zeros.
    pub(crate) fn new(file: &'a mut W, header: &Header) -> Result<Self, SessionError> {
        let header = header.to_bytes()?;
        let digest = (PREFIX + Header::parse(&header[PREFIX..])?.digest.start) as u64;
        let mut writer = Self { file, hash: Xxh3::new(), block: Vec::new(), digest };
        writer.write(&header)?;
        Ok(writer)
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        self.hash.update(bytes);
        self.file.write_all(bytes).map_err(io("write the file"))
    }

    /// Writes numbers, their lowest byte first.
    pub(crate) fn write_all<T: Copy, const N: usize>(
        &mut self,
        values: &[T],
        bytes: impl Fn(T) -> [u8; N],
    ) -> Result<(), SessionError> {
        let mut block = std::mem::take(&mut self.block);
        for values in values.chunks(BLOCK / N) {
            block.clear();
            block.extend(values.iter().flat_map(|&value| bytes(value)));
            self.write(&block)?;
        }
        self.block = block;
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<(), SessionError> {
        let digest = format!("{:032x}", self.hash.digest128());
        self.file.seek(SeekFrom::Start(self.digest)).map_err(io("write the file"))?;
        self.file.write_all(digest.as_bytes()).map_err(io("write the file"))
    }
}

//! The files of the cases: in folders, or, with the feature `embedded`, in the library.

use std::fs;
#[cfg(feature = "program")]
use std::io;
use std::path::{Path, PathBuf};

#[cfg(feature = "program")]
use tempfile::TempDir;

use crate::case_files::{CaseFiles, Cause, ReadError};

/// What this crate's cases in `folder` hold, by name: those in the library, or, without the feature, those beside its
/// source.
pub(crate) fn committed<C>(
    folder: &str,
    read: impl Fn(&CaseFiles<'_>) -> Result<C, Cause>,
) -> Result<Vec<C>, ReadError> {
    #[cfg(feature = "embedded")]
    return crate::embedded::read(folder, read);
    #[cfg(not(feature = "embedded"))]
    read_folders(&Path::new(kvcache_golden::FOLDER).join(folder), read)
}

pub(crate) fn read_folders<C>(
    folder: &Path,
    read: impl Fn(&CaseFiles<'_>) -> Result<C, Cause>,
) -> Result<Vec<C>, ReadError> {
    let entries = fs::read_dir(folder).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
    let entries = entries.map_err(|error| Cause::from(error).at(folder))?;
    let mut folders: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    folders.sort();
    if folders.is_empty() {
        return Err(Cause::NoCase.at(folder));
    }
    let case = |folder: &PathBuf| {
        read(&CaseFiles {
            folder: folder.clone(),
            yaml: fs::read(folder.join("case.yaml"))?.into(),
            tensors: fs::read(folder.join("tensors.safetensors"))?.into(),
        })
    };
    folders.iter().map(|folder| case(folder).map_err(|cause| cause.at(folder))).collect()
}

/// The functions that give the cases of a suite: this crate's in `folder`, or a caller's.
macro_rules! readers {
    ($folder:literal, $read:ident) => {
        /// The cases of this suite, by name.
        ///
        /// # Errors
        /// If there is none, or one cannot be read.
        pub fn cases() -> Result<Vec<Case>, $crate::ReadError> {
            $crate::files::committed($folder, $read)
        }

        /// The cases in the subfolders of `folder`, by name.
        ///
        /// # Errors
        /// If there is none, or one cannot be read.
        pub fn read_cases(folder: &std::path::Path) -> Result<Vec<Case>, $crate::ReadError> {
            $crate::files::read_folders(folder, $read)
        }
    };
}
pub(crate) use readers;

/// The folder of a case where other programs can read it.
#[cfg(feature = "program")]
pub(crate) struct OnDisk {
    folder: PathBuf,
    /// It is one that was made for this, and goes with it.
    _unpacked: Option<TempDir>,
}

#[cfg(feature = "program")]
impl OnDisk {
    /// The folder itself; of an embedded case one that its files are unpacked to.
    pub(crate) fn new(folder: &Path) -> io::Result<Self> {
        #[cfg(feature = "embedded")]
        if let Some(unpacked) = crate::embedded::unpack(folder) {
            let unpacked = unpacked?;
            return Ok(Self { folder: unpacked.path().to_owned(), _unpacked: Some(unpacked) });
        }
        Ok(Self { folder: folder.to_owned(), _unpacked: None })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }
}

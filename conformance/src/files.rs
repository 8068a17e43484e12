//! The files of the cases: in folders, or, with the feature `embedded`, in the library; and why they
//! cannot be read.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::{fs, io};

use safetensors::Dtype;
#[cfg(feature = "program")]
use tempfile::TempDir;
use thiserror::Error;

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

/// A folder that cannot be read as a case.
#[derive(Debug, Error)]
#[error("golden case {}: {cause}", path.display())]
pub struct ReadError {
    path: PathBuf,
    cause: Cause,
}

#[derive(Debug, Error)]
pub(crate) enum Cause {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("case.yaml: {0}")]
    Yaml(#[from] serde_yaml::Error),
    #[error("tensors.safetensors: {0}")]
    Tensors(#[from] safetensors::SafeTensorError),
    #[error("no case in the folder")]
    NoCase,
    #[error("case.yaml has no steps: nothing would be run")]
    NoSteps,
    #[error("no attribute is called {0}")]
    Attribute(String),
    #[error("no element type is called {0}")]
    Type(String),
    #[error("{page} has no rule {id}")]
    Rule { id: String, page: &'static str },
    #[error("no operator is called {0}")]
    Operator(String),
    #[error("outputs are {0:?}, which no case of the operator has")]
    Outputs(Vec<String>),
    #[error("domain is {got:?}, expected {expected:?}")]
    Domain { got: Option<String>, expected: Option<&'static str> },
    #[error("tensor {name} is {dtype:?} of shape {shape:?}, which no case can hold")]
    Tensor { name: String, dtype: Dtype, shape: Vec<usize> },
}

impl Cause {
    /// Says of which folder this is the cause.
    pub(crate) fn at(self, path: &Path) -> ReadError {
        ReadError { path: path.to_owned(), cause: self }
    }
}

pub(crate) struct CaseFiles<'a> {
    pub(crate) folder: PathBuf,
    pub(crate) yaml: Cow<'a, [u8]>,
    pub(crate) tensors: Cow<'a, [u8]>,
}

impl CaseFiles<'_> {
    pub(crate) fn name(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

//! The cases in the library: the archives of `kvcache-golden`.

use std::io::Read;
use std::path::{Path, PathBuf};

#[cfg(feature = "program")]
use std::{fs, io};

use flate2::read::ZlibDecoder;
use kvcache_golden::ARCHIVES;
use safetensors::{SafeTensorError, SafeTensors};
#[cfg(feature = "program")]
use tempfile::TempDir;

use crate::files::{CaseFiles, Cause, ReadError};

/// What the folders of embedded cases begin with. There is no such folder.
const ROOT: &str = "embedded:";

/// What the cases hold that were in `folder`, by name.
pub(crate) fn read<C>(folder: &str, read: impl Fn(&CaseFiles<'_>) -> Result<C, Cause>) -> Result<Vec<C>, ReadError> {
    let root = Path::new(ROOT).join(folder);
    let archive = archive(folder).map_err(|cause| cause.at(&root))?;
    let mut names: Vec<_> = archive.names().into_iter().filter_map(|path| Some(path.split_once('/')?.0)).collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        return Err(Cause::NoCase.at(&root));
    }
    let case = |folder: PathBuf, name: &str| {
        read(&CaseFiles {
            folder,
            yaml: inflated(&archive, &format!("{name}/case.yaml"))?.into(),
            tensors: inflated(&archive, &format!("{name}/tensors.safetensors"))?.into(),
        })
    };
    names.into_iter().map(|name| case(root.join(name), name).map_err(|cause| cause.at(&root.join(name)))).collect()
}

/// The files of a case in a folder of their own, if `folder` is that of an embedded case. The folder goes when what is
/// given goes.
#[cfg(feature = "program")]
pub(crate) fn unpack(folder: &Path) -> Option<io::Result<TempDir>> {
    let path = folder.strip_prefix(ROOT).ok()?;
    let suite = path.parent()?.to_str()?;
    let case = path.file_name()?.to_str()?;
    let files = || {
        let archive = archive(suite)?;
        let unpacked = tempfile::tempdir()?;
        for file in ["case.yaml", "tensors.safetensors"] {
            fs::write(unpacked.path().join(file), inflated(&archive, &format!("{case}/{file}"))?)?;
        }
        Ok(unpacked)
    };
    Some(files().map_err(|cause: Cause| io::Error::other(cause.to_string())))
}

fn archive(folder: &str) -> Result<SafeTensors<'static>, Cause> {
    let archive = ARCHIVES.iter().find(|(name, _)| *name == folder);
    let (_, bytes) = archive.ok_or_else(|| SafeTensorError::TensorNotFound(folder.to_owned()))?;
    Ok(SafeTensors::deserialize(bytes)?)
}

fn inflated(archive: &SafeTensors<'_>, path: &str) -> Result<Vec<u8>, Cause> {
    let mut bytes = Vec::new();
    ZlibDecoder::new(archive.tensor(path)?.data()).read_to_end(&mut bytes)?;
    Ok(bytes)
}

//! The two files of a case, and why they cannot be read.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use thiserror::Error;

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

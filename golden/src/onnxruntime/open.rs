//! ONNX Runtime as a program finds it: a shared library, opened at run time.

use std::env;
use std::error::Error as _;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;

use libloading::Library;
use ort::environment::Environment;
use ort::sys::{ORT_API_VERSION, OrtApiBase};
use thiserror::Error;

/// The variable that names the runtime's library.
const VARIABLE: &str = "KVCACHE_ONNXRUNTIME_LIB";

/// Asks Python for the folder of the runtime's library, without an import of the package.
const SCRIPT: &str =
    "import importlib.util as i; s = i.find_spec('onnxruntime'); print(s.submodule_search_locations[0])";

/// Why there is no runtime.
#[derive(Debug, Error)]
pub enum RuntimeError {
    /// None is named, and none is installed.
    #[error("there is no ONNX Runtime: {}", .0.join("; "))]
    NotFound(Vec<String>),
    /// The file could not be opened as a shared library.
    #[error("{} could not be opened: {}", path.display(), reason(source))]
    NotALibrary {
        /// The file.
        path: PathBuf,
        /// What the loader says.
        source: libloading::Error,
    },
    /// The library is none of ONNX Runtime.
    #[error("{} is no library of ONNX Runtime: {}", path.display(), reason(source))]
    NotARuntime {
        /// The file.
        path: PathBuf,
        /// What the loader says of the runtime's entry point.
        source: libloading::Error,
    },
    /// The runtime is older than 1.20.
    #[error("{} is ONNX Runtime {version}, which is older than 1.{ORT_API_VERSION}", path.display())]
    TooOld {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: String,
    },
    /// The runtime could not be initialized.
    #[error("ONNX Runtime {version} could not be initialized: {message}")]
    NotInitialized {
        /// Its version.
        version: String,
        /// What it says.
        message: String,
    },
}

/// What the loader says; an error of `libloading` has that for its source.
fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The library of a runtime: `named`, or what `KVCACHE_ONNXRUNTIME_LIB` names, or that of the package `onnxruntime` in
/// the Python which is first in the path.
///
/// # Errors
/// If there is none; the error tells where it was looked for.
pub fn runtime_path(named: Option<&Path>) -> Result<PathBuf, RuntimeError> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    if let Some(path) = env::var_os(VARIABLE) {
        return Ok(path.into());
    }
    let mut tried = vec!["no library is named".to_owned(), format!("{VARIABLE} is not set")];
    for python in ["python3", "python"] {
        match in_wheel(python) {
            Ok(path) => return Ok(path),
            Err(reason) => tried.push(format!("{python}: {reason}")),
        }
    }
    Err(RuntimeError::NotFound(tried))
}

/// The library of the package of a Python.
fn in_wheel(python: &str) -> Result<PathBuf, String> {
    let output = Command::new(python).args(["-c", SCRIPT]).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err("it has no package onnxruntime".to_owned());
    }
    let folder = Path::new(String::from_utf8_lossy(&output.stdout).trim_end()).join("capi");
    let entries = folder.read_dir().map_err(|error| format!("{}: {error}", folder.display()))?;
    let is_runtime = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libonnxruntime.") && (name.contains(".so") || name.ends_with(".dylib"))
    };
    let mut found: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_runtime).collect();
    found.sort();
    found.pop().ok_or_else(|| format!("{} has no libonnxruntime", folder.display()))
}

/// An opened runtime. A process has one, for its whole life.
#[derive(Debug)]
pub struct Runtime {
    /// Its entry point.
    pub base: &'static OrtApiBase,
    /// Its version.
    pub version: String,
    /// Its environment, of which a process has one, too.
    pub environment: Environment,
}

impl Runtime {
    /// Opens the library at `path` and makes it the runtime of all that this process does by the crate `ort`.
    ///
    /// # Errors
    /// If it is no library of a runtime that can be used here.
    ///
    /// # Panics
    /// If the process has another runtime already.
    pub fn open(path: &Path) -> Result<Self, RuntimeError> {
        // SAFETY: if this is ONNX Runtime, its initializers have no preconditions. If it is not, it is the user who has
        // named it.
        let library = unsafe { Library::new(path) };
        let library = library.map_err(|source| RuntimeError::NotALibrary { path: path.to_owned(), source })?;
        // It is never closed: what it gives lives as long as the process.
        let library = Box::leak(Box::new(library));
        // SAFETY: the runtime's header declares this function so.
        let entry = unsafe { library.get::<unsafe extern "C" fn() -> *const OrtApiBase>(b"OrtGetApiBase") };
        let entry = entry.map_err(|source| RuntimeError::NotARuntime { path: path.to_owned(), source })?;
        // SAFETY: it has no preconditions, and what it gives is never null and lives as long as the library.
        let base = unsafe { &*entry() };
        // SAFETY: `GetVersionString` gives a constant text that ends with NUL.
        let version = unsafe { CStr::from_ptr((base.GetVersionString)()) }.to_string_lossy().into_owned();
        // SAFETY: `GetApi` takes any number; what it gives is null or lives as long as the library.
        let Some(api) = (unsafe { (base.GetApi)(ORT_API_VERSION).as_ref() }) else {
            return Err(RuntimeError::TooOld { path: path.to_owned(), version });
        };
        assert!(ort::set_api(api.clone()), "a process has one ONNX Runtime");
        match ort::init().with_telemetry(false).build() {
            Ok(environment) => Ok(Self { base, version, environment }),
            Err(error) => Err(RuntimeError::NotInitialized { version, message: error.to_string() }),
        }
    }

    /// The names of the execution providers that the runtime was built with.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn providers(&self) -> ort::Result<Vec<String>> {
        let (mut names, mut count) = (ptr::null_mut(), 0);
        // SAFETY: both places are there to be written.
        unsafe { ort::Error::result_from_status((ort::api().GetAvailableProviders)(&mut names, &mut count)) }?;
        let len = usize::try_from(count).unwrap_or(0);
        let text = |i: usize| {
            // SAFETY: `i < len`, and `names` has so many texts that end with NUL; they are not released yet.
            unsafe { CStr::from_ptr(*names.add(i)) }.to_string_lossy().into_owned()
        };
        let providers = (0..len).map(text).collect();
        // SAFETY: these are the names and the count that the runtime gave, and nothing borrows them any longer.
        unsafe { ort::Error::result_from_status((ort::api().ReleaseAvailableProviders)(names, count)) }?;
        Ok(providers)
    }
}

//! ONNX Runtime as a program finds it: a shared library, opened at run time.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use kvcache_conformance::onnxruntime::{Runtime, runtime_path};
use ort::environment::Environment;
use ort::session::Session;
use ort::sys::OrtApiBase;

/// A session of `model`, with the built operator library registered by its path.
///
/// Sessions are made one after the other: ONNX Runtime 1.20 may fail to make two with custom operators at the same
/// time.
pub fn session(model: &[u8]) -> ort::Result<Session> {
    let _turn = turn();
    Session::builder(environment())?.with_operator_library(operator_library())?.commit_from_memory(model)
}

/// A session of `model` with the operators that are linked into this program.
pub fn session_in_process(model: &[u8]) -> ort::Result<Session> {
    let _turn = turn();
    let mut builder = Session::builder(environment())?;
    // SAFETY: the environment is that of this runtime, which is never closed.
    unsafe { kvcache_ort::register(&mut builder, base()) }?;
    builder.commit_from_memory(model)
}

fn turn() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The runtime, opened once.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let path = runtime_path(None).unwrap_or_else(|error| panic!("{error}; `make test` sets the variable"));
        Runtime::open(&path).unwrap()
    })
}

/// The environment of the runtime.
pub fn environment() -> &'static Environment {
    &runtime().environment
}

/// The entry point of the runtime.
pub fn base() -> &'static OrtApiBase {
    runtime().base
}

/// The library that `KVCACHE_ORT_LIB` names, or else the release build beside this test.
fn operator_library() -> PathBuf {
    let library = match env::var_os("KVCACHE_ORT_LIB") {
        Some(path) => path.into(),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("release/libkvcache_ort.so"),
    };
    assert!(library.is_file(), "no operator library at {}: run `make test`, which builds it", library.display());
    library
}

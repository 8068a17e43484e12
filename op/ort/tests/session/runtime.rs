//! ONNX Runtime as a program finds it: a shared library, opened at run time.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::Library;
use ort::environment::Environment;
use ort::session::Session;
use ort::sys::{ORT_API_VERSION, OrtApiBase};

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

/// The environment of the runtime.
pub fn environment() -> &'static Environment {
    static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| {
        // SAFETY: `GetApi` takes any number; what it gives lives as long as the runtime, which is never closed.
        let api = unsafe { (base().GetApi)(ORT_API_VERSION).as_ref() };
        ort::set_api(api.expect("a runtime that is not too old").clone());
        ort::init().build().unwrap()
    })
}

/// The entry point of the runtime that `KVCACHE_ONNXRUNTIME_LIB` names.
pub fn base() -> &'static OrtApiBase {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let Some(path) = env::var_os("KVCACHE_ONNXRUNTIME_LIB") else {
            panic!("KVCACHE_ONNXRUNTIME_LIB does not name a libonnxruntime.so: run `make test`, which sets it");
        };
        // SAFETY: this is ONNX Runtime, whose initializers have no preconditions.
        unsafe { Library::new(&path) }.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    });
    // SAFETY: the runtime's header declares this function so; what it gives is never null, and lives as long as the
    // library, which is never closed.
    unsafe { &*library.get::<unsafe extern "C" fn() -> *const OrtApiBase>(b"OrtGetApiBase").unwrap()() }
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

//! ONNX Runtime as a program finds it: a shared library, opened at run time.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::Library;
use ort::environment::Environment;
use ort::session::Session;
use ort::sys::{ORT_API_VERSION, OrtApiBase};

/// A session of `model` that has the operators.
///
/// Sessions are made one after the other: ONNX Runtime 1.20 may fail to make two with custom operators at the same
/// time.
pub fn session(model: &Path) -> ort::Result<Session> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (base, environment) = runtime();
    let mut builder = Session::builder(environment)?;
    // SAFETY: the environment is that of this runtime, which is never closed.
    unsafe { kvcache_ort::register(&mut builder, base) }?;
    builder.commit_from_file(model)
}

/// The entry point of the runtime, opened once, and its environment.
fn runtime() -> &'static (&'static OrtApiBase, Environment) {
    static RUNTIME: OnceLock<(&OrtApiBase, Environment)> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        // SAFETY: the initializers of ONNX Runtime have no preconditions.
        let runtime = unsafe { Library::new(runtime_path()) }.expect("a shared library");
        // It is never closed: what it gives lives as long as the process.
        let runtime = Box::leak(Box::new(runtime));
        // SAFETY: the runtime's header declares this function so.
        let entry = unsafe { runtime.get::<unsafe extern "C" fn() -> *const OrtApiBase>(b"OrtGetApiBase") };
        // SAFETY: it has no preconditions, and what it gives is never null and lives as long as the library.
        let base = unsafe { &*entry.expect("a library of ONNX Runtime")() };
        // SAFETY: `GetApi` takes any number; what it gives is null or lives as long as the library.
        let api = unsafe { (base.GetApi)(ORT_API_VERSION).as_ref() }.expect("ONNX Runtime 1.20 or later");
        assert!(ort::set_api(api.clone()), "a process has one ONNX Runtime");
        (base, ort::init().with_telemetry(false).build().expect("an environment"))
    })
}

/// What `KVCACHE_ONNXRUNTIME_LIB` names, or else the library of the wheel in `.venv`.
fn runtime_path() -> PathBuf {
    if let Some(path) = env::var_os("KVCACHE_ONNXRUNTIME_LIB") {
        return path.into();
    }
    let entries =
        |folder: PathBuf| folder.read_dir().into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let versions = entries(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/lib"));
    let mut files = versions.flat_map(|python| entries(python.join("site-packages/onnxruntime/capi")));
    let library = files.find(|file| file.to_string_lossy().contains("libonnxruntime.so"));
    library.expect("`make .venv/ready` installs ONNX Runtime, or KVCACHE_ONNXRUNTIME_LIB names its library")
}

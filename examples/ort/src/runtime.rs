//! ONNX Runtime, opened at run time, with the operators linked into this program.

use std::path::Path;

use anyhow::{Context, Result};
use libloading::Library;
use ort::session::Session;
use ort::sys::{ORT_API_VERSION, OrtApiBase};

/// A session of `model`. A program makes one.
pub fn session(onnxruntime: &Path, model: &Path) -> Result<Session> {
    // SAFETY: the initializers of ONNX Runtime have no preconditions.
    let library = unsafe { Library::new(onnxruntime) }.with_context(|| onnxruntime.display().to_string())?;
    let library = Box::leak(Box::new(library)); // what it gives lives as long as the program
    // SAFETY: the runtime's header declares this function so; it has no preconditions and never gives null.
    let base = unsafe { &*library.get::<unsafe extern "C" fn() -> *const OrtApiBase>(b"OrtGetApiBase")?() };
    // SAFETY: `GetApi` takes any number, and gives null for a version that the runtime does not have.
    let api = unsafe { (base.GetApi)(ORT_API_VERSION).as_ref() }.context("ONNX Runtime is older than 1.20")?;
    ort::set_api(api.clone());

    let mut builder = Session::builder(&ort::init().with_telemetry(false).build()?)?;
    // SAFETY: `base` is of the runtime whose interface `ort` was given.
    unsafe { kvcache_ort::register(&mut builder, base) }?;
    Ok(builder.commit_from_file(model)?)
}

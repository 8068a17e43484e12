//! The ONNX Runtime that loaded the library. There is one in a process.

use std::sync::OnceLock;

use ort::sys::{OrtApi, OrtApiBase};

use crate::api_1_24::{TypeAndShapeReference, type_and_shape_reference};
use crate::error::Error;

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

struct Runtime {
    api: &'static OrtApi,
    type_and_shape_reference: Option<TypeAndShapeReference>,
}

/// Makes all calls of this library go to the runtime with this interface.
///
/// # Errors
/// If another copy of ONNX Runtime in this process has registered the library before: `ort` keeps one table of
/// functions.
pub(crate) fn use_runtime(api: &'static OrtApi, base: &OrtApiBase) -> Result<(), Error> {
    let runtime = RUNTIME.get_or_init(|| {
        ort::set_api(api.clone());
        Runtime { api, type_and_shape_reference: type_and_shape_reference(base) }
    });
    if std::ptr::eq(runtime.api, api) { Ok(()) } else { Err(Error::SecondRuntime) }
}

/// The runtime's function of this name, which it has since version 1.24.
pub(crate) fn tensor_type_and_shape_reference() -> Option<TypeAndShapeReference> {
    RUNTIME.get()?.type_and_shape_reference
}

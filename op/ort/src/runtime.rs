//! The ONNX Runtime that loaded the library. There is one in a process.
//!
//! `ort` is built for the interface of the oldest runtime that the library supports, and declares its table of
//! functions up to there. The table only ever grows at its end, so a newer runtime's begins with the same functions.
//! One newer function is used where there is one, from version 1.24 on.

use std::ffi::{CStr, c_void};
use std::mem::size_of;
use std::sync::OnceLock;

use ort::sys::{ONNXTensorElementDataType, OrtApi, OrtApiBase, OrtStatusPtr, OrtValue};

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
        Runtime { api, type_and_shape_reference: find_type_and_shape_reference(base) }
    });
    if std::ptr::eq(runtime.api, api) { Ok(()) } else { Err(Error::SecondRuntime) }
}

/// The runtime's `GetTensorElementTypeAndShapeDataReference`, if it has it.
pub(crate) fn type_and_shape_reference() -> Option<TypeAndShapeReference> {
    RUNTIME.get()?.type_and_shape_reference
}

/// `GetTensorElementTypeAndShapeDataReference`: the element type of a tensor, the address of its dimensions, and their
/// number. The dimensions belong to the tensor: nothing is allocated, as the older functions do. For a scalar the
/// address may be null.
pub(crate) type TypeAndShapeReference = unsafe extern "system" fn(
    value: *const OrtValue,
    element: *mut ONNXTensorElementDataType,
    dims: *mut *const i64,
    rank: *mut usize,
) -> OrtStatusPtr;

/// The version of the interface, and the minor version of the runtime, that the function came with.
const VERSION: u32 = 24;

/// How many functions stand before it in the table: it is the last of its version, and places never change.
const BEFORE: usize = 414;

/// The table of functions up to this one.
#[repr(C)]
struct Api {
    known: OrtApi,
    unused: [*const c_void; BEFORE - size_of::<OrtApi>() / size_of::<*const c_void>()],
    type_and_shape_reference: Option<TypeAndShapeReference>,
}

/// The function of the runtime that `base` belongs to; `None` if it is older.
fn find_type_and_shape_reference(base: &OrtApiBase) -> Option<TypeAndShapeReference> {
    // SAFETY: `base` is a runtime's, whose version is a constant text that ends with NUL.
    let version = unsafe { CStr::from_ptr((base.GetVersionString)()) };
    let minor: u32 = version.to_str().ok()?.strip_prefix("1.")?.split('.').next()?.parse().ok()?;
    // An older runtime is not asked for the interface: it would print a complaint.
    if minor < VERSION {
        return None;
    }
    // SAFETY: `GetApi` takes any number, and gives null for a version that the runtime does not have.
    let api: *const Api = unsafe { (base.GetApi)(VERSION) }.cast();
    // SAFETY: an interface of this version lives as long as the runtime, and has the function at this place.
    if api.is_null() { None } else { unsafe { (*api).type_and_shape_reference } }
}

//! What ONNX Runtime has since version 1.24 beyond the interface that this library is built for.
//!
//! `ort` asks for the interface of the oldest runtime that the library supports, so its table of functions ends where that
//! runtime's does. A later one begins with the same functions: the table only ever grows at its end.

use std::ffi::{CStr, c_void};
use std::mem::size_of;

use ort::sys::{ONNXTensorElementDataType, OrtApi, OrtApiBase, OrtStatusPtr, OrtValue};

/// Tells the element type of a tensor, and where its dimensions are and how many. They stay the tensor's: nothing is
/// allocated, which is what the older functions for it do. Without dimensions the address may be null.
pub(crate) type LendTypeAndShape = unsafe extern "system" fn(
    value: *const OrtValue,
    element: *mut ONNXTensorElementDataType,
    dims: *mut *const i64,
    rank: *mut usize,
) -> OrtStatusPtr;

/// The version of the interface that has [`LendTypeAndShape`], and the runtime's own minor version that has the interface.
const VERSION: u32 = 24;

/// The functions of the interface before `GetTensorElementTypeAndShapeDataReference`, the last one of its version 24; the
/// same in every release of the runtime.
const BEFORE: usize = 414;

/// The interface as far as it is used here.
#[repr(C)]
struct NewerApi {
    known: OrtApi,
    unused: [*const c_void; BEFORE - size_of::<OrtApi>() / size_of::<*const c_void>()],
    lend_type_and_shape: Option<LendTypeAndShape>,
}

/// The function of the runtime with this base; `None` if it is older.
pub(crate) fn lend_type_and_shape(base: &OrtApiBase) -> Option<LendTypeAndShape> {
    // SAFETY: the version is a constant text of the runtime.
    let version = unsafe { CStr::from_ptr((base.GetVersionString)()) };
    // An older runtime is not asked: it would complain on the user's terminal.
    if minor(version.to_str().ok()?)? < VERSION {
        return None;
    }
    // SAFETY: functions of the base take any version.
    let api: *const NewerApi = unsafe { (base.GetApi)(VERSION) }.cast();
    // SAFETY: if not null, it is the interface of this version, which has the function at this place.
    if api.is_null() { None } else { unsafe { (*api).lend_type_and_shape } }
}

/// The second number of a version as in `1.24.1`.
fn minor(version: &str) -> Option<u32> {
    version.strip_prefix("1.")?.split('.').next()?.parse().ok()
}

//! A node's attributes, as ONNX Runtime gives them.

use std::ffi::CString;

use kvcache_schema::{OperatorAttributes, STATIC_SCALES};
use ort::AsPointer;
use ort::operator::{KernelContext, ShapeInferenceContext};

use crate::error::Error;

/// An attribute that no node has.
const ABSENT: &str = "kvcache_ort_absent_attribute";

/// The attributes of the node that a kernel is made for.
///
/// ONNX Runtime gives one error code for an absent attribute and for one of another type, and its messages change from
/// version to version. So the message for an attribute that is surely absent is the pattern: an attribute is absent if
/// its message is the same but for the name.
///
/// # Errors
/// If an attribute is there with another type than integer. It is never replaced by the default.
pub(crate) fn of_kernel<A: OperatorAttributes>(context: &KernelContext<'_>) -> Result<A, Error> {
    let absent = integer(context, ABSENT).err().unwrap_or_default();
    let mut attributes = A::default();
    for (name, _) in A::names() {
        match integer(context, name) {
            Ok(value) => {
                let _known = attributes.set(name, value);
            }
            Err(reason) if reason == absent.replace(ABSENT, name) => {}
            Err(reason) => return Err(Error::AttributeType { name, reason }),
        }
    }
    Ok(attributes)
}

/// Whether the node only reads its scales.
pub(crate) fn has_static_scales(context: &KernelContext<'_>) -> bool {
    integer(context, "quant_type") == Ok(STATIC_SCALES)
}

/// The attributes for shape inference. An unreadable one counts as absent: making the kernel fails on it anyway.
pub(crate) fn of_inference<A: OperatorAttributes>(context: &ShapeInferenceContext) -> A {
    let mut attributes = A::default();
    for (name, _) in A::names() {
        if let Ok(value) = context.attr(name) {
            let _known = attributes.set(name, value);
        }
    }
    attributes
}

/// The integer attribute `name` of a node, or the runtime's message why there is none.
fn integer(context: &KernelContext<'_>, name: &str) -> Result<i64, String> {
    let name = CString::new(name).map_err(|error| error.to_string())?;
    let mut value = 0;
    // SAFETY: the context is borrowed, the name ends with NUL, and `value` is there to be written.
    let status = unsafe { (ort::api().KernelInfoGetAttribute_int64)(context.ptr(), name.as_ptr(), &mut value) };
    // SAFETY: the status is the call's above, and is released once, here.
    unsafe { ort::Error::result_from_status(status) }.map(|()| value).map_err(|error| error.to_string())
}

//! A node's attributes, as ONNX Runtime gives them.

use std::ffi::CString;

use kvcache_schema::{OperatorAttributes, STATIC_SCALES};
use ort::AsPointer;
use ort::operator::{KernelContext, ShapeInferenceContext};
use ort::sys::OrtStatusPtr;

use crate::error::Error;

/// An attribute that no node has.
const ABSENT: &str = "kvcache_ort_absent_attribute";

/// Sets the attributes of the node that a kernel is made for.
///
/// ONNX Runtime gives one error code for an absent attribute and for one of another type, and its messages change from
/// version to version. So the message for an attribute that is surely absent is the pattern: an attribute is absent if
/// its message is the same but for the name.
///
/// # Errors
/// If an attribute is there with another type than its own. It is never replaced by the default.
pub(crate) fn of_kernel(context: &KernelContext<'_>, attributes: &mut dyn OperatorAttributes) -> Result<(), Error> {
    let absent = |error: Option<String>| error.unwrap_or_default();
    let (absent_integer, absent_float) = (absent(integer(context, ABSENT).err()), absent(float(context, ABSENT).err()));
    let floats = attributes.floats();
    for (name, _) in attributes.names() {
        let (read, absent, expected) = match floats.contains(&name) {
            true => (float(context, name).map(|value| attributes.set_float(name, value)), &absent_float, "a float"),
            false => (integer(context, name).map(|value| attributes.set(name, value)), &absent_integer, "an integer"),
        };
        match read {
            Ok(_known) => {}
            Err(reason) if reason == absent.replace(ABSENT, name) => {}
            Err(reason) => return Err(Error::AttributeType { name, expected, reason }),
        }
    }
    Ok(())
}

/// Whether the node only reads its scales.
pub(crate) fn has_static_scales(context: &KernelContext<'_>) -> bool {
    integer(context, "quant_type") == Ok(STATIC_SCALES)
}

/// Sets the attributes for shape inference. An unreadable one counts as absent: making the kernel fails on it anyway.
pub(crate) fn of_inference(context: &ShapeInferenceContext, attributes: &mut dyn OperatorAttributes) {
    for (name, _) in attributes.names() {
        if let Ok(value) = context.attr(name) {
            let _known = attributes.set(name, value);
        }
    }
}

/// The integer attribute `name` of a node, or the runtime's message why there is none.
fn integer(context: &KernelContext<'_>, name: &str) -> Result<i64, String> {
    let (name, mut value) = (name_of(name)?, 0);
    // SAFETY: the context is borrowed, the name ends with NUL, and `value` is there to be written.
    checked(unsafe { (ort::api().KernelInfoGetAttribute_int64)(context.ptr(), name.as_ptr(), &mut value) })?;
    Ok(value)
}

/// The float attribute `name` of a node, or the runtime's message why there is none.
fn float(context: &KernelContext<'_>, name: &str) -> Result<f32, String> {
    let (name, mut value) = (name_of(name)?, 0.0);
    // SAFETY: the context is borrowed, the name ends with NUL, and `value` is there to be written.
    checked(unsafe { (ort::api().KernelInfoGetAttribute_float)(context.ptr(), name.as_ptr(), &mut value) })?;
    Ok(value)
}

fn name_of(name: &str) -> Result<CString, String> {
    CString::new(name).map_err(|error| error.to_string())
}

/// The message of a status of a call that was just made, unless it is a success.
fn checked(status: OrtStatusPtr) -> Result<(), String> {
    // SAFETY: the status is the call's, and is released once, here.
    unsafe { ort::Error::result_from_status(status) }.map_err(|error| error.to_string())
}

//! A node's attributes, as ONNX Runtime gives them.

use std::ffi::CString;

use kvcache_schema::{AttentionAttributes, Attributes, CacheAttentionAttributes, STATIC_SCALES, StaticAttributes};
use ort::AsPointer;
use ort::operator::{KernelContext, ShapeInferenceContext};

use crate::error::Error;

/// An attribute that no node has.
const ABSENT: &str = "kvcache_ort_absent_attribute";

/// The attributes of an operator: [`Default`] gives absent ones their defaults.
pub(crate) trait NodeAttributes: Default {
    fn names() -> impl Iterator<Item = &'static str>;

    /// Sets the attribute called `name`, one of [`names`](Self::names).
    fn set(&mut self, name: &str, value: i64) -> bool;
}

macro_rules! node_attributes {
    ($($attributes:ty: $names:expr;)*) => { $(
        impl NodeAttributes for $attributes {
            fn names() -> impl Iterator<Item = &'static str> {
                $names
            }

            fn set(&mut self, name: &str, value: i64) -> bool {
                self.set(name, value)
            }
        }
    )* };
}

node_attributes! {
    Attributes: Self::NAMES.into_iter();
    StaticAttributes: Self::SPEC.iter().map(|spec| spec.name);
    AttentionAttributes: Self::SPEC.iter().map(|spec| spec.name);
    CacheAttentionAttributes:
        AttentionAttributes::names().chain(Attributes::names().filter(|&name| name != Self::NOT_AN_ATTRIBUTE));
}

/// The attributes of the node that a kernel is made for.
///
/// # Errors
/// If an attribute is there with another type than integer. It is never replaced by the default.
pub(crate) fn of_kernel<A: NodeAttributes>(context: &KernelContext<'_>) -> Result<A, Error> {
    read(|name| integer(context, name))
}

/// Whether the node only reads its scales.
pub(crate) fn has_static_scales(context: &KernelContext<'_>) -> bool {
    integer(context, "quant_type") == Ok(STATIC_SCALES)
}

/// The attributes for shape inference. An unreadable one counts as absent: making the kernel fails on it anyway.
pub(crate) fn of_inference<A: NodeAttributes>(context: &ShapeInferenceContext) -> A {
    let mut attributes = A::default();
    for name in A::names() {
        if let Ok(value) = context.attr(name) {
            let _known = attributes.set(name, value);
        }
    }
    attributes
}

/// All attributes, each read by `integer`, whose error is the runtime's message.
///
/// ONNX Runtime gives one error code for an absent attribute and for one of another type, and its messages change from
/// version to version. So the message for an attribute that is surely absent is the pattern: an attribute is absent if
/// its message is the same but for the name.
fn read<A: NodeAttributes>(integer: impl Fn(&str) -> Result<i64, String>) -> Result<A, Error> {
    let absent = integer(ABSENT).err().unwrap_or_default();
    let mut attributes = A::default();
    for name in A::names() {
        match integer(name) {
            Ok(value) => {
                let _known = attributes.set(name, value);
            }
            Err(reason) if reason == absent.replace(ABSENT, name) => {}
            Err(reason) => return Err(Error::AttributeType { name, reason }),
        }
    }
    Ok(attributes)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A runtime with the node's integers, and with `wording`'s messages for all else.
    fn runtime(wording: fn(&str) -> String) -> impl Fn(&str) -> Result<i64, String> {
        move |name| match name {
            "num_layer" => Ok(32),
            "layer_idx" => Ok(31),
            _ => Err(wording(name)),
        }
    }

    #[test]
    fn absent_attributes_have_their_defaults() {
        for wording in [|name: &str| format!("No attribute with name:'{name}'is defined."), |_: &str| "none".to_owned()]
        {
            let attributes: Attributes = read(runtime(wording)).unwrap();
            assert_eq!(attributes, Attributes { num_layer: 32, layer_idx: 31, ..Attributes::default() });
        }
    }

    #[test]
    fn an_attribute_of_another_type_is_refused() {
        let wording = |name: &str| match name {
            "num_repeat" => "requested attribute is not an int".to_owned(),
            _ => format!("no {name}"),
        };
        let error = read::<Attributes>(runtime(wording)).unwrap_err();
        assert!(matches!(&error, Error::AttributeType { name: "num_repeat", reason } if reason.contains("not an int")));
    }
    #[test]
    fn every_name_of_an_operator_can_be_set() {
        fn check<A: NodeAttributes>(expected: usize) {
            let mut attributes = A::default();
            assert_eq!(A::names().filter(|name| attributes.set(name, 1)).count(), expected);
            assert_eq!(A::names().count(), expected);
        }
        check::<Attributes>(9);
        check::<StaticAttributes>(7);
        check::<AttentionAttributes>(5);
        check::<CacheAttentionAttributes>(13);
    }
}

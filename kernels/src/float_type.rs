//! The float types of tensors: their Rust types, and their values as float32.

use bytemuck::{bytes_of, pod_read_unaligned};
use kvcache_schema::ElementType;
use kvcache_simd::Float;

/// Evaluates an expression in which `T` is the Rust type of a float element type: `float_type!(t1, T => f::<T>())`.
///
/// It needs `kvcache-schema` and `half`, and panics if the element type is no float.
#[macro_export]
macro_rules! float_type {
    ($element:expr, $T:ident => $body:expr) => {
        $crate::float_type!($element, $T => $body; Float32 f32, Float16 ::half::f16, BFloat16 ::half::bf16)
    };
    ($element:expr, $T:ident => $body:expr; $($variant:ident $type:ty),*) => {
        match $element {
            $(::kvcache_schema::ElementType::$variant => {
                type $T = $type;
                $body
            })*
            element => unreachable!("{element} is none of these types"),
        }
    };
}

/// [`float_type!`] for the types of scales (T3), which are fewer.
#[macro_export]
macro_rules! scale_type {
    ($element:expr, $T:ident => $body:expr) => {
        $crate::float_type!($element, $T => $body; Float32 f32, Float16 ::half::f16)
    };
}

/// Reads as many values as there are from the bytes of a float tensor, at any alignment.
pub fn read_floats(element: ElementType, bytes: &[u8], values: &mut [f32]) {
    float_type!(element, T => {
        for (x, bytes) in values.iter_mut().zip(bytes.chunks_exact(size_of::<T>())) {
            *x = pod_read_unaligned::<T>(bytes).to_f32();
        }
    });
}

/// Writes values to the first bytes of a float tensor, rounded to its type, at any alignment.
pub fn write_floats(element: ElementType, values: &[f32], bytes: &mut [u8]) {
    float_type!(element, T => {
        for (&x, bytes) in values.iter().zip(bytes.chunks_exact_mut(size_of::<T>())) {
            bytes.copy_from_slice(bytes_of(&<T as Float>::from_f32(x)));
        }
    });
}

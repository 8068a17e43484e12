//! Memory of tensors, as bytes and as numbers.

use half::f16;
use kvcache_schema::ElementType;

/// The bytes at `data`, which may be any address if `len` is 0.
///
/// # Safety
/// Unless `len` is 0, `data` is valid for reads of `len` initialized bytes, which nobody writes for the lifetime.
pub(crate) unsafe fn bytes<'a>(data: *const u8, len: usize) -> &'a [u8] {
    match len {
        0 => &[],
        // SAFETY: see `# Safety`.
        len => unsafe { std::slice::from_raw_parts(data, len) },
    }
}

/// The elements of a float tensor.
pub(crate) fn numbers(bytes: &[u8], element: ElementType, values: &mut [f32]) {
    match element {
        ElementType::Float16 => {
            for (x, &bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                *x = f16::from_ne_bytes(bytes).to_f32();
            }
        }
        _ => {
            for (x, &bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                *x = f32::from_ne_bytes(bytes);
            }
        }
    }
}

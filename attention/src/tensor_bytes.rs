//! The bytes of tensors.

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

//! The embedded PTX of the kernels that move and rotate rows, compiled ahead of time by `generate.py`.

use kvcache_schema::ElementType;

use crate::cache_rows::CacheRows;
use crate::cuda::ptx::Module;

/// The kernels, by their places in [`Module::kernels`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowKernel {
    /// Moves rows, 16 bytes at once.
    MoveWide,
    /// Moves rows byte by byte: any alignment and head.
    MoveNarrow,
    /// Rotates keys of float32.
    RotateF32,
    /// Rotates keys of float16.
    RotateF16,
    /// Rotates keys of bfloat16.
    RotateBf16,
    /// Rotates int8 keys with float32 scales.
    RotateI8F32,
    /// Rotates int8 keys with float16 scales.
    RotateI8F16,
    /// Rotates int4 keys with float32 scales.
    RotateI4F32,
    /// Rotates int4 keys with float16 scales.
    RotateI4F16,
    /// Rotates float8 keys with float32 scales.
    RotateF8F32,
    /// Rotates float8 keys with float16 scales.
    RotateF8F16,
}

/// The module of these kernels.
pub static ROWS: Module = Module::new(
    "rows",
    &[
        "kvcache_move_wide_rows",
        "kvcache_move_narrow_rows",
        "kvcache_rotate_f32_rows",
        "kvcache_rotate_f16_rows",
        "kvcache_rotate_bf16_rows",
        "kvcache_rotate_i8_f32_rows",
        "kvcache_rotate_i8_f16_rows",
        "kvcache_rotate_i4_f32_rows",
        "kvcache_rotate_i4_f16_rows",
        "kvcache_rotate_f8_f32_rows",
        "kvcache_rotate_f8_f16_rows",
    ],
    include_bytes!("ptx/rows.ptx.z"),
);

impl RowKernel {
    /// The kernel that rotates the keys of a cache, if there is one for its types.
    pub(super) fn rotate(rows: &CacheRows) -> Option<Self> {
        use ElementType::{BFloat16, Float8E4M3Fn, Float16, Float32, Int4, Int8};
        match rows.types() {
            (Float32, None) => Some(Self::RotateF32),
            (Float16, None) => Some(Self::RotateF16),
            (BFloat16, None) => Some(Self::RotateBf16),
            (Int8, Some(Float32)) => Some(Self::RotateI8F32),
            (Int8, Some(Float16)) => Some(Self::RotateI8F16),
            (Int4, Some(Float32)) => Some(Self::RotateI4F32),
            (Int4, Some(Float16)) => Some(Self::RotateI4F16),
            (Float8E4M3Fn, Some(Float32)) => Some(Self::RotateF8F32),
            (Float8E4M3Fn, Some(Float16)) => Some(Self::RotateF8F16),
            _ => None,
        }
    }

    /// The kernel's name in its module.
    pub(super) fn name(self) -> &'static str {
        ROWS.kernels[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_in_the_module() {
        let ptx = ROWS.ptx().unwrap();
        assert!(ptx.contains("\n.version 8.4\n.target sm_75\n"));
        for kernel in ROWS.kernels {
            assert!(ptx.contains(&format!(".visible .entry {kernel}(")), "{kernel}");
        }
        assert_eq!(RowKernel::RotateF8F16.name(), ROWS.kernels[ROWS.kernels.len() - 1]);
    }
}

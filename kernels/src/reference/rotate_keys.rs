//! Rotates keys, head by head.

use bytemuck::cast_slice;

use super::kernel::Reference;
use crate::cache_rows::{CacheRows, RowQuant};
use crate::float_type;
use crate::float_type::write_floats;
use crate::key_rotation::KeyRotation;
use crate::quantize::HeadCodec;
use crate::rotary::{Rope, Rotation};
use crate::rows_error::RowsError;

impl Reference {
    /// Rotates the keys of some slots; [`CacheRows::rotate_keys`] must match it bit for bit.
    ///
    /// # Errors
    /// Those of [`CacheRows::rotate_keys`].
    pub fn rotate_keys(
        &self,
        rows: &CacheRows,
        cache: &mut [u8],
        scale: &mut [u8],
        rotations: &[Rotation],
        rope: &Rope,
    ) -> Result<(), RowsError> {
        let KeyRotation { rows, cache, scale, rotations, rope } =
            KeyRotation::new(rows, cache, scale, rotations, rope)?;
        let dims = rows.dims();
        let [cache_bytes, scale_bytes] = rows.strides();
        let mut values = vec![0.0; dims.inner];
        for Rotation { slot, len, delta } in rotations {
            for slot in slot..slot + len {
                for layer in 0..dims.num_layer {
                    for h in 0..dims.num_heads {
                        let cells = &mut cache[cache_bytes.offset(slot, layer, 0, h)..][..cache_bytes.head_len];
                        let scales = &mut scale[scale_bytes.offset(slot, layer, 0, h)..][..scale_bytes.head_len];
                        rows.load_head(cells, scales, &mut values);
                        rope.rotate(delta, &mut values);
                        store(rows, cells, scales, &values, rope.n_rot());
                    }
                }
            }
        }
        Ok(())
    }
}

/// Stores the values of a head of which `n_rot` have changed. Codes share scales, so all change with these; float
/// elements that are not rotated keep their bytes.
fn store(rows: &CacheRows, cells: &mut [u8], scales: &mut [u8], values: &[f32], n_rot: usize) {
    match rows.quant() {
        None => write_floats(rows.t2(), &values[..n_rot], cells),
        Some(RowQuant { bits, group, t3 }) => float_type!(t3, T => {
            let mut rounded = vec![T::default(); values.len() / group];
            HeadCodec { bits, group }.encode(values, cells, &mut rounded);
            scales.copy_from_slice(cast_slice(&rounded));
        }),
    }
}

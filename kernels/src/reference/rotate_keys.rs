//! Rotates keys, head by head.

use half::f16;
use kvcache_schema::ElementType;

use super::kernel::Reference;
use crate::cache_rows::{CacheRows, RowQuant};
use crate::key_rotation::KeyRotation;
use crate::quantize::{Float, HeadCodec};
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
                        load(rows, cells, scales, &mut values);
                        rope.rotate(delta, &mut values);
                        store(rows, cells, scales, &values, rope.n_rot());
                    }
                }
            }
        }
        Ok(())
    }
}

/// The values of a head.
fn load(rows: &CacheRows, cells: &[u8], scales: &[u8], values: &mut [f32]) {
    match (rows.t2(), rows.quant()) {
        (ElementType::Float32, _) => values.copy_from_slice(&read(cells, f32::from_ne_bytes)),
        (ElementType::Float16, _) => {
            let numbers = read(cells, f16::from_ne_bytes);
            values.iter_mut().zip(numbers).for_each(|(value, number)| *value = number.to_f32());
        }
        (_, Some(RowQuant { bits, group, t3: ElementType::Float16 })) => {
            HeadCodec { bits, group }.decode(cells, &read(scales, f16::from_ne_bytes), values);
        }
        (_, Some(RowQuant { bits, group, .. })) => {
            HeadCodec { bits, group }.decode(cells, &read(scales, f32::from_ne_bytes), values);
        }
        (t2, None) => unreachable!("KeyRotation has no {t2} without scales"),
    }
}

/// Stores the values of a head of which `n_rot` have changed. Codes share scales, so all change with these; float
/// elements that are not rotated keep their bytes.
fn store(rows: &CacheRows, cells: &mut [u8], scales: &mut [u8], values: &[f32], n_rot: usize) {
    match (rows.t2(), rows.quant()) {
        (ElementType::Float32, _) => write(&values[..n_rot], cells, f32::to_ne_bytes),
        (ElementType::Float16, _) => {
            let numbers: Vec<_> = values[..n_rot].iter().map(|&value| f16::from_f32(value)).collect();
            write(&numbers, cells, f16::to_ne_bytes);
        }
        (_, Some(RowQuant { bits, group, t3: ElementType::Float16 })) => {
            write(&encode::<f16>(HeadCodec { bits, group }, values, cells), scales, f16::to_ne_bytes);
        }
        (_, Some(RowQuant { bits, group, .. })) => {
            write(&encode::<f32>(HeadCodec { bits, group }, values, cells), scales, f32::to_ne_bytes);
        }
        (t2, None) => unreachable!("KeyRotation has no {t2} without scales"),
    }
}

/// Quantizes a head; gives its scales.
fn encode<T3: Float>(codec: HeadCodec, values: &[f32], codes: &mut [u8]) -> Vec<T3> {
    let mut scales = vec![T3::default(); values.len() / codec.group];
    codec.encode(values, codes, &mut scales);
    scales
}

/// The numbers of `N` bytes each in memory.
fn read<T, const N: usize>(bytes: &[u8], number: fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|&bytes| number(bytes)).collect()
}

/// Writes numbers to the beginning of memory.
fn write<T: Copy, const N: usize>(numbers: &[T], bytes: &mut [u8], to_bytes: fn(T) -> [u8; N]) {
    bytes.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(bytes, &number)| *bytes = to_bytes(number));
}

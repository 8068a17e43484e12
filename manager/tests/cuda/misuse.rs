//! What cannot be done is refused before anything is copied.

use kvcache_conformance::random::Unstructured;
use kvcache_manager::op::cuda::DeviceMut;
use kvcache_manager::schema::CacheLayout;
use kvcache_manager::schema::ElementType::{Float16, Float32};
use kvcache_manager::{CacheMemory, DeviceMemory, Geometry, MemoryError, Rope, Rotation, RowCopy};
use libtest_mimic::Failed;

use crate::device::{Result, Twins, spec};

const GEOMETRY: Geometry = Geometry { num_layer: 2, num_heads: 2, head_dim: 16, max_t: 8 };

/// Fails unless the device refuses in these words, and the cache is as before.
fn refused(
    twins: &mut Twins,
    words: &str,
    act: impl FnOnce(&mut DeviceMemory<'_>) -> std::result::Result<(), MemoryError>,
) -> Result<()> {
    match twins.on_device(act)? {
        Err(error) if error.to_string() == words => twins.agree(words),
        other => Err(format!("expected {words:?}, got {other:?}").into()),
    }
}

pub fn what_is_wrong_is_refused() -> std::result::Result<(), Failed> {
    let spec = spec(CacheLayout::KvMajor, (Float32, None), GEOMETRY)?;
    let mut twins = Twins::new(&spec, 2, &mut Unstructured::seed(27))?;
    let row_len = spec.bytes_per_token();
    let copy = |src, dst, len| RowCopy { src, dst, len };
    refused(&mut twins, "3 slots from slot 6 are not inside a cache of 8 slots", |memory| {
        memory.copy_rows(&[copy(0, 4, 1), copy(0, 6, 3)])
    })?;
    refused(&mut twins, "1 slots from slot 8 are not inside a cache of 8 slots", |memory| {
        memory.write_rows(&[0, 1, 8], &vec![1; 3 * row_len])
    })?;
    refused(&mut twins, "rows has 1023 bytes, expected 1024", |memory| memory.write_rows(&[0, 1], &vec![1; 1023]))?;
    refused(&mut twins, "layer 2 is not one of 2", |memory| memory.write_layer_rows(2, &[0], &[]))?;
    refused(&mut twins, "two rotations have slot 3, expected one at most", |memory| {
        let rotation = |slot, len| Rotation { slot, len, delta: 1 };
        memory.rotate_keys(&[rotation(3, 1), rotation(2, 2)], &Rope::neox(16, 1e4))
    })?;

    let Twins { stream, staging, .. } = &mut twins;
    let mut slice = stream.clone_htod(&vec![0; 8 * row_len])?;
    let tensor = DeviceMut::from_bytes(Float16, spec.cache_shape(), &mut slice, stream);
    let other_type = DeviceMemory::new(&spec, tensor, None, stream, staging).unwrap_err();
    let mut slice = stream.clone_htod(&vec![0; 7 * row_len])?;
    let tensor = DeviceMut::from_bytes(Float32, [1, 2, 2, 7 * 16, 2].map(|n| n), &mut slice, stream);
    let other_shape = DeviceMemory::new(&spec, tensor, None, stream, staging).unwrap_err();
    assert_eq!([other_type.kind(), other_shape.kind()], ["memory"; 2]);
    Ok(())
}

//! Rotations that are refused, and rotations of no keys.

use kvcache_kernels::{CacheRows, Rope, RopeError, RopeStyle, Rotation, RowsError, Serial};
use kvcache_schema::ElementType::{Float16, Float32, Int4, Int8};
use kvcache_schema::{CacheDims, CacheLayout, ElementType};

use super::TYPES;
use super::cache::{Cache, kernels, random};

const DIMS: CacheDims = CacheDims { max_t: 8, num_layer: 2, num_heads: 2, inner: 16 };

#[test]
fn what_is_refused_changes_nothing() {
    let rotation = |slot, len| Rotation { slot, len, delta: 3 };
    let fine = rotation(0, 2);
    let rope = Rope::neox(16, 1e4);
    for types in TYPES {
        let mut cache = Cache::new(CacheLayout::HeadMajor, DIMS, types, 8);
        cache.fill(&mut random(1));
        let before = cache.clone();
        let n_rot = |n_rot| RowsError::Rope(RopeError::NRot { n_rot, head_dim: 16 });
        let slots = |start, len| RowsError::Slots { start, len, max_t: 8 };
        let list = |inv_freq| Rope::with_frequencies(RopeStyle::Neox, inv_freq);
        let infinite = RowsError::Rope(RopeError::Frequency { pair: 1, got: f64::INFINITY });
        for kernel in kernels() {
            for (rotations, rope, error) in [
                (vec![fine], Rope::neox(0, 1e4), n_rot(0)),
                (vec![fine], Rope::neox(3, 1e4), n_rot(3)),
                (vec![fine], Rope::gptj(18, 1e4), n_rot(18)),
                (vec![fine], Rope::gptj(usize::MAX - 1, 1e4), n_rot(usize::MAX - 1)),
                (vec![fine], list(vec![]), n_rot(0)),
                (vec![fine], list(vec![1.0, f64::INFINITY]), infinite),
                (vec![fine], Rope::neox(16, 0.0), infinite),
                (vec![fine, rotation(8, 1)], rope.clone(), slots(8, 1)),
                (vec![fine, rotation(3, 6)], rope.clone(), slots(3, 6)),
                (vec![fine, rotation(usize::MAX, 2)], rope.clone(), slots(usize::MAX, 2)),
                (
                    vec![rotation(4, 1), rotation(5, 2), rotation(2, 3)],
                    rope.clone(),
                    RowsError::RotatedTwice { slot: 4 },
                ),
                (
                    vec![rotation(4, 2), Rotation { slot: 5, len: 1, delta: 0 }],
                    rope.clone(),
                    RowsError::RotatedTwice { slot: 5 },
                ),
            ] {
                assert_eq!(cache.rotate(kernel, &rotations, &rope), Err(error));
            }
            let [memory, scale] = &mut cache.memory;
            let (memory, scale) = (memory.bytes_mut(), scale.bytes_mut());
            let rows = &cache.rows;
            let rotate =
                |memory: &mut [u8], scale: &mut [u8]| kernel.rotate_keys(rows, memory, scale, &[fine], &rope, &Serial);
            let (expected, got) = (memory.len(), memory.len() - 1);
            assert_eq!(rotate(&mut memory[1..], scale), Err(RowsError::Length { memory: "cache", expected, got }));
            if types.1.is_some() {
                let expected = scale.len();
                assert_eq!(rotate(memory, &mut []), Err(RowsError::Length { memory: "scale", expected, got: 0 }));
            }
            // Empty rotations may be anywhere inside, and touch others.
            assert_eq!(cache.rotate(kernel, &[rotation(8, 0), rotation(3, 0), rotation(3, 0)], &rope), Ok(()));
        }
        assert_eq!(cache.bits(), before.bits());
    }
}

#[test]
fn memory_that_is_not_aligned_is_refused() {
    for (types, memory, expected) in
        [((Float32, None), "cache", 4), ((Float16, None), "cache", 2), ((Int4, Some(Float16)), "scale", 2)]
    {
        let rows = CacheRows::new(CacheLayout::KvMajor, DIMS, types.0, types.1.map(|t3| (8, t3))).unwrap();
        let [mut cache, mut scale] = [rows.cache_len(), rows.scale_len()].map(|len| vec![0_u64; len / 8 + 1]);
        let at = |element: ElementType| usize::from(element.align() == expected);
        let (cache_at, scale_at) = (at(types.0), types.1.map_or(0, at));
        let cache: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut cache)[cache_at..][..rows.cache_len()];
        let scale: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut scale)[scale_at..][..rows.scale_len()];
        let address = if memory == "cache" { cache.as_ptr().addr() } else { scale.as_ptr().addr() };
        let rotation = Rotation { slot: 0, len: 1, delta: 1 };
        let error = rows.rotate_keys(cache, scale, &[rotation], &Rope::neox(16, 1e4), &Serial).unwrap_err();
        assert_eq!(error, RowsError::Misaligned { memory, address, expected });
        assert!(error.to_string().starts_with(memory), "{error}");
    }
}

#[test]
fn int8_without_scales_is_refused() {
    let rows = CacheRows::new(CacheLayout::KvMajor, DIMS, Int8, None).unwrap();
    let mut cache = vec![1; rows.cache_len()];
    let error = rows.rotate_keys(&mut cache, &mut [], &[], &Rope::neox(16, 1e4), &Serial).unwrap_err();
    assert_eq!(error, RowsError::KeyType { t2: Int8 });
    assert_eq!(error.to_string(), "keys of type int8 without scales cannot be rotated");
}

#[test]
fn an_empty_cache_has_no_keys() {
    for (max_t, num_heads, num_layer) in [(0, 2, 2), (8, 0, usize::MAX)] {
        let dims = CacheDims { max_t, num_layer, num_heads, inner: 8 };
        let rows = CacheRows::new(CacheLayout::HeadMajor, dims, Float16, None).unwrap();
        let all = [Rotation { slot: 0, len: max_t, delta: 1 }];
        let rope = Rope::neox(8, 1e4);
        assert_eq!(rows.rotate_keys(&mut [], &mut [], &all, &rope, &Serial), Ok(()));
    }
}

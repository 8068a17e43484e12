//! Rows of one layer, and keys as numbers, against the naive model of `cache_rows`.

use half::{bf16, f16};
use kvcache_schema::{CacheDims, ElementType, rotation_order};
use kvcache_simd::hadamard;
use proptest::prelude::*;

use crate::cache_rows::{caches, slots, with};

proptest! {
    /// Rows of one layer are parts of canonical rows, and leave the bytes of other layers.
    #[test]
    fn rows_of_a_layer_are_written_alone((cache, slots) in with(slots), layer: prop::sample::Index, seed: u32) {
        let layer = layer.index(cache.dims.num_layer);
        let (from, mut to) = (cache.filled(seed), cache.filled(seed ^ 0x5555_5555));
        let of_layer = cache.rows().layer(layer).unwrap();
        let mut rows = Vec::new();
        for &slot in &slots {
            let row = cache.canonical(&from.rows, slot);
            // A cache without slots has rows without bytes.
            of_layer.in_row().into_iter().for_each(|part| rows.extend_from_slice(&row[part]));
        }
        prop_assert_eq!(rows.len(), slots.len() * of_layer.row_len());
        let [memory, scale] = &mut to.memory;
        of_layer.write(memory, scale, &slots, &rows).unwrap();
        for (to, from) in to.rows.iter_mut().zip(&from.rows) {
            for &slot in &slots {
                let len = from[slot].len() / cache.dims.num_layer;
                to[slot][layer * len..(layer + 1) * len].copy_from_slice(&from[slot][layer * len..(layer + 1) * len]);
            }
        }
        prop_assert_eq!(to.memory, cache.memory(&to.rows));
    }

    /// Keys are the decoded heads of their layer in canonical rows.
    #[test]
    fn keys_are_decoded_from_canonical_rows(
        (cache, layer, seed) in (caches(), any::<prop::sample::Index>(), any::<u32>())
    ) {
        prop_assume!(cache.dims.max_t > 0);
        let model = cache.filled(seed);
        let CacheDims { num_layer, num_heads, inner, .. } = cache.dims;
        let layer = layer.index(num_layer);
        let mut keys = vec![0.0; num_heads * inner];
        cache.rows().keys(layer, &cache.canonical(&model.rows, 0), &mut keys).unwrap();
        let (rotated, mut expected) = (cache.rows().with_quant_rotation(true), keys.clone());
        let mut unrotated = keys.clone();
        rotated.keys(layer, &cache.canonical(&model.rows, 0), &mut unrotated).unwrap();
        if let Some((group, _)) = cache.quant {
            expected.chunks_exact_mut(inner.max(1)).for_each(|head| hadamard(head, rotation_order(inner, group)));
        }
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        prop_assert!(unrotated.iter().zip(&expected).all(same));
        for (i, key) in keys.into_iter().enumerate() {
            let number = model.rows[0][0][layer * 2 * num_heads * inner + i];
            let code = match cache.t2 {
                ElementType::Int4 => f32::from((number << 4) as i8 >> 4),
                ElementType::Int8 => f32::from(number as i8),
                ElementType::Float8E4M3Fn => kvcache_simd::e4m3_to_f32(number as u8),
                ElementType::Float16 => f16::from_bits(number as u16).to_f32(),
                ElementType::BFloat16 => bf16::from_bits(number as u16).to_f32(),
                _ => f32::from_bits(number),
            };
            let expected = match cache.quant {
                None => code,
                Some((group, t3)) => {
                    let scales = inner / group;
                    let scale = model.rows[1][0][layer * 2 * num_heads * scales + i / group];
                    match t3 {
                        ElementType::Float16 => {
                            f16::from_f32(code * f16::from_bits(scale as u16).to_f32()).to_f32()
                        }
                        _ => code * f32::from_bits(scale),
                    }
                }
            };
            prop_assert!(key.to_bits() == expected.to_bits() || key.is_nan() && expected.is_nan(), "{i}");
        }
    }
}

//! Rotating keys: the golden numbers of the manager's specification, the kernels against codec and rope, and what keeps
//! its bytes.

mod cache;
mod refused;

use kvcache_kernels::quantize::HeadCodec;
use kvcache_kernels::{Cpu, Rope, RopeStyle, Rotation, Serial};
use kvcache_schema::ElementType::{BFloat16, Float8E4M3Fn, Float16, Float32, Int4, Int8};
use kvcache_schema::{CacheDims, CacheLayout, ElementType, QuantBit};
use proptest::prelude::*;

use cache::{Cache, kernels, random};

/// The types of a cache and its scales whose keys can be rotated.
const TYPES: [(ElementType, Option<ElementType>); 8] = [
    (Float32, None),
    (Float16, None),
    (BFloat16, None),
    (Int8, Some(Float32)),
    (Int8, Some(Float16)),
    (Int4, Some(Float32)),
    (Int4, Some(Float16)),
    (Float8E4M3Fn, Some(Float16)),
];

/// A head of a cache of one slot that is rotated once by `by`.
fn rotate_one(by: Cpu, values: &[f32], delta: i64, rope: &Rope) -> Vec<f32> {
    let dims = CacheDims { max_t: 1, num_layer: 1, num_heads: 1, inner: values.len() };
    let mut cache = Cache::new(CacheLayout::TokenMajor, dims, (Float32, None), 1);
    cache.memory[0].bytes_mut()[..4 * values.len()].copy_from_slice(bytemuck::cast_slice(values));
    cache.rotate(by, &[Rotation { slot: 0, len: 1, delta }], rope).unwrap();
    bytemuck::cast_slice(&cache.memory[0].bytes()[..4 * values.len()]).to_vec()
}

#[test]
fn g10_a_key_of_four() {
    for kernel in kernels() {
        for (rope, expected) in [
            (Rope::neox(4, 1e4), [-1.984_110_6, 1.959_900_6, 2.462_377_8, 4.019_799_7]),
            (Rope::gptj(4, 1e4), [-1.142_639_6, 1.922_075_5, 2.959_850_8, 4.029_799_5]),
            (Rope::neox(2, 1e4), [-1.142_639_6, 1.922_075_5, 3.0, 4.0]),
        ] {
            assert_eq!(rotate_one(kernel, &[1.0, 2.0, 3.0, 4.0], 1, &rope), expected, "{kernel:?} {rope:?}");
        }
    }
}

#[test]
fn g11_a_key_of_int8() {
    let dims = CacheDims { max_t: 1, num_layer: 1, num_heads: 1, inner: 8 };
    for kernel in kernels() {
        let mut cache = Cache::new(CacheLayout::KvMajor, dims, (Int8, Some(Float32)), 8);
        let key: Vec<f32> = (1..9u8).map(f32::from).collect();
        let mut scales = [0.0f32];
        let codec = HeadCodec { bits: QuantBit::Eight, group: 8 };
        codec.encode(&key, &mut cache.memory[0].bytes_mut()[..8], &mut scales);
        cache.memory[1].bytes_mut()[..4].copy_from_slice(&scales[0].to_ne_bytes());
        let of_cache = |cache: &Cache| {
            let codes: Vec<_> = cache.memory[0].bytes()[..8].iter().map(|&code| code as i8).collect();
            (codes, f32::from_ne_bytes(*cache.memory[1].bytes().first_chunk().unwrap()))
        };
        let (codes, scale) = of_cache(&cache);
        assert_eq!(codes, [16, 32, 48, 64, 79, 95, 111, 127]);
        assert!((scale - 0.062_992_13).abs() < 1e-8, "{scale}");
        cache.rotate(kernel, &[Rotation { slot: 0, len: 1, delta: 1 }], &Rope::neox(8, 1e4)).unwrap();
        let (codes, scale) = of_cache(&cache);
        assert_eq!(codes, [-58, 22, 47, 64, 56, 98, 111, 127], "{kernel:?}");
        assert!((scale - 0.063_023_84).abs() < 1e-8, "{kernel:?}: {scale}");
    }
}

/// A cache with rotations, and a rope that fits it.
fn rotations() -> impl Strategy<Value = (Cache, Vec<Rotation>, Rope)> {
    let axes = (1usize..40, 1usize..3, 1usize..4);
    // Groups that kernels have functions of their own for, and others; heads up to and past the buffer of a thread.
    let inner = (prop::sample::select(&[1usize, 2, 3, 4, 6, 8, 16, 32, 33, 64, 128, 200][..]), 1usize..5, 0..40u32);
    let layout = prop::sample::select(&CacheLayout::ALL[..]);
    (layout, prop::sample::select(&TYPES[..]), axes, inner, any::<(u64, bool)>()).prop_flat_map(
        |(layout, types, (max_t, num_layer, num_heads), (group, groups, long), (seed, rotated))| {
            let group = if types.0 == Int4 { group + group % 2 } else { group };
            let groups = if long == 0 { 4200 / group + 1 } else { groups };
            let max_t = if long == 0 { max_t.min(3) } else { max_t };
            let inner = (group * groups).max(2).next_multiple_of(group);
            let mut cache = Cache::new(layout, CacheDims { max_t, num_layer, num_heads, inner }, types, group);
            cache.fill(&mut random(seed));
            cache = if rotated && types.1.is_some() { cache.with_quant_rotation() } else { cache };
            (Just(cache), cuts(max_t), ropes(inner))
        },
    )
}

/// Rotations of disjoint runs of slots, in any order.
fn cuts(max_t: usize) -> impl Strategy<Value = Vec<Rotation>> {
    let deltas = prop_oneof![
        4 => prop::sample::select(&[0i64, 1, -1, 7, -50][..]),
        1 => any::<i64>(),
        1 => prop::sample::select(&[i64::MIN, i64::MAX, -1 << 40, 1 << 31][..]),
    ];
    let runs = prop::collection::vec((0..=max_t, deltas), 0..8);
    (runs, any::<bool>()).prop_map(move |(mut runs, reversed)| {
        runs.sort_unstable_by_key(|&(slot, _)| slot);
        let ends: Vec<_> = runs.iter().skip(1).map(|&(slot, _)| slot).chain([max_t]).collect();
        // Some runs leave their last slot out, so that there are gaps.
        let run = |(i, (&(slot, delta), end)): (usize, (&(usize, i64), usize))| {
            let len = end - slot;
            Rotation { slot, len: if i % 2 == 0 { len } else { len.saturating_sub(1) }, delta }
        };
        let mut rotations: Vec<_> = runs.iter().zip(ends).enumerate().map(run).collect();
        if reversed {
            rotations.reverse();
        }
        rotations
    })
}

/// Ropes that fit heads of `head_dim`.
fn ropes(head_dim: usize) -> impl Strategy<Value = Rope> {
    let n_rot = prop_oneof![Just(head_dim / 2), 1..=head_dim / 2].prop_map(|pairs| 2 * pairs);
    (n_rot, prop::sample::select(&[10.0, 1e4, 5e5][..]), 0..5).prop_map(|(n_rot, base, kind)| match kind {
        0 => Rope::neox(n_rot, base),
        1 => Rope::gptj(n_rot, base),
        2 => Rope::neox(n_rot, base).scaled(0.25),
        3 => Rope::with_frequencies(RopeStyle::Gptj, (0..n_rot / 2).map(|i| 1.0 / (i + 1) as f64).collect()),
        // Angles of a delta are finite, or not.
        _ => Rope::with_frequencies(RopeStyle::Neox, vec![1e300; n_rot / 2]),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Every kernel rotates the keys of the named slots. All other bytes stay: values, other slots, keys that are
    /// rotated by 0, and floats that no pair has.
    #[test]
    fn every_kernel_rotates_as_the_formulas_say((cache, rotations, rope) in rotations()) {
        let expected = cache.rotated(&rotations, &rope);
        let float = cache.rows.types().0.is_float();
        for kernel in kernels() {
            let mut rotated = cache.clone();
            rotated.rotate(kernel, &rotations, &rope).unwrap();
            prop_assert_eq!(rotated.bits(), expected.bits(), "{:?}", kernel);
            for slot in 0..cache.dims.max_t {
                let is_rotated = rotations.iter().any(|&Rotation { slot: first, len, delta }| {
                    (first..first + len).contains(&slot) && delta != 0
                });
                for (before, after) in cache.read(slot).iter().zip(rotated.read(slot)) {
                    let head_len = before.len() / (2 * cache.dims.num_layer * cache.dims.num_heads);
                    let heads = before.chunks(head_len.max(1)).zip(after.chunks(head_len.max(1)));
                    for (head, (before, after)) in heads.enumerate() {
                        let is_key = (head / cache.dims.num_heads).is_multiple_of(2);
                        let kept = match (is_rotated && is_key, float) {
                            (false, _) => 0,
                            (true, true) => head_len / cache.dims.inner * rope.n_rot(),
                            (true, false) => head_len,
                        };
                        prop_assert_eq!(&before[kept..], &after[kept..], "slot {} head {}", slot, head);
                    }
                }
            }
        }
        let mut rotated = cache.clone();
        let [memory, scale] = &mut rotated.memory;
        cache.rows.rotate_keys(memory.bytes_mut(), scale.bytes_mut(), &rotations, &rope, &Serial).unwrap();
        prop_assert_eq!(rotated.bits(), expected.bits());
    }
}

proptest! {
    /// Products of float32 are exact in float64, and so, once rounded, are sums for all that rounding to float32 sees.
    #[test]
    fn each_product_and_each_sum_is_rounded_by_itself(
        head in prop::collection::vec(-8.0f32..8.0, 34),
        delta in -5000i64..5000,
        pairs in 1usize..17,
        gptj: bool,
    ) {
        let (n_rot, delta) = (2 * pairs, if delta == 0 { 1 } else { delta });
        let rope = if gptj { Rope::gptj(n_rot, 1e4) } else { Rope::neox(n_rot, 1e4) };
        let mut expected = head.clone();
        for pair in 0..pairs {
            let (i, j) = if gptj { (2 * pair, 2 * pair + 1) } else { (pair, pair + pairs) };
            let angle = delta as f64 * 1e4f64.powf(-2.0 * pair as f64 / n_rot as f64);
            let (c, s) = (angle.cos() as f32, angle.sin() as f32);
            let product = |x: f32, y: f32| (f64::from(x) * f64::from(y)) as f32;
            let sum = |x: f32, y: f32| (f64::from(x) + f64::from(y)) as f32;
            expected[i] = sum(product(head[i], c), -product(head[j], s));
            expected[j] = sum(product(head[i], s), product(head[j], c));
        }
        for kernel in kernels() {
            prop_assert_eq!(&rotate_one(kernel, &head, delta, &rope), &expected, "{:?}", kernel);
        }
    }
}

#[test]
fn ropes_are_equal_if_they_rotate_alike() {
    let rope = Rope::neox(8, 1e4).scaled(0.5);
    assert_eq!(rope, Rope::with_frequencies(RopeStyle::Neox, rope.frequencies().collect()));
    assert_eq!(Rope::neox(8, 1e4), Rope::with_frequencies(RopeStyle::Neox, rope.frequencies().collect()).scaled(2.0));
    for other in [Rope::neox(8, 1e4), Rope::gptj(8, 1e4).scaled(0.5), Rope::neox(6, 1e4).scaled(0.5)] {
        assert_ne!(rope, other);
    }
    let frequencies: Vec<_> = Rope::gptj(8, 1e4).frequencies().collect();
    assert_eq!(frequencies, [1.0, 0.1, 0.01, 0.001]);
}

//! Rotating keys: the golden numbers of the manager's specification, the fast kernels against the reference, and what
//! keeps its bytes.

use half::f16;
use kvcache_kernels::quantize::HeadCodec;
use kvcache_kernels::{
    CacheRows, Cpu, InstructionSet, Reference, Rope, RopeError, RopeStyle, Rotation, RowsError, Serial, Workers,
};
use kvcache_schema::ElementType::{Float16, Float32, Int4, Int8};
use kvcache_schema::{CacheDims, CacheLayout, ElementType, QuantBit};
use proptest::prelude::*;

/// The types of a cache and its scales whose keys can be rotated.
const TYPES: [(ElementType, Option<ElementType>); 6] = [
    (Float32, None),
    (Float16, None),
    (Int8, Some(Float32)),
    (Int8, Some(Float16)),
    (Int4, Some(Float32)),
    (Int4, Some(Float16)),
];

/// Memory that is aligned for float32, and for no more.
#[derive(Debug)]
struct Memory {
    words: Vec<u32>,
    len: usize,
}

impl Memory {
    fn new(len: usize, byte: impl FnMut(usize) -> u8) -> Self {
        let mut memory = Self { words: vec![0; len.div_ceil(4) + 4], len };
        let bytes: Vec<u8> = (0..len).map(byte).collect();
        memory.bytes_mut().copy_from_slice(&bytes);
        memory
    }

    /// Where the memory begins: past a word if that is a multiple of 16 bytes.
    fn start(&self) -> usize {
        if self.words.as_ptr().addr().is_multiple_of(16) { 4 } else { 0 }
    }

    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[self.start()..][..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let start = self.start();
        &mut bytemuck::cast_slice_mut(&mut self.words)[start..][..self.len]
    }
}

impl Clone for Memory {
    fn clone(&self) -> Self {
        // Other words may begin elsewhere.
        Self::new(self.len, |i| self.bytes()[i])
    }
}

/// A cache with its memory.
#[derive(Debug, Clone)]
struct Cache {
    rows: CacheRows,
    dims: CacheDims,
    group: usize,
    memory: [Memory; 2],
}

impl Cache {
    fn new(layout: CacheLayout, dims: CacheDims, types: (ElementType, Option<ElementType>), group: usize) -> Self {
        let rows = CacheRows::new(layout, dims, types.0, types.1.map(|t3| (group, t3))).unwrap();
        let memory = [rows.cache_len(), rows.scale_len()].map(|len| Memory::new(len, |_| 0));
        Self { rows, dims, group, memory }
    }

    /// Fills it with numbers made of `next`: keys and scales of common sizes, now and then any bits.
    fn fill(&mut self, next: &mut impl FnMut() -> u64) {
        let (t2, t3) = self.rows.types();
        for (memory, element) in self.memory.iter_mut().zip([Some(t2), t3]) {
            let mut number = || {
                let bits = next();
                let plain = ((bits >> 32) as u32 as f32 / u32::MAX as f32 - 0.5) * 8.0;
                if bits.is_multiple_of(101) { f32::from_bits((bits >> 32) as u32) } else { plain }
            };
            match element {
                Some(Float32) => {
                    memory.bytes_mut().as_chunks_mut().0.iter_mut().for_each(|x| *x = number().to_ne_bytes())
                }
                Some(Float16) => {
                    let f16s = memory.bytes_mut().as_chunks_mut().0;
                    f16s.iter_mut().for_each(|x| *x = f16::from_f32(number()).to_ne_bytes());
                }
                _ => memory.bytes_mut().iter_mut().for_each(|code| *code = next() as u8),
            }
        }
    }

    fn rotate(&mut self, by: Kernel, rotations: &[Rotation], rope: &Rope) -> Result<(), RowsError> {
        let Self { rows, memory: [cache, scale], .. } = self;
        let (cache, scale) = (cache.bytes_mut(), scale.bytes_mut());
        match by {
            Kernel::Reference => Reference.rotate_keys(rows, cache, scale, rotations, rope),
            Kernel::Cpu(cpu) => cpu.rotate_keys(rows, cache, scale, rotations, rope, &Threads),
        }
    }

    /// What a slot has in `cache` and in `scale`, in canonical order.
    fn read(&self, slot: usize) -> [Vec<u8>; 2] {
        let mut row = vec![0; self.rows.row_len()];
        self.rows.read(self.memory[0].bytes(), self.memory[1].bytes(), &[slot], &mut row).unwrap();
        let scales = row.split_off(self.rows.cache_len() / self.dims.max_t);
        [row, scales]
    }

    fn write(&mut self, slot: usize, row: [Vec<u8>; 2]) {
        let [cache, scale] = &mut self.memory;
        self.rows.write(cache.bytes_mut(), scale.bytes_mut(), &[slot], &row.concat()).unwrap();
    }

    /// What a rotation leaves, row by row and head by head, by the codec and the rope alone.
    fn rotated(&self, rotations: &[Rotation], rope: &Rope) -> Self {
        let mut rotated = self.clone();
        for &Rotation { slot, len, delta } in rotations.iter().filter(|rotation| rotation.delta != 0) {
            for slot in slot..slot + len {
                let [mut cells, mut scales] = self.read(slot);
                let heads = 2 * self.dims.num_layer * self.dims.num_heads;
                let (cell_len, scale_len) = (cells.len() / heads, scales.len() / heads);
                for head in (0..heads).filter(|head| (head / self.dims.num_heads).is_multiple_of(2)) {
                    let cells = &mut cells[head * cell_len..][..cell_len];
                    self.rotate_head(cells, &mut scales[head * scale_len..][..scale_len], delta, rope);
                }
                rotated.write(slot, [cells, scales]);
            }
        }
        rotated
    }

    fn rotate_head(&self, cells: &mut [u8], scales: &mut [u8], delta: i64, rope: &Rope) {
        let mut values = vec![0.0f32; self.dims.inner];
        let floats = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|&x| f32::from_ne_bytes(x)).collect::<Vec<_>>();
        let halves = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|&x| f16::from_ne_bytes(x)).collect::<Vec<_>>();
        let types = self.rows.types();
        let codec =
            HeadCodec { bits: if types.0 == Int4 { QuantBit::Four } else { QuantBit::Eight }, group: self.group };
        match types {
            (Float32, _) => values = floats(cells),
            (Float16, _) => values = halves(cells).iter().map(|x| x.to_f32()).collect(),
            (_, Some(Float16)) => codec.decode(cells, &halves(scales), &mut values),
            _ => codec.decode(cells, &floats(scales), &mut values),
        }
        rope.rotate(delta, &mut values);
        let turned = &values[..rope.n_rot()];
        let write = |bytes: &mut [u8], new: Vec<u8>| bytes[..new.len()].copy_from_slice(&new);
        match types {
            (Float32, _) => write(cells, turned.iter().flat_map(|x| x.to_ne_bytes()).collect()),
            (Float16, _) => write(cells, turned.iter().flat_map(|&x| f16::from_f32(x).to_ne_bytes()).collect()),
            (_, Some(Float16)) => {
                let mut new = halves(scales);
                codec.encode(&values, cells, &mut new);
                write(scales, new.iter().flat_map(|x| x.to_ne_bytes()).collect());
            }
            _ => {
                let mut new = floats(scales);
                codec.encode(&values, cells, &mut new);
                write(scales, new.iter().flat_map(|x| x.to_ne_bytes()).collect());
            }
        }
    }

    /// The numbers in `cache` and `scale` as bits, of which all that are NaN are the same.
    fn bits(&self) -> [Vec<u32>; 2] {
        let (t2, t3) = self.rows.types();
        [(&self.memory[0], Some(t2)), (&self.memory[1], t3)].map(|(memory, element)| {
            let number = |x: f32, bits: u32| if x.is_nan() { u32::MAX } else { bits };
            match element {
                Some(Float32) => {
                    let numbers = memory.bytes().as_chunks().0.iter().map(|&x| f32::from_ne_bytes(x));
                    numbers.map(|x| number(x, x.to_bits())).collect()
                }
                Some(Float16) => {
                    let numbers = memory.bytes().as_chunks().0.iter().map(|&x| f16::from_ne_bytes(x));
                    numbers.map(|x| number(x.to_f32(), x.to_bits().into())).collect()
                }
                _ => memory.bytes().iter().map(|&code| code.into()).collect(),
            }
        })
    }
}

/// What rotates.
#[derive(Debug, Clone, Copy)]
enum Kernel {
    Reference,
    Cpu(Cpu),
}

impl Kernel {
    /// Those of this machine; of each CPU kernel one that shares work from the first byte on.
    fn all() -> impl Iterator<Item = Self> {
        let cpus = InstructionSet::ALL.into_iter().filter_map(Cpu::with_instructions);
        let cpus = cpus.flat_map(|cpu| [cpu, cpu.with_parallel_bytes(0)]);
        std::iter::once(Self::Reference).chain(cpus.map(Self::Cpu))
    }
}

/// Two threads.
struct Threads;

impl Workers for Threads {
    fn threads(&self) -> usize {
        2
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| (0..tasks).for_each(|i| drop(scope.spawn(move || task(i)))));
    }
}

/// Numbers that a seed determines.
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

/// Normal numbers that a seed determines (Box and Muller).
fn normal(next: &mut impl FnMut() -> u64) -> f64 {
    let mut uniform = || ((next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let (radius, angle) = ((-2.0 * uniform().ln()).sqrt(), std::f64::consts::TAU * uniform());
    radius * angle.cos()
}

/// A head of a cache of one slot that is rotated once by `by`.
fn rotate_one(by: Kernel, values: &[f32], delta: i64, rope: &Rope) -> Vec<f32> {
    let dims = CacheDims { max_t: 1, num_layer: 1, num_heads: 1, inner: values.len() };
    let mut cache = Cache::new(CacheLayout::TokenMajor, dims, (Float32, None), 1);
    cache.memory[0].bytes_mut()[..4 * values.len()].copy_from_slice(bytemuck::cast_slice(values));
    cache.rotate(by, &[Rotation { slot: 0, len: 1, delta }], rope).unwrap();
    bytemuck::cast_slice(&cache.memory[0].bytes()[..4 * values.len()]).to_vec()
}

#[test]
fn g10_a_key_of_four() {
    for kernel in Kernel::all() {
        for (rope, expected) in [
            (Rope::neox(4, 1e4), [-1.984_110_6, 1.959_900_6, 2.462_377_8, 4.019_799_7]),
            (Rope::gptj(4, 1e4), [-1.142_639_6, 1.922_075_5, 2.959_850_8, 4.029_799_5]),
            (Rope::neox(2, 1e4), [-1.142_639_6, 1.922_075_5, 3.0, 4.0]),
        ] {
            let got = rotate_one(kernel, &[1.0, 2.0, 3.0, 4.0], 1, &rope);
            for (got, expected) in got.iter().zip(expected) {
                assert!((got - expected).abs() < 1e-6, "{kernel:?} {rope:?}: {got}, expected {expected}");
            }
        }
    }
}

#[test]
fn g11_a_key_of_int8() {
    let dims = CacheDims { max_t: 1, num_layer: 1, num_heads: 1, inner: 8 };
    for kernel in Kernel::all() {
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

/// The error of a key that is stored with scales of float16, and then shifted again and again.
#[test]
fn g12_errors_add_up() {
    let dims = CacheDims { max_t: 512, num_layer: 1, num_heads: 1, inner: 128 };
    let rope = Rope::neox(128, 1e4);
    for (t2, bits, group, expected) in [
        (Int8, QuantBit::Eight, 8, [0.004, 0.006, 0.011, 0.027]),
        (Int4, QuantBit::Four, 32, [0.097, 0.13, 0.22, 0.54]),
    ] {
        let mut next = random(12);
        let keys: Vec<f64> = (0..dims.max_t * dims.inner).map(|_| normal(&mut next)).collect();
        let codec = HeadCodec { bits, group };
        let mut cache = Cache::new(CacheLayout::KvMajor, dims, (t2, Some(Float16)), group);
        let (code_len, scale_len) = (codec.code_bytes(128), 2 * 128 / group);
        for (slot, key) in keys.chunks(128).enumerate() {
            let key: Vec<f32> = key.iter().map(|&x| x as f32).collect();
            let mut scales = vec![f16::ZERO; 128 / group];
            codec.encode(&key, &mut cache.memory[0].bytes_mut()[slot * code_len..][..code_len], &mut scales);
            let bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_ne_bytes()).collect();
            cache.memory[1].bytes_mut()[slot * scale_len..][..scale_len].copy_from_slice(&bytes);
        }
        let error = |cache: &Cache, shifts: i64| {
            let (mut errors, mut squares) = (0.0, 0.0);
            for (slot, key) in keys.chunks(128).enumerate() {
                let bytes = &cache.memory[1].bytes()[slot * scale_len..][..scale_len];
                let scales: Vec<_> = bytes.as_chunks().0.iter().map(|&scale| f16::from_ne_bytes(scale)).collect();
                let mut values = [0.0f32; 128];
                codec.decode(&cache.memory[0].bytes()[slot * code_len..][..code_len], &scales, &mut values);
                for (pair, f) in rope.frequencies().enumerate() {
                    let (s, c) = (f * (-50 * shifts) as f64).sin_cos();
                    let (a, b) = (key[pair], key[pair + 64]);
                    for (got, expected) in [(values[pair], a * c - b * s), (values[pair + 64], a * s + b * c)] {
                        errors += (f64::from(got) - expected).powi(2);
                        squares += expected.powi(2);
                    }
                }
            }
            (errors / squares).sqrt()
        };
        for (shifts, expected) in [0, 1, 4, 16].into_iter().zip(expected) {
            let mut shifted = cache.clone();
            for _ in 0..shifts {
                let all = Rotation { slot: 0, len: dims.max_t, delta: -50 };
                shifted.rotate(Kernel::Cpu(Cpu::default()), &[all], &rope).unwrap();
            }
            let got: f64 = error(&shifted, shifts);
            assert!((got / expected - 1.0).abs() < 0.15, "{t2} after {shifts}: {got}, expected about {expected}");
        }
    }
}

/// Keys of positions 100..173 that are turned by -67 are those of positions 33..106.
#[test]
fn rotations_add_up() {
    for rope in [Rope::neox(64, 1e4), Rope::gptj(64, 5e5), Rope::neox(32, 1e4).scaled(0.25)] {
        let dims = CacheDims { max_t: 73, num_layer: 2, num_heads: 2, inner: 64 };
        let mut next = random(7);
        let keys: Vec<Vec<f32>> =
            (0..73).map(|_| (0..2 * 2 * 2 * 64).map(|_| normal(&mut next) as f32).collect()).collect();
        // Key of row t as at position `at`: elements by layer, key/value and head.
        let roped = |t: usize, at: i64| -> Vec<f32> {
            let mut row = keys[t].clone();
            let keys = row.chunks_mut(64).enumerate().filter(|(i, _)| (i / 2).is_multiple_of(2));
            keys.for_each(|(_, head)| rope.rotate(at, head));
            row
        };
        for kernel in Kernel::all() {
            let mut cache = Cache::new(CacheLayout::LayerMajor, dims, (Float32, None), 1);
            let all: Vec<_> = (0..73).collect();
            let rows: Vec<f32> = (0..73).flat_map(|t| roped(t, 100 + t as i64)).collect();
            let [memory, scale] = &mut cache.memory;
            cache.rows.write(memory.bytes_mut(), scale.bytes_mut(), &all, bytemuck::cast_slice(&rows)).unwrap();
            cache.rotate(kernel, &[Rotation { slot: 0, len: 73, delta: -67 }], &rope).unwrap();
            for t in 0..73 {
                let [row, _] = cache.read(t);
                let numbers = row.as_chunks().0.iter().map(|&x| f32::from_ne_bytes(x));
                for (got, expected) in numbers.zip(roped(t, 33 + t as i64)) {
                    assert!((got - expected).abs() < 1e-5, "{kernel:?} {rope:?} row {t}: {got}, expected {expected}");
                }
            }
        }
    }
}

/// A cache with rotations, and a rope that fits it.
fn rotations() -> impl Strategy<Value = (Cache, Vec<Rotation>, Rope)> {
    let axes = (1usize..40, 1usize..3, 1usize..4);
    // Groups that kernels have functions of their own for, and others; heads up to and past the buffer of a thread.
    let inner = (prop::sample::select(&[1usize, 2, 3, 4, 6, 8, 16, 32, 33, 64, 128, 200][..]), 1usize..5, 0..40u32);
    let layout = prop::sample::select(&CacheLayout::ALL[..]);
    (layout, prop::sample::select(&TYPES[..]), axes, inner, any::<u64>()).prop_flat_map(
        |(layout, types, (max_t, num_layer, num_heads), (group, groups, long), seed)| {
            let group = if types.0 == Int4 { group + group % 2 } else { group };
            let groups = if long == 0 { 4200 / group + 1 } else { groups };
            let max_t = if long == 0 { max_t.min(3) } else { max_t };
            let inner = (group * groups).max(2).next_multiple_of(group);
            let mut cache = Cache::new(layout, CacheDims { max_t, num_layer, num_heads, inner }, types, group);
            cache.fill(&mut random(seed));
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
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// Every kernel turns the keys of the named slots, and leaves all other bytes as they are.
    #[test]
    fn every_kernel_rotates_as_the_formulas_say((cache, rotations, rope) in rotations()) {
        let expected = cache.rotated(&rotations, &rope);
        for kernel in Kernel::all() {
            let mut rotated = cache.clone();
            rotated.rotate(kernel, &rotations, &rope).unwrap();
            prop_assert_eq!(rotated.bits(), expected.bits(), "{:?}", kernel);
        }
        let mut rotated = cache.clone();
        let [memory, scale] = &mut rotated.memory;
        cache.rows.rotate_keys(memory.bytes_mut(), scale.bytes_mut(), &rotations, &rope, &Serial).unwrap();
        prop_assert_eq!(rotated.bits(), expected.bits());
    }

    /// Bytes, not only numbers: values, other slots, keys turned by 0, and floats that no pair has.
    #[test]
    fn what_is_not_turned_keeps_its_bytes((cache, rotations, rope) in rotations()) {
        for kernel in Kernel::all() {
            let mut rotated = cache.clone();
            rotated.rotate(kernel, &rotations, &rope).unwrap();
            for slot in 0..cache.dims.max_t {
                let turned = rotations.iter().any(|&Rotation { slot: first, len, delta }| {
                    (first..first + len).contains(&slot) && delta != 0
                });
                let float = matches!(cache.rows.types().0, Float32 | Float16);
                for (before, after) in cache.read(slot).iter().zip(rotated.read(slot)) {
                    let head_len = before.len() / (2 * cache.dims.num_layer * cache.dims.num_heads);
                    if head_len == 0 {
                        continue;
                    }
                    let heads = before.chunks(head_len).zip(after.chunks(head_len));
                    for (head, (before, after)) in heads.enumerate() {
                        let key = (head / cache.dims.num_heads).is_multiple_of(2);
                        let kept = match (turned && key, float) {
                            (false, _) => 0,
                            (true, true) => head_len / cache.dims.inner * rope.n_rot(),
                            (true, false) => head_len,
                        };
                        prop_assert_eq!(&before[kept..], &after[kept..], "slot {} head {}", slot, head);
                    }
                }
            }
        }
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
        for kernel in Kernel::all() {
            prop_assert_eq!(&rotate_one(kernel, &head, delta, &rope), &expected, "{:?}", kernel);
        }
    }
}

const DIMS: CacheDims = CacheDims { max_t: 8, num_layer: 2, num_heads: 2, inner: 16 };

#[test]
fn what_is_refused_changes_nothing() {
    let turn = |slot, len| Rotation { slot, len, delta: 3 };
    let fine = turn(0, 2);
    let rope = Rope::neox(16, 1e4);
    for types in TYPES {
        let mut cache = Cache::new(CacheLayout::HeadMajor, DIMS, types, 8);
        cache.fill(&mut random(1));
        let before = cache.clone();
        let n_rot = |n_rot| RowsError::Rope(RopeError::NRot { n_rot, head_dim: 16 });
        let slots = |start, len| RowsError::Slots { start, len, max_t: 8 };
        let list = |inv_freq| Rope::with_frequencies(RopeStyle::Neox, inv_freq);
        let infinite = RowsError::Rope(RopeError::Frequency { pair: 1, got: f64::INFINITY });
        for kernel in Kernel::all() {
            for (rotations, rope, error) in [
                (vec![fine], Rope::neox(0, 1e4), n_rot(0)),
                (vec![fine], Rope::neox(3, 1e4), n_rot(3)),
                (vec![fine], Rope::gptj(18, 1e4), n_rot(18)),
                (vec![fine], Rope::gptj(usize::MAX - 1, 1e4), n_rot(usize::MAX - 1)),
                (vec![fine], list(vec![]), n_rot(0)),
                (vec![fine], list(vec![1.0, f64::INFINITY]), infinite),
                (vec![fine], Rope::neox(16, 0.0), infinite),
                (vec![fine, turn(8, 1)], rope.clone(), slots(8, 1)),
                (vec![fine, turn(3, 6)], rope.clone(), slots(3, 6)),
                (vec![fine, turn(usize::MAX, 2)], rope.clone(), slots(usize::MAX, 2)),
                (vec![turn(4, 1), turn(5, 2), turn(2, 3)], rope.clone(), RowsError::RotatedTwice { slot: 4 }),
                (
                    vec![turn(4, 2), Rotation { slot: 5, len: 1, delta: 0 }],
                    rope.clone(),
                    RowsError::RotatedTwice { slot: 5 },
                ),
            ] {
                assert_eq!(cache.rotate(kernel, &rotations, &rope), Err(error));
            }
            let [memory, scale] = &mut cache.memory;
            let (memory, scale) = (memory.bytes_mut(), scale.bytes_mut());
            let rows = &cache.rows;
            let rotate = |memory: &mut [u8], scale: &mut [u8]| match kernel {
                Kernel::Reference => Reference.rotate_keys(rows, memory, scale, &[fine], &rope),
                Kernel::Cpu(cpu) => cpu.rotate_keys(rows, memory, scale, &[fine], &rope, &Serial),
            };
            let (expected, got) = (memory.len(), memory.len() - 1);
            assert_eq!(rotate(&mut memory[1..], scale), Err(RowsError::Length { memory: "cache", expected, got }));
            if types.1.is_some() {
                let expected = scale.len();
                assert_eq!(rotate(memory, &mut []), Err(RowsError::Length { memory: "scale", expected, got: 0 }));
            }
            // Empty rotations may be anywhere inside, and touch others.
            assert_eq!(cache.rotate(kernel, &[turn(8, 0), turn(3, 0), turn(3, 0)], &rope), Ok(()));
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
        let [mut cache, mut scale] = [rows.cache_len(), rows.scale_len()].map(|len| Memory::new(len + 1, |_| 0));
        let at = |element: ElementType| usize::from(element.align() == expected);
        let (cache_at, scale_at) = (at(types.0), types.1.map_or(0, at));
        let cache = &mut cache.bytes_mut()[cache_at..][..rows.cache_len()];
        let scale = &mut scale.bytes_mut()[scale_at..][..rows.scale_len()];
        let address = if memory == "cache" { cache.as_ptr().addr() } else { scale.as_ptr().addr() };
        let turn = Rotation { slot: 0, len: 1, delta: 1 };
        let error = rows.rotate_keys(cache, scale, &[turn], &Rope::neox(16, 1e4), &Serial).unwrap_err();
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
        assert_eq!(Reference.rotate_keys(&rows, &mut [], &mut [], &all, &rope), Ok(()));
    }
}

#[test]
fn ropes_are_equal_if_they_turn_alike() {
    let rope = Rope::neox(8, 1e4).scaled(0.5);
    assert_eq!(rope, Rope::with_frequencies(RopeStyle::Neox, rope.frequencies().collect()));
    assert_eq!(Rope::neox(8, 1e4), Rope::with_frequencies(RopeStyle::Neox, rope.frequencies().collect()).scaled(2.0));
    for other in [Rope::neox(8, 1e4), Rope::gptj(8, 1e4).scaled(0.5), Rope::neox(6, 1e4).scaled(0.5)] {
        assert_ne!(rope, other);
    }
    let frequencies: Vec<_> = Rope::gptj(8, 1e4).frequencies().collect();
    assert_eq!(frequencies, [1.0, 0.1, 0.01, 0.001]);
}

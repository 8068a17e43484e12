//! [`CacheRows`] against a naive model: a cache as a list of rows, each a list of numbers.

use std::ops::Range;

use kvcache_kernels::{CacheRows, RowCopy, RowsError, Serial, SlotLines, Workers};
use kvcache_schema::{Axis, CacheDims, CacheLayout, ElementType, TypeCombination};
use kvcache_testing::backends::Threads;
use proptest::prelude::*;

/// What a cache is made from.
#[derive(Debug, Clone, Copy)]
pub struct Cache {
    pub layout: CacheLayout,
    pub dims: CacheDims,
    pub t2: ElementType,
    pub quant: Option<(usize, ElementType)>,
}

/// One tensor as numbers: by slot, then by layer, key/value, head and element.
pub type Rows = Vec<Vec<u32>>;

/// A cache's memory, and what should be in it.
pub struct Model {
    pub memory: [Vec<u8>; 2],
    pub rows: [Rows; 2],
}

impl Cache {
    pub fn rows(&self) -> CacheRows {
        CacheRows::new(self.layout, self.dims, self.t2, self.quant).unwrap()
    }

    /// Type and lengths of `cache` and of `scale`.
    fn tensors(&self) -> [(ElementType, CacheDims); 2] {
        let (group, t3) = self.quant.unwrap_or((1, ElementType::Float32));
        let inner = if self.quant.is_some() { self.dims.inner / group } else { 0 };
        [(self.t2, self.dims), (t3, CacheDims { inner, ..self.dims })]
    }

    /// A cache of which every element is another number, as far as its type has as many.
    pub fn filled(&self, seed: u32) -> Model {
        let rows = self.tensors().map(|(element, dims)| {
            let len = dims.num_layer * 2 * dims.num_heads * dims.inner;
            let number = |i: usize| {
                let number = seed.wrapping_add(i as u32).wrapping_mul(0x9e37_79b9);
                number >> (32 - element.bits())
            };
            (0..dims.max_t).map(|slot| (0..len).map(|i| number(slot * len + i)).collect()).collect()
        });
        Model { memory: self.memory(&rows), rows }
    }

    /// The tensors' bytes: each number at its place in the shape, row-major.
    pub fn memory(&self, rows: &[Rows; 2]) -> [Vec<u8>; 2] {
        let mut tensors = self.tensors().into_iter().zip(rows).map(|((element, dims), rows)| {
            let shape = self.layout.shape(dims);
            let mut numbers = vec![0; shape.iter().product()];
            for (slot, row) in rows.iter().enumerate() {
                for (i, &number) in row.iter().enumerate() {
                    let (head, d) = (i / dims.inner, i % dims.inner);
                    let (kv, h) = (head / dims.num_heads, head % dims.num_heads);
                    let at = self.layout.axes().map(|axis| match axis {
                        Axis::Token => slot,
                        Axis::Layer => kv / 2,
                        Axis::Kv => kv % 2,
                        Axis::Head => h,
                    });
                    let place = at.iter().zip(shape).fold(0, |place, (&at, len)| place * len + at);
                    numbers[place * dims.inner + d] = number;
                }
            }
            packed(element, &numbers)
        });
        [tensors.next().unwrap(), tensors.next().unwrap()]
    }

    /// The canonical row of a slot.
    pub fn canonical(&self, rows: &[Rows; 2], slot: usize) -> Vec<u8> {
        self.tensors().iter().zip(rows).flat_map(|((element, _), rows)| packed(*element, &rows[slot])).collect()
    }
}

/// Numbers as a tensor has them.
fn packed(element: ElementType, numbers: &[u32]) -> Vec<u8> {
    match element {
        ElementType::Int4 => numbers.chunks(2).map(|pair| pair[0] as u8 | (pair[1] as u8) << 4).collect(),
        _ => numbers.iter().flat_map(|number| number.to_le_bytes().into_iter().take(element.bits() / 8)).collect(),
    }
}

pub fn caches() -> impl Strategy<Value = Cache> {
    let axes = (0usize..14, 1usize..4, 1usize..4, 1usize..5, 1usize..4);
    (
        prop::sample::select(&CacheLayout::ALL[..]),
        prop::sample::select(TypeCombination::all().collect::<Vec<_>>()),
        axes,
    )
        .prop_map(|(layout, TypeCombination { t2, t3, .. }, (max_t, num_layer, num_heads, groups, group))| {
            let group = if t2 == ElementType::Int4 { 2 * group } else { group };
            let dims = CacheDims { max_t, num_layer, num_heads, inner: groups * group };
            Cache { layout, dims, t2, quant: t3.map(|t3| (group, t3)) }
        })
}

/// Slots inside a cache of `max_t`.
fn runs(max_t: usize) -> impl Strategy<Value = Range<usize>> {
    (0..=max_t, 0..=max_t).prop_map(|(a, b)| a.min(b)..a.max(b))
}

/// Some slots of a cache of `max_t`, in any order.
pub fn slots(max_t: usize) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0..max_t.max(1), if max_t == 0 { 0..1 } else { 0..9 })
}

fn copies(max_t: usize) -> impl Strategy<Value = RowCopy> {
    (runs(max_t), 0..=max_t).prop_map(move |(src, dst)| {
        let len = src.len();
        RowCopy { src: src.start, dst: dst.min(max_t - len), len }
    })
}

/// A cache, and what `slots` makes of its `max_t`.
pub fn with<S: Strategy>(slots: impl Fn(usize) -> S) -> impl Strategy<Value = (Cache, S::Value)>
where
    S::Value: Clone,
{
    caches().prop_flat_map(move |cache| (Just(cache), slots(cache.dims.max_t)))
}

proptest! {
    #[test]
    fn copies_move_rows_one_after_the_other(
        (cache, copies) in with(|max_t| prop::collection::vec(copies(max_t), 0..6)),
        seed: u32,
    ) {
        let mut model = cache.filled(seed);
        for &RowCopy { src, dst, len } in &copies {
            for rows in &mut model.rows {
                let moved = rows[src..src + len].to_vec();
                rows[dst..dst + len].clone_from_slice(&moved);
            }
        }
        let [memory, scale] = &mut model.memory;
        cache.rows().copy(memory, scale, &copies, &Serial).unwrap();
        prop_assert_eq!(model.memory, cache.memory(&model.rows));
    }

    #[test]
    fn rows_are_read_and_written_in_canonical_order(
        (cache, slots) in with(slots),
        other in prop::sample::select(&CacheLayout::ALL[..]),
        seed: u32,
    ) {
        let model = cache.filled(seed);
        let rows = cache.rows();
        let mut read = vec![0xa5; slots.len() * rows.row_len()];
        rows.read(&model.memory[0], &model.memory[1], &slots, &mut read).unwrap();
        let expected: Vec<u8> =
            slots.iter().flat_map(|&slot| cache.canonical(&model.rows, slot)).collect();
        prop_assert_eq!(&read, &expected);

        // Into another cache, of another layout and with other contents.
        let target = Cache { layout: other, ..cache };
        let mut written = target.filled(seed ^ 0x5555_5555);
        let [memory, scale] = &mut written.memory;
        target.rows().write(memory, scale, &slots, &read).unwrap();
        for (to, from) in written.rows.iter_mut().zip(&model.rows) {
            for &slot in &slots {
                to[slot].clone_from(&from[slot]);
            }
        }
        prop_assert_eq!(written.memory, target.memory(&written.rows));
    }

    /// As many rows at once as take another path are those that are moved one by one, at any address, and what is
    /// around them stays.
    #[test]
    fn many_rows_are_moved_as_single_ones(
        cache in caches().prop_filter("rows", |cache| cache.dims.max_t > 0),
        other in prop::sample::select(&CacheLayout::ALL[..]),
        factor in prop::sample::select(vec![13, 64]),
        past_line in 0..64usize,
        seed: usize,
    ) {
        let dims = CacheDims { inner: cache.dims.inner * factor, ..cache.dims };
        let (cache, target) = (Cache { dims, ..cache }, Cache { dims, layout: other, ..cache });
        let (rows, target) = (cache.rows(), target.rows());
        let bytes = |len: usize| (0..len).map(|i| (i ^ seed).wrapping_mul(0x9e37_79b9).to_le_bytes()[3]).collect();
        let memory: [Vec<u8>; 2] = [rows.cache_len(), rows.scale_len()].map(bytes);
        let (row_len, first) = (rows.row_len(), past_line + 1);
        let slots: Vec<usize> = (0..(1 << 20) / row_len).map(|i| (i * 7 + seed % 64) % dims.max_t).collect();

        let mut expected = vec![0xa5; first + slots.len() * row_len + 64];
        let mut read = expected.clone();
        let of_rows = first..first + slots.len() * row_len;
        for (slot, row) in slots.iter().zip(expected[of_rows.clone()].chunks_exact_mut(row_len)) {
            rows.read(&memory[0], &memory[1], &[*slot], row).unwrap();
        }
        rows.read(&memory[0], &memory[1], &slots, &mut read[of_rows.clone()]).unwrap();
        prop_assert!(read == expected);

        let mut single = [target.cache_len(), target.scale_len()].map(|len| vec![0x5a; first + len + 64]);
        let mut many = single.clone();
        let [single_cache, single_scale] = single.each_mut().map(|memory| &mut memory[first..]);
        let [many_cache, many_scale] = many.each_mut().map(|memory| &mut memory[first..]);
        let (cache_len, scale_len) = (target.cache_len(), target.scale_len());
        for (slot, row) in slots.iter().zip(read[of_rows.clone()].chunks_exact(row_len)) {
            target.write(&mut single_cache[..cache_len], &mut single_scale[..scale_len], &[*slot], row).unwrap();
        }
        let (many_cache, many_scale) = (&mut many_cache[..cache_len], &mut many_scale[..scale_len]);
        target.write(many_cache, many_scale, &slots, &read[of_rows]).unwrap();
        prop_assert!(many == single);
    }

    /// The lines of some slots hold just what the slots' heads hold, of one layer or of all.
    #[test]
    fn lines_hold_the_slots((cache, slots) in with(runs), layer: Option<prop::sample::Index>) {
        let layer = layer.map(|layer| layer.index(cache.dims.num_layer));
        let mut model = cache.filled(0);
        for rows in &mut model.rows {
            for (slot, row) in rows.iter_mut().enumerate() {
                let of_layer = (row.len() / cache.dims.num_layer).max(1);
                for (l, row) in row.chunks_mut(of_layer).enumerate() {
                    row.fill(u32::from(slots.contains(&slot) && layer.is_none_or(|layer| layer == l)) * u32::MAX);
                }
            }
        }
        let lines = cache.rows().lines(layer, slots).unwrap();
        for (mask, SlotLines { start, pitch, width, height }) in cache.memory(&model.rows).iter().zip(lines) {
            let mut inside = vec![0; mask.len()];
            (0..height).for_each(|line| inside[start + line * pitch..][..width].fill(0xff));
            prop_assert_eq!(mask, &inside);
        }
    }
}

const INT8: Cache = Cache {
    layout: CacheLayout::HeadMajor,
    dims: CacheDims { max_t: 8, num_layer: 2, num_heads: 3, inner: 16 },
    t2: ElementType::Int8,
    quant: Some((8, ElementType::Float16)),
};

#[test]
fn what_is_refused_changes_nothing() {
    let rows = INT8.rows();
    let mut model = INT8.filled(1);
    let before = model.memory.clone();
    let [memory, scale] = &mut model.memory;
    let copy = |src, dst, len| RowCopy { src, dst, len };
    assert_eq!(rows.layer(2), Err(RowsError::Layer { layer: 2, num_layer: 2 }));
    let slots = |start, len| Err(RowsError::Slots { start, len, max_t: 8 });
    // The first copy alone would do.
    assert_eq!(rows.copy(memory, scale, &[copy(0, 4, 4), copy(5, 0, 4)], &Serial), slots(5, 4));
    assert_eq!(rows.copy(memory, scale, &[copy(0, 4, 4), copy(0, 8, 1)], &Serial), slots(8, 1));
    assert_eq!(rows.copy(memory, scale, &[copy(0, 4, 4), copy(usize::MAX, 0, 2)], &Serial), slots(usize::MAX, 2));
    let length = |memory, expected, got| Err(RowsError::Length { memory, expected, got });
    assert_eq!(rows.copy(&mut memory[1..], scale, &[copy(0, 4, 4)], &Serial), length("cache", 1536, 1535));
    assert_eq!(rows.copy(memory, &mut [], &[copy(0, 4, 4)], &Serial), length("scale", 384, 0));
    assert_eq!(rows.row_len(), 240);
    assert_eq!(rows.write(memory, scale, &[0, 1], &[0; 479]), length("rows", 480, 479));
    assert_eq!(rows.write(memory, scale, &[0, 1, 8], &[0; 720]), slots(8, 1));
    assert_eq!(rows.read(memory, scale, &[0, 3], &mut [0; 240]), length("rows", 480, 240));
    assert_eq!(rows.lines(None, 3..9).err(), slots(3, 6).err());
    assert_eq!(rows.lines(Some(2), 3..8).err(), Some(RowsError::Layer { layer: 2, num_layer: 2 }));
    assert_eq!(model.memory, before);
}

#[test]
fn what_no_cache_can_be_is_refused() {
    let Cache { layout, dims, .. } = INT8;
    use ElementType::{Float16, Float32, Int4, Int8, Int64};
    for (t2, t3) in [(Int64, None), (Int4, None), (Float16, Some(Float16)), (Int8, Some(Int8))] {
        let error = CacheRows::new(layout, dims, t2, t3.map(|t3| (8, t3)));
        assert_eq!(error, Err(RowsError::Types { t2, t3 }));
    }
    for (t2, group) in [(Int8, 0), (Int8, 3), (Int8, 32), (Int4, 1)] {
        let error = CacheRows::new(layout, dims, t2, Some((group, Float32)));
        assert_eq!(error, Err(RowsError::QuantGroup { group, head_dim: 16 }));
    }
    // As elements, and as bytes.
    for (max_t, t2) in [(usize::MAX / 8, Int8), (usize::MAX / 192 / 3, Float32)] {
        for layout in CacheLayout::ALL {
            let dims = CacheDims { max_t, ..dims };
            let error = RowsError::SizeOverflow { tensor: "cache", shape: layout.shape(dims) };
            assert_eq!(CacheRows::new(layout, dims, t2, None), Err(error));
        }
    }
    // Strides whose bytes overflow, too.
    let dims = CacheDims { max_t: 1 << 40, num_layer: 1, num_heads: 1 << 21, inner: 1 };
    let error = CacheRows::new(CacheLayout::LayerMajor, dims, Float32, None);
    assert!(matches!(error, Err(RowsError::SizeOverflow { tensor: "cache", .. })));
    assert_eq!(
        RowsError::Types { t2: Float16, t3: Some(Float16) }.to_string(),
        "no quant_bit has cache float16 with scale float16"
    );
}

#[test]
fn an_empty_cache_has_no_rows() {
    let huge = usize::MAX;
    for layout in CacheLayout::ALL {
        for dims in [
            CacheDims { max_t: 0, ..INT8.dims },
            CacheDims { max_t: 0, num_layer: 1, num_heads: 1, inner: 16 },
            CacheDims { num_heads: 0, ..INT8.dims },
            CacheDims { max_t: huge, num_layer: huge, num_heads: huge, inner: 0 },
        ] {
            let rows = CacheRows::new(layout, dims, ElementType::Int8, INT8.quant).unwrap();
            assert_eq!((rows.cache_len(), rows.scale_len(), rows.row_len()), (0, 0, 0));
            let all: Vec<_> = (0..dims.max_t.min(4)).collect();
            assert_eq!(rows.copy(&mut [], &mut [], &[RowCopy { src: 0, dst: 0, len: dims.max_t }], &Serial), Ok(()));
            assert_eq!(rows.read(&[], &[], &all, &mut []), Ok(()));
            assert_eq!(rows.write(&mut [], &mut [], &all, &[]), Ok(()));
        }
    }
}

/// Copies that are large enough to be shared, and of which later ones read what earlier ones have written.
#[test]
fn threads_share_large_copies() {
    let dims = CacheDims { max_t: 4096, num_layer: 3, num_heads: 2, inner: 256 };
    for layout in CacheLayout::ALL {
        let cache = Cache { layout, dims, t2: ElementType::Int8, quant: Some((64, ElementType::Float16)) };
        let rows = cache.rows();
        let mut serial = [rows.cache_len(), rows.scale_len()]
            .map(|len| (0..len).map(|i| (i as u32).wrapping_mul(0x9e37_79b9).to_be_bytes()[0]).collect::<Vec<_>>());
        let mut shared = serial.clone();
        let copies = [
            RowCopy { src: 0, dst: 100, len: 3000 },
            RowCopy { src: 150, dst: 3500, len: 500 },
            RowCopy { src: 3600, dst: 3590, len: 400 },
        ];
        let before = serial.clone();
        for ([cache, scale], workers) in [(&mut serial, &Serial as &dyn Workers), (&mut shared, &Threads(2))] {
            rows.copy(cache, scale, &copies, workers).unwrap();
        }
        assert!(serial == shared && serial != before, "{layout:?}");
    }
}

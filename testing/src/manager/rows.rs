//! Rows of a cache as a model makes them: numbers, their canonical bytes, and the K-shift of those bytes. Nothing here
//! knows of slots or layouts, and the rotation shares no code with the kernels: only the codec of a quantized head is
//! theirs.

use std::ops::Range;

use kvcache_kernels::quantize::HeadCodec;
use kvcache_kernels::{read_floats, write_floats};
use kvcache_manager::CacheSpecBuilder;
use kvcache_manager::schema::{ElementType, QuantBit};

/// Every type of a cache and its scales; without scales the first two are not used.
pub const TYPES: [(QuantBit, usize, Option<ElementType>, ElementType); 8] = {
    use ElementType::{Float8E4M3Fn, Float16, Float32, Int4, Int8};
    [
        (QuantBit::Eight, 0, None, Float32),
        (QuantBit::Eight, 0, None, Float16),
        (QuantBit::Eight, 0, None, Int8),
        (QuantBit::Eight, 2, Some(Float32), Int8),
        (QuantBit::Eight, 4, Some(Float16), Int8),
        (QuantBit::Four, 4, Some(Float32), Int4),
        (QuantBit::Four, 2, Some(Float16), Int4),
        (QuantBit::Float8, 4, Some(Float16), Float8E4M3Fn),
    ]
};

pub fn with_types(builder: CacheSpecBuilder, types: usize) -> CacheSpecBuilder {
    let (bit, group, scale_type, cache_type) = TYPES[types];
    match scale_type {
        Some(scale_type) => builder.quantized(bit, group, scale_type),
        None => builder.cache_type(cache_type),
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowFormat {
    pub num_layer: usize,
    pub num_heads: usize,
    pub head_dim: usize,
    pub types: usize,
}

/// A rotary embedding: pair `i` turns by `scale * base^(-2i / n_rot)` for each position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Turns {
    pub n_rot: usize,
    pub base: f64,
    pub scale: f64,
    pub neox: bool,
}

impl Turns {
    /// Rotates a head by `delta` positions. Cosine and sine are those of f64, rounded; every product and every sum is
    /// rounded to f32.
    pub fn turn(&self, head: &mut [f32], delta: i64) {
        let half = self.n_rot / 2;
        for i in 0..half {
            let frequency = self.scale * self.base.powf(-2.0 * i as f64 / self.n_rot as f64);
            let angle = delta as f64 * frequency;
            let (c, s) = (angle.cos() as f32, angle.sin() as f32);
            let (first, second) = if self.neox { (i, i + half) } else { (2 * i, 2 * i + 1) };
            let (a, b) = (head[first], head[second]);
            let (ac, bs) = (a * c, b * s);
            let (a_s, bc) = (a * s, b * c);
            head[first] = ac - bs;
            head[second] = a_s + bc;
        }
    }
}

impl RowFormat {
    fn codec(&self) -> HeadCodec {
        HeadCodec { bits: TYPES[self.types].0, group: TYPES[self.types].1 }
    }

    fn heads(&self) -> usize {
        self.num_layer * 2 * self.num_heads
    }

    fn head_len(&self) -> usize {
        TYPES[self.types].3.byte_len(self.head_dim)
    }

    fn scale_len(&self) -> usize {
        let (_, group, scale_type, _) = TYPES[self.types];
        scale_type.map_or(0, |scale_type| scale_type.byte_len(self.head_dim / group))
    }

    pub fn row_len(&self) -> usize {
        self.heads() * (self.head_len() + self.scale_len())
    }

    /// Where a head is in a row: its elements and its scales. Heads are counted along layers, keys before values.
    fn head(&self, head: usize) -> [Range<usize>; 2] {
        let range = |at: usize, len: usize| at + head * len..at + (head + 1) * len;
        [range(0, self.head_len()), range(self.heads() * self.head_len(), self.scale_len())]
    }

    pub fn encode(&self, values: &[f32]) -> Vec<u8> {
        let mut row = vec![0; self.row_len()];
        values.chunks(self.head_dim).enumerate().for_each(|(head, values)| self.encode_head(&mut row, head, values));
        row
    }

    /// The keys and values that a load gives for a row.
    pub fn decode(&self, row: &[u8]) -> Vec<f32> {
        (0..self.heads()).flat_map(|head| self.decode_head(row, head)).collect()
    }

    fn encode_head(&self, row: &mut [u8], head: usize, values: &[f32]) {
        let ([cells, scales], (_, group, scale_type, cache_type)) = (self.head(head), TYPES[self.types]);
        match scale_type {
            Some(scale_type) => {
                let mut of_groups = vec![0.0_f32; values.len() / group];
                self.codec().encode(values, &mut row[cells], &mut of_groups);
                write_floats(scale_type, &of_groups, &mut row[scales]);
            }
            None if cache_type == ElementType::Int8 => {
                row[cells].iter_mut().zip(values).for_each(|(cell, &x)| *cell = x as i8 as u8);
            }
            None => write_floats(cache_type, values, &mut row[cells]),
        }
    }

    fn decode_head(&self, row: &[u8], head: usize) -> Vec<f32> {
        let ([cells, scales], (_, group, scale_type, cache_type)) = (self.head(head), TYPES[self.types]);
        let mut values = vec![0.0_f32; self.head_dim];
        match scale_type {
            Some(scale_type) => {
                let mut of_groups = vec![0.0_f32; self.head_dim / group];
                read_floats(scale_type, &row[scales], &mut of_groups);
                self.codec().decode(&row[cells], &of_groups, &mut values);
                // A code times its scale is rounded to the scale's type.
                let mut rounded = vec![0; scale_type.byte_len(values.len())];
                write_floats(scale_type, &values, &mut rounded);
                read_floats(scale_type, &rounded, &mut values);
            }
            None if cache_type == ElementType::Int8 => {
                values.iter_mut().zip(&row[cells]).for_each(|(x, &cell)| *x = f32::from(cell as i8));
            }
            None => read_floats(cache_type, &row[cells], &mut values),
        }
        values
    }

    /// The K-shift of a row by `delta` positions; values keep their bytes, and so does a row of delta 0.
    pub fn shift(&self, row: &mut [u8], delta: i64, turns: &Turns) {
        if delta == 0 {
            return;
        }
        let keys = (0..self.heads()).filter(|head| (head / self.num_heads).is_multiple_of(2));
        for head in keys {
            let mut values = self.decode_head(row, head);
            turns.turn(&mut values, delta);
            self.encode_head(row, head, &values);
        }
    }

    /// A row that its tag alone decides: mostly ordinary numbers; some rows are all zeros, large or tiny.
    pub fn made_of(&self, tag: u64) -> Vec<f32> {
        let mut x = (tag ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1;
        let size = match tag % 23 {
            0 => 0.0,
            1 => 3000.0,
            2 => 1e-6,
            _ => 4.0,
        };
        let next = |_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            ((x >> 40) as f32 / 8_388_608.0 - 1.0) * size
        };
        (0..self.heads() * self.head_dim).map(next).collect()
    }
}

pub fn can_turn(types: usize) -> bool {
    TYPES[types].2.is_some() || TYPES[types].3 != ElementType::Int8
}

/// The shifts that a sequence of these types may have, unless the specification of the cache says otherwise.
pub fn default_shift_limit(types: usize) -> Option<u32> {
    (TYPES[types].2.is_some() && TYPES[types].0 == QuantBit::Four).then_some(4)
}

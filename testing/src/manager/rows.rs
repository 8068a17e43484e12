//! Rows of a cache as a model makes them: numbers, their canonical bytes, and the K-shift of those bytes. Nothing here
//! knows of slots or layouts, and the rotation shares no code with the kernels: only the codec of a quantized head is
//! theirs.

use half::f16;
use kvcache_kernels::quantize::HeadCodec;
use kvcache_manager::schema::{ElementType, QuantBit};

use crate::manager::types::TYPES;

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
    fn scale_type(&self) -> Option<ElementType> {
        TYPES[self.types].2
    }

    fn codec(&self) -> HeadCodec {
        HeadCodec { bits: TYPES[self.types].0, group: TYPES[self.types].1 }
    }

    fn heads(&self) -> usize {
        self.num_layer * 2 * self.num_heads
    }

    fn head_len(&self) -> usize {
        match TYPES[self.types].3 {
            ElementType::Float32 => 4 * self.head_dim,
            ElementType::Float16 => 2 * self.head_dim,
            ElementType::Int4 => self.head_dim / 2,
            _ => self.head_dim,
        }
    }

    fn scale_len(&self) -> usize {
        let scales = |size: usize| self.head_dim / self.codec().group * size;
        self.scale_type().map_or(0, |t3| scales(if t3 == ElementType::Float32 { 4 } else { 2 }))
    }

    pub fn row_len(&self) -> usize {
        self.heads() * (self.head_len() + self.scale_len())
    }

    /// Where head `h` of a layer's keys (0) or values (1) is in a row: its elements and its scales.
    fn head(&self, layer: usize, kv: usize, h: usize) -> [std::ops::Range<usize>; 2] {
        let head = (layer * 2 + kv) * self.num_heads + h;
        let range = |at: usize, len: usize| at + head * len..at + (head + 1) * len;
        [range(0, self.head_len()), range(self.heads() * self.head_len(), self.scale_len())]
    }

    pub fn encode(&self, values: &[f32]) -> Vec<u8> {
        let mut row = vec![0; self.row_len()];
        for (i, head) in values.chunks(self.head_dim).enumerate() {
            let (layer, kv, h) = (i / self.num_heads / 2, i / self.num_heads % 2, i % self.num_heads);
            self.encode_head(&mut row, self.head(layer, kv, h), head);
        }
        row
    }

    /// The keys and values that a load gives for a row.
    pub fn decode(&self, row: &[u8]) -> Vec<f32> {
        let decode = |i: usize| {
            self.decode_head(row, &self.head(i / self.num_heads / 2, i / self.num_heads % 2, i % self.num_heads))
        };
        (0..self.heads()).flat_map(decode).collect()
    }

    fn encode_head(&self, row: &mut [u8], [cells, scales]: [std::ops::Range<usize>; 2], head: &[f32]) {
        let quantized = |row: &mut [u8], write: &dyn Fn(&mut [u8]) -> Vec<u8>| {
            let encoded = write(&mut row[cells.clone()]);
            row[scales.clone()].copy_from_slice(&encoded);
        };
        let codec = self.codec();
        match (self.scale_type(), TYPES[self.types].3) {
            (Some(ElementType::Float32), _) => quantized(row, &|codes| {
                let mut scales = vec![0.0_f32; head.len() / codec.group];
                codec.encode(head, codes, &mut scales);
                scales.iter().flat_map(|scale| scale.to_le_bytes()).collect()
            }),
            (Some(_), _) => quantized(row, &|codes| {
                let mut scales = vec![f16::ZERO; head.len() / codec.group];
                codec.encode(head, codes, &mut scales);
                scales.iter().flat_map(|scale| scale.to_le_bytes()).collect()
            }),
            (None, ElementType::Float32) => {
                let bytes: Vec<u8> = head.iter().flat_map(|x| x.to_le_bytes()).collect();
                row[cells].copy_from_slice(&bytes);
            }
            (None, ElementType::Float16) => {
                let bytes: Vec<u8> = head.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
                row[cells].copy_from_slice(&bytes);
            }
            (None, _) => {
                let bytes: Vec<u8> = head.iter().map(|&x| x as i8 as u8).collect();
                row[cells].copy_from_slice(&bytes);
            }
        }
    }

    fn decode_head(&self, row: &[u8], [cells, scales]: &[std::ops::Range<usize>; 2]) -> Vec<f32> {
        let (cells, scales) = (&row[cells.clone()], &row[scales.clone()]);
        let mut head = vec![0.0_f32; self.head_dim];
        let f32s = |bytes: &[u8]| -> Vec<f32> {
            bytes.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect()
        };
        let f16s =
            |bytes: &[u8]| -> Vec<f16> { bytes.chunks_exact(2).map(|x| f16::from_le_bytes([x[0], x[1]])).collect() };
        match (self.scale_type(), TYPES[self.types].3) {
            (Some(ElementType::Float32), _) => self.codec().decode(cells, &f32s(scales), &mut head),
            (Some(_), _) => self.codec().decode(cells, &f16s(scales), &mut head),
            (None, ElementType::Float32) => head = f32s(cells),
            (None, ElementType::Float16) => head = f16s(cells).iter().map(|x| x.to_f32()).collect(),
            (None, _) => head = cells.iter().map(|&x| f32::from(x as i8)).collect(),
        }
        head
    }

    /// The K-shift of a row by `delta` positions; values keep their bytes, and so does a row of delta 0.
    pub fn shift(&self, row: &mut [u8], delta: i64, turns: &Turns) {
        if delta == 0 {
            return;
        }
        for layer in 0..self.num_layer {
            for h in 0..self.num_heads {
                let at = self.head(layer, 0, h);
                let mut head = self.decode_head(row, &at);
                turns.turn(&mut head, delta);
                self.encode_head(row, at, &head);
            }
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

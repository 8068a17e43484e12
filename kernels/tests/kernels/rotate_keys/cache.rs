//! A cache whose keys are rotated: by a kernel, and by the codec and the rope alone.

use kvcache_conformance::Tensor;
use kvcache_kernels::quantize::HeadCodec;
use kvcache_kernels::{CacheRows, Cpu, InstructionSet, Rope, Rotation, RowsError, read_floats, write_floats};
use kvcache_schema::{CacheDims, CacheLayout, ElementType, QuantBit, rotation_order};
use kvcache_simd::hadamard;
use kvcache_testing::backends::Threads;
use kvcache_testing::guarded::{Guard, Guarded};

/// A cache with its memory.
#[derive(Debug, Clone)]
pub struct Cache {
    pub rows: CacheRows,
    pub dims: CacheDims,
    pub group: usize,
    /// The order of the Hadamard matrix that keys were multiplied by.
    pub order: usize,
    pub memory: [Guarded; 2],
}

impl Cache {
    pub fn new(layout: CacheLayout, dims: CacheDims, types: (ElementType, Option<ElementType>), group: usize) -> Self {
        let rows = CacheRows::new(layout, dims, types.0, types.1.map(|t3| (group, t3))).unwrap();
        // Aligned for the types, and for no more.
        let memory = [(types.0, rows.cache_len()), (types.1.unwrap_or(ElementType::Float32), rows.scale_len())];
        let memory = memory.map(|(element, len)| {
            let zeros = Tensor::zeros(element, vec![len * 8 / element.bits()]).expect("a small cache");
            Guarded::new(&zeros, Guard::PastLine)
        });
        Self { rows, dims, group, order: 1, memory }
    }

    /// The cache with keys that were multiplied by a Hadamard matrix.
    pub fn with_quant_rotation(self) -> Self {
        Self { rows: self.rows.with_quant_rotation(true), order: rotation_order(self.dims.inner, self.group), ..self }
    }

    /// Fills it with numbers made of `next`: keys and scales of common sizes, now and then any bits.
    pub fn fill(&mut self, next: &mut impl FnMut() -> u64) {
        let (t2, t3) = self.rows.types();
        for (memory, element) in self.memory.iter_mut().zip([Some(t2), t3]) {
            let mut number = || {
                let bits = next();
                let plain = ((bits >> 32) as u32 as f32 / u32::MAX as f32 - 0.5) * 8.0;
                if bits.is_multiple_of(101) { f32::from_bits((bits >> 32) as u32) } else { plain }
            };
            let bytes = memory.bytes_mut();
            match element.filter(|element| element.is_float()) {
                Some(element) => {
                    let values: Vec<_> = (0..bytes.len() / element.align()).map(|_| number()).collect();
                    write_floats(element, &values, bytes);
                }
                None => bytes.iter_mut().for_each(|code| *code = next() as u8),
            }
        }
    }

    pub fn rotate(&mut self, by: Cpu, rotations: &[Rotation], rope: &Rope) -> Result<(), RowsError> {
        let Self { rows, memory: [cache, scale], .. } = self;
        by.rotate_keys(rows, cache.bytes_mut(), scale.bytes_mut(), rotations, rope, &Threads(2))
    }

    /// What a slot has in `cache` and in `scale`, in canonical order.
    pub fn read(&self, slot: usize) -> [Vec<u8>; 2] {
        let mut row = vec![0; self.rows.row_len()];
        self.rows.read(self.memory[0].bytes(), self.memory[1].bytes(), &[slot], &mut row).unwrap();
        let scales = row.split_off(self.rows.cache_len() / self.dims.max_t);
        [row, scales]
    }

    pub fn write(&mut self, slot: usize, row: [Vec<u8>; 2]) {
        let [cache, scale] = &mut self.memory;
        self.rows.write(cache.bytes_mut(), scale.bytes_mut(), &[slot], &row.concat()).unwrap();
    }

    /// What a rotation leaves, row by row and head by head, by the codec and the rope alone.
    pub fn rotated(&self, rotations: &[Rotation], rope: &Rope) -> Self {
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
        let (t2, t3) = self.rows.types();
        let Some(t3) = t3 else {
            read_floats(t2, cells, &mut values);
            rope.rotate(delta, &mut values);
            return write_floats(t2, &values[..rope.n_rot()], cells);
        };
        let codec = HeadCodec { bits: QuantBit::of_element(t2).unwrap(), group: self.group };
        kvcache_kernels::float_type!(t3, T => {
            let mut steps: Vec<T> = scales.chunks(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect();
            codec.decode(cells, &steps, &mut values);
            hadamard(&mut values, self.order);
            rope.rotate(delta, &mut values);
            hadamard(&mut values, self.order);
            codec.encode(&values, cells, &mut steps);
            scales.copy_from_slice(bytemuck::cast_slice(&steps));
        });
    }

    /// The numbers in `cache` and `scale` as bits, of which all that are NaN are the same.
    pub fn bits(&self) -> [Vec<u32>; 2] {
        let (t2, t3) = self.rows.types();
        [(&self.memory[0], Some(t2)), (&self.memory[1], t3)].map(|(memory, element)| {
            let bytes = memory.bytes();
            let Some(element) = element.filter(|element| element.is_float()) else {
                return bytes.iter().map(|&code| code.into()).collect();
            };
            let mut values = vec![0.0; bytes.len() / element.align()];
            read_floats(element, bytes, &mut values);
            values.into_iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect()
        })
    }
}

/// The kernels of this machine, and each of them sharing work from the first byte on.
pub fn kernels() -> impl Iterator<Item = Cpu> {
    let cpus = InstructionSet::all_of_floats().filter_map(Cpu::with_instructions);
    cpus.flat_map(|cpu| [cpu, cpu.with_parallel_bytes(0)])
}

/// Numbers that a seed determines.
pub fn random(seed: u64) -> impl FnMut() -> u64 {
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

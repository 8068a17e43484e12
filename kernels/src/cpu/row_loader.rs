//! Loads of single rows, for kernels that read the cache by themselves.

use kvcache_schema::ElementType;
use kvcache_simd::InstructionSet;

use super::block::{Operand, Row, Rows};
use super::dispatch;
use super::functions::{Conversion, RowsFunction};

/// Reads rows of a cache as values of T1, bit for bit as [`Kernel::load`](crate::Kernel::load) gives them: for kernels
/// that use a few rows at once, and keep no copy of them.
#[derive(Debug, Clone, Copy)]
pub struct RowLoader {
    load: RowsFunction,
    row: Row,
    /// Bytes of a row's values, its elements in the cache, and its scales.
    bytes: [usize; 3],
}

/// Rows of the cache, at equal distances.
#[derive(Debug, Clone, Copy)]
pub struct LoadedRows {
    /// The number of rows.
    pub count: usize,
    /// T2: the first row.
    pub cache: *const u8,
    /// Bytes from one row to the next.
    pub cache_step: usize,
    /// T3: the first row's scales; any address without quantization.
    pub scale: *const u8,
    /// Bytes from the scales of one row to those of the next.
    pub scale_step: usize,
}

impl RowLoader {
    /// A loader of rows of `len` elements in groups of `group` (1 without quantization), for a legal combination of
    /// types (T1, T2, T3); none where the cache holds values as they are.
    pub fn new(
        instructions: InstructionSet,
        types: (ElementType, ElementType, Option<ElementType>),
        len: usize,
        group: usize,
    ) -> Option<Self> {
        let load = match dispatch::row_functions(instructions, types, group).conversion {
            Conversion::None => return None,
            Conversion::Float { load, .. }
            | Conversion::Quantized { load, .. }
            | Conversion::StaticScales { load, .. } => load.plain,
        };
        let row = Row::new(len, group);
        let (t1, t2, t3) = types;
        let bytes = [t1.byte_len(len), t2.byte_len(len), t3.map_or(0, |t3| t3.byte_len(row.groups))];
        Some(Self { load, row, bytes })
    }

    /// Writes the values of rows, one row each `step` bytes.
    ///
    /// # Safety
    /// The instruction set is supported. The rows and their scales are valid for reads of T2 and T3, `values` is valid
    /// for writes of as many rows of T1, which overlap nothing else, and all are aligned for their types.
    pub unsafe fn load(&self, rows: &LoadedRows, values: *mut u8, step: usize) {
        let &LoadedRows { count, cache, cache_step, scale, scale_step } = rows;
        // Rows that follow each other without gaps are one.
        let (count, row) = match [step, cache_step, scale_step] == self.bytes {
            true => (1, self.row.times(count)),
            false => (count, self.row),
        };
        // SAFETY: see `# Safety`: a load only reads the cache.
        unsafe {
            (self.load)(&Rows {
                count,
                row,
                values: Operand { data: values, step },
                cache: Operand { data: cache.cast_mut(), step: cache_step },
                scale: Operand { data: scale.cast_mut(), step: scale_step },
                prefetch: None,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use ElementType::Float32;
    use half::f16;
    use kvcache_schema::TypeCombination;

    use super::*;

    /// Rows of a cache, without gaps.
    struct Cache {
        codes: Vec<u8>,
        scales: Vec<u8>,
    }

    const ROWS: usize = 5;

    /// The values of all rows, one row each `step` bytes, from rows with so many bytes between them.
    fn loaded(loader: &RowLoader, cache: &Cache, gap: usize) -> Vec<u8> {
        let [step, cache_step, scale_step] = loader.bytes.map(|bytes| bytes + gap);
        let spread = |from: &[u8], len: usize, step: usize| {
            let mut to = vec![0; ROWS * step + 8];
            from.chunks(len.max(1)).enumerate().for_each(|(r, row)| to[r * step..][..row.len()].copy_from_slice(row));
            to
        };
        let (codes, scales) =
            (spread(&cache.codes, loader.bytes[1], cache_step), spread(&cache.scales, loader.bytes[2], scale_step));
        let mut values = vec![0; ROWS * step];
        let rows = LoadedRows { count: ROWS, cache: codes.as_ptr(), cache_step, scale: scales.as_ptr(), scale_step };
        // SAFETY: the instruction set is supported; there are ROWS rows of all, and vectors of bytes are aligned for
        // larger types than these.
        unsafe { loader.load(&rows, values.as_mut_ptr(), step) }
        values.chunks(step).flat_map(|row| row[..loader.bytes[0]].to_vec()).collect()
    }

    /// Rows with gaps and without, by all instruction sets.
    #[test]
    fn all_instruction_sets_load_the_same() {
        let random = |len: usize, seed: usize| (0..len).map(move |i| (((i + seed) * 2_654_435_761) >> 7) as u8);
        for (len, group) in [(128, 8), (128, 32), (96, 96), (40, 8), (24, 12), (6, 2)] {
            let as_float32 = ElementType::FLOATS.map(|t2| (Float32, t2, None));
            for (t1, t2, t3) in TypeCombination::all().map(|row| (row.t1, row.t2, row.t3)).chain(as_float32) {
                if t1 == t2 {
                    continue;
                }
                let group = if t3.is_some() { group } else { 1 };
                let of = |set| RowLoader::new(set, (t1, t2, t3), len, group).expect("not as it is");
                let portable = of(InstructionSet::Portable);
                let codes = match t2 {
                    Float32 => random(ROWS * len, 3).flat_map(|x| (f32::from(x) / 7.0).to_le_bytes()).collect(),
                    _ => random(ROWS * portable.bytes[1], 5).collect(),
                };
                let scales = random(ROWS * (len / group), 11).map(|x| f32::from(x) / 1000.0);
                let scales = match t3 {
                    Some(Float32) => scales.flat_map(f32::to_le_bytes).collect(),
                    Some(_) => scales.flat_map(|x| f16::from_f32(x).to_le_bytes()).collect(),
                    None => Vec::new(),
                };
                let cache = Cache { codes, scales };
                let expected = loaded(&portable, &cache, 0);
                assert!(expected.iter().any(|&byte| byte != 0));
                for set in InstructionSet::ALL.into_iter().filter(|set| set.is_supported()) {
                    for gap in [0, 8] {
                        assert_eq!(
                            loaded(&of(set), &cache, gap),
                            expected,
                            "{set:?} {t1} {t2} {t3:?} {len} {group} {gap}"
                        );
                    }
                }
            }
        }
        assert!(RowLoader::new(InstructionSet::Portable, (Float32, Float32, None), 8, 1).is_none());
    }
}

//! K-shift: turning the keys of rows, against the operator storing and loading the same rows.

use half::f16;
use kvcache_kernels::quantize::HeadCodec;
use kvcache_manager::schema::CacheLayout;
use kvcache_manager::{CacheMemory, CacheSpec, Rope, Rotation};
use kvcache_op::{ElementType, IndexInputs, KeyValueCache, Outputs, Serial, TensorMut, TensorRef};

use crate::manager::case::{self, Case, Meter};
use crate::manager::memory::{Bytes, HEAD_DIM, HostCache, NUM_HEADS, NUM_LAYER, PAGE_SIZE, QUANT_GROUP, Random};
use crate::manager::setup::text;

/// Rows that are stored, loaded and turned: a sequence.
const ROWS: usize = 2048;
/// Rows whose answer is checked.
const CHECKED: usize = 64;
/// Positions that they are turned by.
const DELTA: i64 = -50;

/// A sequence in pages all over a cache, and what the operator needs to store and load it.
pub(crate) struct Shift {
    memory: HostCache,
    pages: Vec<i64>,
    rotations: Vec<Rotation>,
    rope: Rope,
    /// Keys and values of the sequence, which the operator stores, and those that it loads.
    current: [Bytes; 2],
    loaded: [Bytes; 2],
}

impl Shift {
    /// A cache of this layout: of float16 for 16 bits; of codes of 8 or 4 bits with float16 scales.
    ///
    /// # Errors
    /// If there is no such layout or width.
    pub(crate) fn new(layout: usize, bits: usize) -> Result<Self, String> {
        let layout = CacheLayout::from_code(layout as i64).ok_or_else(|| format!("no layout is {layout}"))?;
        let rope = Rope::neox(HEAD_DIM, 1e4);
        let mut random = Random(2);
        let memory = HostCache::of_width(layout, bits, 2 * ROWS, Some(rope.clone()), &mut random)?;
        let mut pages: Vec<_> = (0..memory.spec.num_pages()).map(|page| (page * PAGE_SIZE) as i64).collect();
        random.shuffle(&mut pages);
        pages.truncate(ROWS / PAGE_SIZE);
        let mut rotations: Vec<_> =
            pages.iter().map(|&slot| Rotation { slot: slot as usize, len: PAGE_SIZE, delta: DELTA }).collect();
        rotations.sort_unstable_by_key(|rotation| rotation.slot);
        let mut tensor = || {
            let mut bytes = Bytes::new(ROWS * NUM_HEADS * HEAD_DIM * size_of::<f16>());
            random.fill(&mut bytes, ElementType::Float16);
            bytes
        };
        let (current, loaded) = ([tensor(), tensor()], [tensor(), tensor()]);
        Ok(Self { memory, pages, rotations, rope, current, loaded })
    }

    /// The operator's calls of all layers.
    fn store_and_load(&mut self) -> Result<(), String> {
        let Self { memory, pages, current, loaded, .. } = self;
        let op = KeyValueCache::new(memory.spec.attributes()).map_err(text)?;
        let rows = ROWS as i64;
        let starts = [0, rows];
        let cachestarts = ndarray::ArrayView2::from_shape((1, pages.len()), pages).map_err(text)?;
        let indices = IndexInputs {
            seqstarts: (&starts).into(),
            kvstarts: (&starts).into(),
            cachestarts: (&cachestarts).into(),
            start_pos: (&[0]).into(),
            max_seqlen: (&rows).into(),
            max_kvlen: (&rows).into(),
        };
        let mut host = memory.memory(&Serial)?;
        let (cache, scale) = host.tensors();
        let mut layers = op.check_layers(ElementType::Float16, &indices, cache, scale).map_err(text)?;
        let shape = [ROWS, NUM_HEADS, HEAD_DIM];
        for layer in 0..NUM_LAYER {
            let [key, value] = current.each_ref().map(|bytes| {
                // SAFETY: as many initialized bytes as the shape needs, borrowed for longer than the call.
                unsafe { TensorRef::from_raw_parts(ElementType::Float16, shape, bytes.as_ptr()) }
            });
            let call = layers.layer(layer, &key, &value).map_err(text)?;
            let [key, value] = loaded.each_mut().map(|bytes| {
                // SAFETY: as many bytes as the shape needs, mutably borrowed for longer than the call.
                unsafe { TensorMut::from_raw_parts(ElementType::Float16, shape, bytes.as_mut_ptr()) }
            });
            call.run(Outputs { key, value }, &Serial).map_err(text)?;
        }
        Ok(())
    }

    fn rotate_keys(&mut self) -> Result<(), String> {
        self.memory.memory(&Serial)?.rotate_keys(&self.rotations, &self.rope).map_err(text)
    }

    /// Some rows in canonical order.
    fn rows(&mut self) -> Result<Vec<u8>, String> {
        let slots: Vec<_> =
            self.rotations.iter().flat_map(|page| page.slot..page.slot + page.len).take(CHECKED).collect();
        let mut rows = vec![0; slots.len() * self.memory.spec.bytes_per_token()];
        self.memory.memory(&Serial)?.read_rows(&slots, &mut rows).map_err(text)?;
        Ok(rows)
    }
}

/// Turns the keys of rows in canonical order, head by head, as the specification says.
fn rotate_rows(spec: &CacheSpec, rope: &Rope, rows: &mut [u8]) {
    let codec = spec.quant().map(|(bits, group, _)| HeadCodec { bits, group });
    let code_bytes = codec.map_or(HEAD_DIM * size_of::<f16>(), |codec| codec.code_bytes(HEAD_DIM));
    let heads = NUM_LAYER * 2 * NUM_HEADS;
    let number = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]);
    for row in rows.chunks_exact_mut(spec.bytes_per_token()) {
        let (codes, scales) = row.split_at_mut(heads * code_bytes);
        let scale_bytes = scales.len() / heads;
        for (head, codes) in codes.chunks_exact_mut(code_bytes).enumerate() {
            if head / NUM_HEADS % 2 == 1 {
                continue;
            }
            let mut values = [0_f32; HEAD_DIM];
            let scales = &mut scales[head * scale_bytes..][..scale_bytes];
            match codec {
                None => values.iter_mut().zip(codes.chunks_exact(2)).for_each(|(x, bytes)| *x = number(bytes).into()),
                Some(codec) => {
                    codec.decode(codes, &scales.chunks_exact(2).map(number).collect::<Vec<_>>(), &mut values)
                }
            }
            rope.rotate(DELTA, &mut values);
            match codec {
                None => codes
                    .chunks_exact_mut(2)
                    .zip(values)
                    .for_each(|(bytes, x)| bytes.copy_from_slice(&f16::from_f32(x).to_le_bytes())),
                Some(codec) => {
                    let mut new = [f16::ZERO; HEAD_DIM / QUANT_GROUP];
                    codec.encode(&values, codes, &mut new);
                    scales.chunks_exact_mut(2).zip(new).for_each(|(bytes, x)| bytes.copy_from_slice(&x.to_le_bytes()));
                }
            }
        }
    }
}

impl Case for Shift {
    fn check(&mut self) -> Result<(), String> {
        self.store_and_load()?;
        let mut expected = self.rows()?;
        rotate_rows(&self.memory.spec, &self.rope, &mut expected);
        self.rotate_keys()?;
        if self.rows()? != expected {
            return Err("keys are not turned as the specification says".into());
        }
        Ok(())
    }

    fn measure(&mut self, contender: &str) -> Result<Meter, String> {
        let mut meter = Meter::default();
        match contender {
            "rotate_keys" => {
                // So that keys that were turned often do not differ from those of a sequence.
                self.store_and_load()?;
                meter.run(ROWS, || self.rotate_keys())?;
            }
            "store and load" => {
                self.rotate_keys()?;
                meter.run(ROWS, || self.store_and_load())?;
            }
            _ => return case::unknown(contender),
        }
        Ok(meter)
    }
}

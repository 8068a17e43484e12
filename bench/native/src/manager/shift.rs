//! K-shift: turning the keys of rows, against the operator storing and loading the same rows.

use half::f16;
use kvcache_kernels::Reference;
use kvcache_manager::schema::CacheLayout;
use kvcache_manager::{CacheMemory, Rope, Rotation};
use kvcache_op::{ElementType, IndexInputs, KeyValueCache, Outputs, Serial, TensorMut, TensorRef};

use crate::manager::case::{self, Case, Meter};
use crate::manager::memory::{Bytes, HEAD_DIM, HostCache, NUM_HEADS, NUM_LAYER, PAGE_SIZE, Random};
use crate::manager::setup::text;

/// Rows that are stored, loaded and turned: a sequence.
const ROWS: usize = 2048;
/// Pages whose answer is checked.
const CHECKED: usize = 4;
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
}

impl Case for Shift {
    fn check(&mut self) -> Result<(), String> {
        self.store_and_load()?;
        let Self { memory, rotations, rope, .. } = self;
        let (checked, rows) = (&rotations[..CHECKED], *memory.spec.rows());
        let (mut cache, mut scale) = (memory.cache.to_vec(), memory.scale.to_vec());
        Reference.rotate_keys(&rows, &mut cache, &mut scale, checked, rope).map_err(text)?;
        memory.memory(&Serial)?.rotate_keys(checked, rope).map_err(text)?;
        if memory.cache[..] != cache || memory.scale[..] != scale {
            return Err("keys are not turned as the reference turns them".into());
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

//! A cache in memory of a case's own, filled with numbers that look random.

use kvcache_manager::schema::{CacheLayout, QuantBit};
use kvcache_manager::{CacheSpec, Geometry, HostMemory, Mode, Rope};
use kvcache_op::{ElementType, TensorMut, Workers};

use crate::manager::setup::text;

/// Rows of a page.
pub(crate) const PAGE_SIZE: usize = 16;
pub(crate) const NUM_LAYER: usize = 4;
pub(crate) const NUM_HEADS: usize = 8;
pub(crate) const HEAD_DIM: usize = 128;
/// Neighboring elements that share a scale.
pub(crate) const QUANT_GROUP: usize = 8;

/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes that begin with a cache line.
pub(crate) struct Bytes {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Bytes {
    /// So many zeros, all of them touched.
    pub(crate) fn new(len: usize) -> Self {
        let mut memory: Vec<u8> = Vec::with_capacity(len + LINE);
        let start = memory.as_ptr().align_offset(LINE);
        memory.resize(start + len, 0);
        Self { memory, start, len }
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }
}

impl std::ops::DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}

/// Numbers that look random: SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Puts elements in another order.
    pub(crate) fn shuffle<T>(&mut self, elements: &mut [T]) {
        for i in (1..elements.len()).rev() {
            elements.swap(i, self.below(i + 1));
        }
    }

    /// Fills float16 numbers between -1 and 1, or bytes with any.
    pub(crate) fn fill(&mut self, bytes: &mut [u8], element: ElementType) {
        // Of a float16: a sign, an exponent of at most 14 (of 31), any mantissa.
        let mask = if element == ElementType::Float16 { 0xbbff_bbff_bbff_bbff } else { u64::MAX };
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&(self.next() & mask).to_le_bytes()[..word.len()]);
        }
    }
}

/// A cache and its scales.
pub(crate) struct HostCache {
    pub(crate) spec: CacheSpec,
    pub(crate) cache: Bytes,
    pub(crate) scale: Bytes,
}

impl HostCache {
    /// A cache of `max_t` slots in pages, with any numbers in it: of float16 for 16 bits; of codes of 8 or 4 bits with
    /// float16 scales.
    ///
    /// # Errors
    /// If there is no such width.
    pub(crate) fn of_width(
        layout: CacheLayout,
        bits: usize,
        max_t: usize,
        rope: Option<Rope>,
        random: &mut Random,
    ) -> Result<Self, String> {
        let geometry = Geometry { num_layer: NUM_LAYER, num_heads: NUM_HEADS, head_dim: HEAD_DIM, max_t };
        let mut builder = CacheSpec::builder(geometry).layout(layout).mode(Mode::Paged { page_size: PAGE_SIZE });
        if bits != 16 {
            let bit = QuantBit::from_code(bits as i64).ok_or_else(|| format!("no cache has {bits} bits"))?;
            builder = builder.quantized(bit, QUANT_GROUP, ElementType::Float16);
        }
        if let Some(rope) = rope {
            builder = builder.rope(rope);
        }
        let spec = builder.build().map_err(text)?;
        let (mut cache, mut scale) = (Bytes::new(spec.rows().cache_len()), Bytes::new(spec.rows().scale_len()));
        random.fill(&mut cache, spec.cache_type());
        random.fill(&mut scale, ElementType::Float16);
        Ok(Self { spec, cache, scale })
    }

    /// The memory for the manager.
    ///
    /// # Errors
    /// If the tensors are not those of the specification.
    pub(crate) fn memory<'a>(&'a mut self, workers: &'a dyn Workers) -> Result<HostMemory<'a>, String> {
        let Self { spec, cache, scale } = self;
        let scale = spec.scale_shape().zip(spec.quant()).map(|(shape, (_, _, t3))| tensor(t3, shape, scale));
        HostMemory::new(spec, tensor(spec.cache_type(), spec.cache_shape(), cache), scale, workers).map_err(text)
    }
}

/// The tensor of this type and shape.
fn tensor(element: ElementType, shape: [usize; 5], bytes: &mut Bytes) -> TensorMut<'_> {
    assert!(element.bytes(shape.iter().product()) == Some(bytes.len()) && bytes.as_ptr().align_offset(LINE) == 0);
    // SAFETY: the bytes are initialized, borrowed for as long, and as many as the shape needs, checked above.
    unsafe { TensorMut::from_raw_parts(element, shape, bytes.as_mut_ptr()) }
}

//! `copy_rows` of pages, against a loop of `memcpy` over the same bytes.

use kvcache_manager::schema::{CacheDims, CacheLayout, ElementType, QuantBit};
use kvcache_manager::{CacheMemory, CacheSpec, Geometry, Mode, RowCopy};
use kvcache_op::Serial;

use crate::manager::case::{self, Case};
use crate::manager::memory::{HostCache, Random};
use crate::manager::meter::Meter;
use crate::manager::setup::text;

/// Rows of a page.
const PAGE_SIZE: usize = 16;
/// Pages that are copied in one go.
const COPIES: usize = 64;
const NUM_LAYER: usize = 4;
const NUM_HEADS: usize = 8;
const HEAD_DIM: usize = 128;
/// Neighboring elements that share a scale.
const QUANT_GROUP: usize = 8;
/// The cache's size: out of the second-level cache, whatever the type.
const CACHE_BYTES: usize = 128 << 20;

/// A cache and its scales, whose pages are copied in random order, other ones each time.
pub(crate) struct Copies {
    memory: HostCache,
    bare: [BareLoop; 2],
    random: Random,
}

/// The loop for cache or scale: in each plane of `plane` bytes the slots have `token` bytes each.
struct BareLoop {
    plane: usize,
    token: usize,
}

impl BareLoop {
    /// For a tensor with `inner` elements, of so many bits each, in a head.
    fn new(layout: CacheLayout, max_t: usize, inner: usize, bits: usize) -> Result<Self, String> {
        let dims = CacheDims { max_t, num_layer: NUM_LAYER, num_heads: NUM_HEADS, inner };
        let token = layout.strides(dims).ok_or("strides overflow")?.token * bits / 8;
        Ok(Self { plane: max_t * token, token })
    }

    fn run(&self, bytes: &mut [u8], copies: &[RowCopy]) {
        for plane in bytes.chunks_exact_mut(self.plane) {
            for &RowCopy { src, dst, len } in copies {
                let (src, dst, len) = (src * self.token, dst * self.token, len * self.token);
                assert!(src.max(dst) + len <= plane.len() && src.abs_diff(dst) >= len);
                let plane = plane.as_mut_ptr();
                // SAFETY: both ranges lie in the plane and do not overlap, checked above.
                unsafe { std::ptr::copy_nonoverlapping(plane.add(src), plane.add(dst), len) };
            }
        }
    }
}

impl Copies {
    /// A cache of this layout: of float16 for 16 bits; of codes of 8 or 4 bits with float16 scales.
    ///
    /// # Errors
    /// If there is no such layout or width.
    pub(crate) fn new(layout: usize, bits: usize) -> Result<Self, String> {
        let layout = CacheLayout::from_code(layout as i64).ok_or_else(|| format!("no layout is {layout}"))?;
        let quant_bit = match bits {
            16 => None,
            _ => Some(QuantBit::from_code(bits as i64).ok_or_else(|| format!("no cache has {bits} bits"))?),
        };
        let max_t = CACHE_BYTES / (NUM_LAYER * 2 * NUM_HEADS * HEAD_DIM * bits / 8);
        let geometry = Geometry { num_layer: NUM_LAYER, num_heads: NUM_HEADS, head_dim: HEAD_DIM, max_t };
        let mut builder = CacheSpec::builder(geometry).layout(layout).mode(Mode::Paged { page_size: PAGE_SIZE });
        if let Some(bit) = quant_bit {
            builder = builder.quantized(bit, QUANT_GROUP, ElementType::Float16);
        }
        let mut random = Random(1);
        let memory = HostCache::new(builder.build().map_err(text)?, &mut random);
        let scales = if quant_bit.is_some() { HEAD_DIM / QUANT_GROUP } else { 0 };
        let bare = [BareLoop::new(layout, max_t, HEAD_DIM, bits)?, BareLoop::new(layout, max_t, scales, 16)?];
        Ok(Self { memory, bare, random })
    }

    /// Copies between pages, none of which is read or written by another.
    fn choose(&mut self) -> Vec<RowCopy> {
        let mut pages: Vec<usize> = (0..self.memory.spec.num_pages()).collect();
        self.random.shuffle(&mut pages);
        let slots = |pages: &[usize]| [pages[0] * PAGE_SIZE, pages[1] * PAGE_SIZE];
        pages.chunks_exact(2).take(COPIES).map(slots).map(|[src, dst]| RowCopy { src, dst, len: PAGE_SIZE }).collect()
    }

    fn copy_rows(&mut self, copies: &[RowCopy]) -> Result<(), String> {
        self.memory.memory(&Serial)?.copy_rows(copies).map_err(text)
    }

    fn bare_loop(&mut self, copies: &[RowCopy]) {
        let ([cache, scale], memory) = (&self.bare, &mut self.memory);
        cache.run(&mut memory.cache, copies);
        if !memory.scale.is_empty() {
            scale.run(&mut memory.scale, copies);
        }
    }
}

impl Case for Copies {
    fn check(&mut self) -> Result<(), String> {
        let copies = self.choose();
        let bytes = |memory: &HostCache| [memory.cache.to_vec(), memory.scale.to_vec()];
        let before = bytes(&self.memory);
        self.copy_rows(&copies)?;
        let copied = bytes(&self.memory);
        self.memory.cache.copy_from_slice(&before[0]);
        self.memory.scale.copy_from_slice(&before[1]);
        self.bare_loop(&copies);
        if bytes(&self.memory) != copied {
            return Err("copy_rows has not written what the bare loop has".into());
        }
        Ok(())
    }

    fn measure(&mut self, contender: &str) -> Result<Meter, String> {
        let copies = self.choose();
        let mut meter = Meter::default();
        match contender {
            "copy_rows" => meter.run(COPIES, || self.copy_rows(&copies))?,
            "bare loop" => meter.run(COPIES, || self.bare_loop(&copies)),
            _ => return case::unknown(contender),
        }
        Ok(meter)
    }
}

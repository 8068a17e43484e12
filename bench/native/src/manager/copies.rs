//! `copy_rows` of pages, against a loop of `memcpy` over the same bytes.

use kvcache_manager::schema::{CacheDims, CacheLayout};
use kvcache_manager::{CacheMemory, RowCopy};
use kvcache_op::Serial;

use crate::manager::case::{self, Case, Meter};
use crate::manager::memory::{HEAD_DIM, HostCache, NUM_HEADS, NUM_LAYER, PAGE_SIZE, QUANT_GROUP, Random};
use crate::manager::setup::text;

/// Pages that are copied in one go.
const COPIES: usize = 64;
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
        let max_t = CACHE_BYTES / (NUM_LAYER * 2 * NUM_HEADS * HEAD_DIM * bits / 8);
        let mut random = Random(1);
        let memory = HostCache::of_width(layout, bits, max_t, None, &mut random)?;
        let scales = if memory.scale.is_empty() { 0 } else { HEAD_DIM / QUANT_GROUP };
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

//! A call whose tensors lie on a device, and the launches that make it: which kernel, with which parameters and grid.
//!
//! [`Operands`] describes a call by what the host knows: types, dimensions, strides, device addresses and the number of
//! rows of `current_key` and of `key`, which are the shapes of tensors that somebody has allocated. Lengths and slots
//! stay on the device: the kernels read `seqstarts`, `start_pos` and `cachestarts` there.
//!
//! - `kvstarts` is not needed on the device. Sequence b has `start_pos[b] + seqlen[b]` tokens in `key`, and every block
//!   makes the running sum over the batch for itself, once: an L2 read of three int64 a sequence and one scan.
//! - `max_seqlen` and `max_kvlen` are not needed either: the rows give the amount of work exactly, ragged or not.
//!   Blocks stride over all work whatever the grid is.
//! - `rows` are capacities. The device's lengths may add up to less, so that a captured graph serves smaller batches;
//!   more is reported and nothing is moved. [`Operands::exact_rows`] reports less, too.
//!
//! Both launches of a call go to one stream, [`Operands::store`] first. Each may be absent: then there is nothing to
//! do, and nothing is checked.

use kvcache_schema::{CacheStrides, ElementType};

use super::parameters::{Divisor, Parameters, Strides};
use super::ptx::{self, Module};
use crate::problem::{Geometry, Quant};

/// Threads in a block. The kernels are compiled for this number.
pub const BLOCK: u32 = 256;

/// Lanes in a warp.
const WARP: u32 = 32;

/// Units that a warp moves between two look-ups of slots, at most.
const LONGEST_ROUND: u32 = 8 * WARP;

/// What looking up the slots of a round takes, as units that are moved in the same time: one for each lane.
const UNITS_OF_A_LOOK_UP: u64 = WARP as u64;

/// Blocks that a multiprocessor holds at once, as the kernels' launch bounds ask: all run from the start to the end,
/// with equal shares, and none repeats the scan over the batch.
const BLOCKS_PER_MULTIPROCESSOR: u64 = 4;

/// Bytes of `current_key` or `key` that a lane of a wide kernel accesses at once.
const WIDE_BYTES: usize = 16;

/// How `cachestarts` is indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// `cache_mode` 0.
    Offset,
    /// `cache_mode` 1.
    Paged {
        /// Page table entries per sequence (MaxP).
        max_p: usize,
        /// Tokens in a page, at least 1.
        page_size: usize,
    },
}

/// A call whose tensors lie on a device: everything that the host knows of it. Addresses are the device's.
#[derive(Debug, Clone, Copy)]
pub struct Operands {
    /// Dimensions, types and strides.
    pub geometry: Geometry,
    /// Slots of the cache (MaxT).
    pub max_t: usize,
    /// How `cachestarts` is indexed.
    pub pages: Pages,
    /// Rows of `current_key` and `current_value`: no more than these are read.
    pub current_rows: usize,
    /// Rows of `key` and `value`: no more than these are written.
    pub output_rows: usize,
    /// Whether device lengths that add up to fewer rows are an error. A graph that is replayed with smaller batches
    /// says no; elsewhere it would leave rows of `key` and `value` unwritten in silence.
    pub exact_rows: bool,
    /// `current_key` and `current_value`.
    pub current: [u64; 2],
    /// `key` and `value`.
    pub outputs: [u64; 2],
    /// `cache`: its first element, whatever the layer.
    pub cache: u64,
    /// `scale`: its first element; not accessed without quantization.
    pub scale: u64,
    /// int64, shape (B + 1).
    pub seqstarts: u64,
    /// int64, shape (B).
    pub start_pos: u64,
    /// int64, shape (B) or (B, MaxP).
    pub cachestarts: u64,
    /// The status word: 8 aligned bytes, which the caller zeroes once. See [`Status`](super::Status).
    pub status: u64,
    /// Multiprocessors of the device; sizes the grid only.
    pub multiprocessors: u32,
}

/// One launch of a kernel.
#[derive(Debug, Clone, Copy)]
pub struct Launch {
    /// The module that holds the kernel.
    pub module: &'static Module,
    /// The kernel's name in its module.
    pub kernel: &'static str,
    /// Blocks, along the first axis. A block has [`BLOCK`] threads along the first axis and no dynamic shared memory.
    pub grid: u32,
    /// The kernel's one parameter.
    pub parameters: Parameters,
}

/// A dimension that the kernels' 32-bit arithmetic has no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge {
    /// What is too large, in the specification's words.
    pub what: &'static str,
    /// How large it is; the largest `usize` if that overflows.
    pub got: usize,
    /// The largest that can be served.
    pub limit: usize,
}

/// How a phase's work is cut into units, and which kernel moves them.
struct Units {
    wide: bool,
    per_head: usize,
    per_group: usize,
}

impl Operands {
    /// The launch that stores the current tokens; `None` if there is nothing to store.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub fn store(&self) -> Result<Option<Launch>, TooLarge> {
        let Geometry { head_dim, quant, .. } = self.geometry;
        let lanes = quant.map_or(1, |quant| quant.group / self.pack());
        let whole = quant.is_none_or(|quant| quant.group.is_multiple_of(self.pack()) && lanes.is_power_of_two());
        let units = if self.is_aligned(self.current) && whole && lanes <= WARP as usize {
            Units { wide: true, per_head: head_dim / self.pack(), per_group: lanes }
        } else {
            Units { wide: false, per_head: head_dim / quant.map_or(1, |quant| quant.group), per_group: 1 }
        };
        let module = self.module();
        let kernel = if units.wide { module.store_wide } else { module.store_narrow };
        self.launch(module, kernel, self.current_rows, units)
    }

    /// The launch that loads all tokens; `None` if there is nothing to load.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub fn load(&self) -> Result<Option<Launch>, TooLarge> {
        let Geometry { head_dim, t2, quant, .. } = self.geometry;
        let whole = quant.is_none_or(|quant| quant.group.is_multiple_of(self.pack()));
        let units = if self.is_aligned(self.outputs) && whole {
            let per_group = quant.map_or(1, |quant| quant.group / self.pack());
            Units { wide: true, per_head: head_dim / self.pack(), per_group }
        } else {
            // A byte of the cache, so that no two lanes share one.
            let unit = if t2 == ElementType::Int4 { 2 } else { 1 };
            let per_group = quant.map_or(1, |quant| quant.group / unit);
            Units { wide: false, per_head: head_dim / unit, per_group }
        };
        let module = self.module();
        let kernel = if units.wide { module.load_wide } else { module.load_narrow };
        self.launch(module, kernel, self.output_rows, units)
    }

    fn module(&self) -> &'static Module {
        let Geometry { t1, t2, quant, .. } = self.geometry;
        ptx::module(t1, t2, quant.map(|quant| quant.t3))
    }

    /// Elements that a lane of a wide kernel moves at once.
    fn pack(&self) -> usize {
        WIDE_BYTES / self.geometry.t1.align()
    }

    /// Whether heads are whole packs, each at an address that is a multiple of its size.
    fn is_aligned(&self, values: [u64; 2]) -> bool {
        let Geometry { head_dim, t2, .. } = self.geometry;
        let cache_bytes = self.pack() * t2.bits() / 8;
        let is_aligned = |address: u64, bytes: usize| address.is_multiple_of(bytes as u64);
        // Strides are multiples of head_dim, and so are the layer's offset and the values' rows.
        head_dim.is_multiple_of(self.pack())
            && values.into_iter().all(|address| is_aligned(address, WIDE_BYTES))
            && is_aligned(self.cache, cache_bytes)
    }

    fn launch(
        &self,
        module: &'static Module,
        kernel: &'static str,
        rows: usize,
        units: Units,
    ) -> Result<Option<Launch>, TooLarge> {
        let Geometry { batch, num_heads, head_dim, num_repeat, layer_idx, t2, quant, cache, .. } = self.geometry;
        let per_token = units.per_head.saturating_mul(num_heads);
        if rows == 0 || batch == 0 || per_token == 0 {
            return Ok(None);
        }
        const LIMIT: usize = i32::MAX as usize - 2 * LONGEST_ROUND as usize;
        let narrow = |what, got: usize| match got {
            0..=LIMIT => Ok(got as u32),
            _ => Err(TooLarge { what, got, limit: LIMIT }),
        };
        let per_token = narrow("num_heads * head_dim", per_token)?;
        let wide = |what, got: usize| i64::try_from(got).map_err(|_| TooLarge { what, got, limit: i64::MAX as usize });
        let strides = |strides: CacheStrides| -> Result<Strides, TooLarge> {
            let stride = |got| wide("a stride of cache or scale", got);
            Ok(Strides { token: stride(strides.token)?, kv: stride(strides.kv)?, head: stride(strides.head)? })
        };
        let total = (rows as u64).checked_mul(u64::from(per_token)).filter(|&total| total < 1 << 62);
        let total = total.ok_or(TooLarge { what: "rows * num_heads * head_dim", got: usize::MAX, limit: 1 << 62 })?;
        let (max_p, page_size) = match self.pages {
            Pages::Offset => (1, i64::MAX as usize),
            Pages::Paged { max_p, page_size } => (max_p, page_size),
        };
        let scale_bytes = |quant: Quant| layer_idx * quant.scale.layer * quant.t3.align();

        let round = self.round(total, per_token);
        let blocks = total.div_ceil(u64::from(round)).div_ceil(u64::from(BLOCK / WARP));
        let most = u64::from(self.multiprocessors.clamp(1, 1 << 16)) * BLOCKS_PER_MULTIPROCESSOR;
        let parameters = Parameters {
            current: self.current,
            outputs: self.outputs,
            cache: self.cache.wrapping_add((layer_idx * cache.layer * t2.bits() / 8) as u64),
            scale: self.scale.wrapping_add(quant.map_or(0, scale_bytes) as u64),
            seqstarts: self.seqstarts,
            start_pos: self.start_pos,
            cachestarts: self.cachestarts,
            status: self.status,
            rows: wide("rows", rows)?,
            max_t: wide("max_t", self.max_t)?,
            max_p: wide("max_p", max_p)?,
            page_size: wide("page_size", page_size)?,
            cache_strides: strides(cache)?,
            scale_strides: quant.map_or(Ok(Strides::default()), |quant| strides(quant.scale))?,
            batch: narrow("batch", batch)?,
            head_dim: narrow("head_dim", head_dim)?,
            num_repeat: narrow("num_repeat", num_repeat)?,
            group: narrow("quant_group", quant.map_or(1, |quant| quant.group))?,
            round,
            exact_rows: self.exact_rows.into(),
            units_per_token: Divisor::new(per_token),
            units_per_head: Divisor::new(units.per_head as u32),
            units_per_group: Divisor::new(units.per_group as u32),
            reserved: 0,
        };
        Ok(Some(Launch { module, kernel, grid: blocks.min(most) as u32, parameters }))
    }

    /// Units between two look-ups of slots: as many as let the warp with the most rounds end first. Long ones cost few
    /// look-ups, but share the work out less evenly.
    fn round(&self, total: u64, per_token: u32) -> u32 {
        let warps = u64::from(self.multiprocessors.max(1)) * BLOCKS_PER_MULTIPROCESSOR * u64::from(BLOCK / WARP);
        let most_of_a_warp = |round: u32| {
            let rounds = total.div_ceil(u64::from(round)).div_ceil(warps);
            rounds.saturating_mul(u64::from(round) + UNITS_OF_A_LOOK_UP)
        };
        // One lane looks up one token, so a round spans 32 tokens at most.
        let fits = |&round: &u32| round == WARP || (round - 1).div_ceil(per_token) < WARP;
        let rounds = (1..=LONGEST_ROUND / WARP).rev().map(|warps| warps * WARP).filter(fits);
        rounds.min_by_key(|&round| most_of_a_warp(round)).unwrap_or(WARP)
    }
}

#[cfg(test)]
mod tests {
    use kvcache_schema::ElementType::{Float16, Float32, Int4, Int8};
    use kvcache_schema::{CacheDims, CacheLayout, QuantBit};

    use super::*;

    /// A call of one sequence, aligned as well as can be.
    fn operands(t1: ElementType, t2: ElementType, group: Option<usize>, num_heads: usize, head_dim: usize) -> Operands {
        let dims = CacheDims { max_t: 64, num_layer: 3, num_heads, inner: head_dim };
        let strides = |dims| CacheLayout::LayerMajor.strides(dims).unwrap();
        let quant = group.map(|group| Quant {
            bits: if t2 == Int4 { QuantBit::Four } else { QuantBit::Eight },
            group,
            t3: Float16,
            scale_len: 0,
            scale: strides(CacheDims { inner: head_dim / group, ..dims }),
        });
        let geometry = Geometry {
            batch: 1,
            num_heads,
            head_dim,
            num_repeat: 2,
            layer_idx: 2,
            t1,
            t2,
            quant,
            cache_len: 0,
            cache: strides(dims),
        };
        Operands {
            geometry,
            max_t: 64,
            pages: Pages::Offset,
            current_rows: 5,
            output_rows: 9,
            exact_rows: true,
            current: [0x1000, 0x2000],
            outputs: [0x3000, 0x4000],
            cache: 0x5000,
            scale: 0x6002,
            seqstarts: 0x7000,
            start_pos: 0x7100,
            cachestarts: 0x7200,
            status: 0x7300,
            multiprocessors: 2,
        }
    }

    /// Whether the store is wide, and whether the load is.
    fn wide(operands: Operands) -> (bool, bool) {
        let (store, load) = (operands.store().unwrap().unwrap(), operands.load().unwrap().unwrap());
        (store.kernel == store.module.store_wide, load.kernel == load.module.load_wide)
    }

    #[test]
    fn wide_kernels_serve_whole_aligned_packs() {
        let f16 = operands(Float16, Float16, None, 2, 24);
        assert_eq!(wide(f16), (true, true));
        assert_eq!(wide(operands(Float16, Float16, None, 2, 20)), (false, false));
        assert_eq!(wide(operands(Float32, Float32, None, 2, 20)), (true, true));
        assert_eq!(wide(operands(Int8, Int8, None, 2, 24)), (false, false));
        assert_eq!(wide(Operands { current: [0x1000, 0x2008], ..f16 }), (false, true));
        assert_eq!(wide(Operands { outputs: [0x3002, 0x4000], ..f16 }), (true, false));
        assert_eq!(wide(Operands { cache: 0x5008, ..f16 }), (false, false));
        // Eight values are eight bytes of codes, or four.
        assert_eq!(wide(Operands { cache: 0x5008, ..operands(Float16, Int8, Some(8), 2, 24) }), (true, true));
        assert_eq!(wide(Operands { cache: 0x5004, ..operands(Float16, Int8, Some(8), 2, 24) }), (false, false));
        assert_eq!(wide(Operands { cache: 0x5004, ..operands(Float16, Int4, Some(8), 2, 24) }), (true, true));
    }

    #[test]
    fn wide_stores_need_groups_that_a_warp_can_reduce() {
        for (group, expected) in
            [(4, (false, false)), (8, (true, true)), (24, (false, true)), (256, (true, true)), (512, (false, true))]
        {
            assert_eq!(wide(operands(Float16, Int4, Some(group), 1, 1536)), expected, "{group}");
        }
    }

    #[test]
    fn addresses_are_the_layers() {
        let operands = operands(Float16, Int4, Some(8), 2, 16);
        let Parameters { cache, scale, rows, .. } = operands.store().unwrap().unwrap().parameters;
        // Two layers of 64 slots, two tensors and two heads.
        assert_eq!((cache, scale), (0x5000 + 2 * 64 * 2 * 2 * 16 / 2, 0x6002 + 2 * 64 * 2 * 2 * 2 * 2));
        assert_eq!((rows, operands.load().unwrap().unwrap().parameters.rows), (5, 9));
    }

    #[test]
    fn nothing_to_do_is_no_launch() {
        let some = operands(Float32, Float32, None, 2, 4);
        assert!(Operands { current_rows: 0, ..some }.store().unwrap().is_none());
        assert!(Operands { output_rows: 0, ..some }.load().unwrap().is_none());
        assert!(operands(Float32, Float32, None, 0, 4).load().unwrap().is_none());
        assert!(operands(Float32, Float32, None, 2, 0).load().unwrap().is_none());
    }

    #[test]
    fn rounds_are_long_where_no_warp_waits_for_another() {
        // 132 multiprocessors have 4224 warps; a token is 128 units.
        for (tokens, round) in [
            (1, 32),
            (64, 32),
            // One round a warp, however long, as soon as there are more than 32 units for each.
            (1056, 32),
            (1057, 64),
            (4224, 128),
            // Each of these would take more rounds, or longer ones, with another length.
            (8 * 2048, 256),
            (8448, 256),
            (8449, 160),
            (64 * 4096, 256),
        ] {
            let large = operands(Float16, Float16, None, 8, 128);
            let large = Operands { current_rows: tokens, multiprocessors: 132, ..large };
            assert_eq!(large.store().unwrap().unwrap().parameters.round, round, "{tokens}");
        }
    }

    #[test]
    fn what_is_too_large_is_named() {
        let large = operands(Int8, Int8, None, 1 << 24, 1 << 12);
        assert_eq!(large.store().unwrap_err().what, "num_heads * head_dim");
        let many = Operands { output_rows: 1 << 62, ..operands(Int8, Int8, None, 2, 16) };
        assert_eq!(many.load().unwrap_err().what, "rows * num_heads * head_dim");
    }

    #[test]
    fn grids_cover_the_work_and_rounds_the_lanes() {
        for num_heads in 1..40 {
            for rows in [1, 31, 33, 1000, 1 << 20, 1 << 33] {
                for multiprocessors in [1, 132] {
                    let operands =
                        Operands { current_rows: rows, multiprocessors, ..operands(Int8, Int8, None, num_heads, 16) };
                    let Launch { grid, parameters, .. } = operands.store().unwrap().unwrap();
                    let (round, per_token) = (parameters.round, parameters.units_per_token.value);
                    let total = rows as u64 * u64::from(per_token);
                    let blocks = total.div_ceil(u64::from(round * BLOCK / WARP));
                    assert_eq!(u64::from(grid), blocks.min(u64::from(multiprocessors) * BLOCKS_PER_MULTIPROCESSOR));
                    let most_tokens = (0..per_token).map(|offset| (offset + round - 1) / per_token + 1).max();
                    assert!(most_tokens <= Some(WARP), "{round} units of {per_token} a token");
                    // Groups of lanes start where warps do.
                    assert!(round.is_multiple_of(WARP));
                }
            }
        }
    }
}

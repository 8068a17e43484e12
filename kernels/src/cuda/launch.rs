//! The launches that make a call: which kernel, with which parameters and grid.
//!
//! A phase's work is cut into *units*, a few neighboring elements of a head each. A warp moves a *round* of neighboring
//! units, then looks up the slots of its next round.

use kvcache_schema::{CacheStrides, ElementType};

use super::parameters::{Divisor, IndexParameters, Parameters, Strides};
use super::ptx::{self, CacheKernel, Module};
use crate::cache_bytes::CacheBytes;
use crate::device_problem::{AlikeSequences, DeviceAddressing, DeviceProblem, DeviceStores};
use crate::problem::Geometry;

/// Threads in a block. The kernels are compiled for this number.
pub const BLOCK: u32 = 256;

/// Lanes in a warp.
const WARP: u32 = 32;

/// The longest round, in units.
const LONGEST_ROUND: u32 = 8 * WARP;

/// The cost of looking up a round's slots, in units that could be moved in the same time: one for each lane.
const UNITS_OF_A_LOOK_UP: u64 = WARP as u64;

/// Blocks that are resident on a multiprocessor at once, as the kernels' launch bounds ask. The grid is no larger, so
/// that all blocks run from start to end with equal shares of the work, and each scans the batch once.
const BLOCKS_PER_MULTIPROCESSOR: u64 = 4;

/// Bytes of `current_key` or `key` that a lane of a wide kernel accesses at once.
const WIDE_BYTES: usize = 16;

/// One launch of a kernel, whose one parameter is a `P`.
#[derive(Debug, Clone, Copy)]
pub struct Launch<P = Parameters> {
    /// The module that holds the kernel.
    pub module: &'static Module,
    /// The kernel's name in its module.
    pub kernel: &'static str,
    /// Blocks, along the first axis. A block has [`BLOCK`] threads along the first axis and no dynamic shared memory.
    pub grid: u32,
    /// The kernel's one parameter.
    pub parameters: P,
}

/// A dimension that does not fit the kernels' integer arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge {
    /// What is too large, in the specification's words.
    pub what: &'static str,
    /// How large it is; the largest `usize` if that overflows.
    pub got: usize,
    /// The largest that can be served.
    pub limit: usize,
}

/// How a phase's work is cut into units, and whether a wide kernel moves them.
struct Units {
    wide: bool,
    per_head: usize,
    per_group: usize,
}

impl DeviceStores {
    /// The launch that stores the current tokens, on a device of so many multiprocessors, which size the grid; `None`
    /// if there is nothing to store.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub fn store(&self, multiprocessors: u32) -> Result<Option<Launch>, TooLarge> {
        if let Some(units) = self.heads() {
            return self.launch(CacheKernel::StoreRotated, self.current_rows, units, multiprocessors);
        }
        let Geometry { head_dim, quant, .. } = self.geometry;
        // With static scales each element is stored by itself.
        let quant = quant.filter(|quant| !quant.has_static_scales());
        let lanes = quant.map_or(1, |quant| quant.group / self.pack());
        let whole = quant.is_none_or(|quant| quant.group.is_multiple_of(self.pack()) && lanes.is_power_of_two());
        let units = if self.is_aligned(self.current) && whole && lanes <= WARP as usize {
            Units { wide: true, per_head: head_dim / self.pack(), per_group: lanes }
        } else {
            Units { wide: false, per_head: head_dim / quant.map_or(1, |quant| quant.group), per_group: 1 }
        };
        let kernel = if units.wide { CacheKernel::StoreWide } else { CacheKernel::StoreNarrow };
        self.launch(kernel, self.current_rows, units, multiprocessors)
    }

    /// The parameters by which kernels elsewhere find all tokens of all sequences: lengths, slots, strides, cache and
    /// scale. Units are elements.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub fn tokens(&self) -> Result<Parameters, TooLarge> {
        let Geometry { head_dim, quant, .. } = self.geometry;
        let per_group = quant.map_or(1, |quant| quant.group);
        self.parameters(self.all_rows, &Units { wide: false, per_head: head_dim, per_group })
    }

    /// Units that are heads, where keys are multiplied by a Hadamard matrix.
    fn heads(&self) -> Option<Units> {
        let units = Units { wide: false, per_head: self.geometry.head_dim.min(1), per_group: 1 };
        (self.geometry.rotation_order(0) > 1).then_some(units)
    }

    /// Elements that a lane of a wide kernel moves at once.
    fn pack(&self) -> usize {
        WIDE_BYTES / self.geometry.t1.align()
    }

    /// Whether heads are whole packs, each at an address that is a multiple of its size.
    fn is_aligned(&self, values: [u64; 2]) -> bool {
        let Geometry { head_dim, t2, .. } = self.geometry;
        let cache_bytes = t2.byte_len(self.pack());
        let is_aligned = |address: u64, bytes: usize| address.is_multiple_of(bytes as u64);
        // Strides are multiples of head_dim, and so are the layer's offset and the values' rows.
        head_dim.is_multiple_of(self.pack())
            && values.into_iter().all(|address| is_aligned(address, WIDE_BYTES))
            && is_aligned(self.cache, cache_bytes)
    }

    /// A phase's launch.
    fn launch(
        &self,
        kernel: CacheKernel,
        rows: usize,
        units: Units,
        multiprocessors: u32,
    ) -> Result<Option<Launch>, TooLarge> {
        let Geometry { batch, num_heads, t1, t2, quant, .. } = self.geometry;
        if rows == 0 || batch == 0 || units.per_head == 0 || num_heads == 0 {
            return Ok(None);
        }
        let parameters = self.parameters(rows, &units)?;
        let Parameters { units_per_token: Divisor { value: per_token, .. }, .. } = parameters;
        let total = (rows as u64).checked_mul(u64::from(per_token)).filter(|&total| total < 1 << 62);
        let total = total.ok_or(TooLarge { what: "rows * num_heads * head_dim", got: usize::MAX, limit: 1 << 62 })?;
        let round = round(total, per_token, multiprocessors);
        let blocks = total.div_ceil(u64::from(round)).div_ceil(u64::from(BLOCK / WARP));
        let module = ptx::module(&ptx::MODULES, (t1, t2, quant.map(|quant| quant.t3)));
        Ok(Some(Launch {
            module,
            kernel: module.kernel(kernel),
            grid: blocks.min(most_blocks(multiprocessors)) as u32,
            parameters: Parameters { round, ..parameters },
        }))
    }

    /// The parameters of a launch that moves so many rows; the length of rounds is the shortest.
    fn parameters(&self, rows: usize, units: &Units) -> Result<Parameters, TooLarge> {
        let Geometry { batch, num_heads, head_dim, quant, cache, .. } = self.geometry;
        let per_token = narrow("num_heads * head_dim", units.per_head.saturating_mul(num_heads))?;
        let wide = |what, got: usize| i64::try_from(got).map_err(|_| TooLarge { what, got, limit: i64::MAX as usize });
        let strides = |strides: CacheStrides| -> Result<Strides, TooLarge> {
            let stride = |got| wide("a stride of cache or scale", got);
            Ok(Strides { token: stride(strides.token)?, kv: stride(strides.kv)?, head: stride(strides.head)? })
        };
        let (max_p, page_size) = match self.addressing {
            DeviceAddressing::Offset => (1, i64::MAX as usize),
            DeviceAddressing::Paged { max_p, page_size } => (max_p, page_size),
        };
        let (cache_at, scale_at) = CacheBytes::new(&self.geometry).head(0, 0, 0);
        Ok(Parameters {
            current: self.current,
            outputs: [0; 2],
            cache: self.cache.wrapping_add(cache_at as u64),
            scale: self.scale.wrapping_add(scale_at as u64),
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
            num_repeat: 1,
            group: narrow("quant_group", quant.map_or(1, |quant| quant.group))?,
            round: WARP,
            exact_rows: self.exact_rows.into(),
            units_per_token: Divisor::new(per_token),
            units_per_head: Divisor::new(units.per_head as u32),
            units_per_group: Divisor::new(units.per_group as u32),
            rotation_order: self.geometry.rotation_order(0) as u32,
        })
    }
}

impl DeviceProblem {
    /// The launch that loads all tokens, on a device of so many multiprocessors, which size the grid; `None` if there
    /// is nothing to load.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub fn load(&self, multiprocessors: u32) -> Result<Option<Launch>, TooLarge> {
        let Self { ref stores, num_repeat, outputs } = *self;
        let Geometry { head_dim, t2, quant, .. } = stores.geometry;
        let pack = stores.pack();
        let whole = quant.is_none_or(|quant| quant.group.is_multiple_of(pack));
        let heads = stores.heads();
        let is_rotated = heads.is_some();
        let units = if let Some(heads) = heads {
            heads
        } else if stores.is_aligned(outputs) && whole {
            let per_group = quant.map_or(1, |quant| quant.group / pack);
            Units { wide: true, per_head: head_dim / pack, per_group }
        } else {
            // A byte of the cache, so that no two lanes share one.
            let unit = if t2 == ElementType::Int4 { 2 } else { 1 };
            let per_group = quant.map_or(1, |quant| quant.group / unit);
            Units { wide: false, per_head: head_dim / unit, per_group }
        };
        let kernel = match units.wide {
            _ if is_rotated => CacheKernel::LoadRotated,
            true => CacheKernel::LoadWide,
            false => CacheKernel::LoadNarrow,
        };
        let Some(launch) = stores.launch(kernel, stores.all_rows, units, multiprocessors)? else { return Ok(None) };
        let num_repeat = narrow("num_repeat", num_repeat)?;
        Ok(Some(Launch { parameters: Parameters { num_repeat, outputs, ..launch.parameters }, ..launch }))
    }
}

impl AlikeSequences {
    /// The bytes of the index inputs of so many sequences, one behind the other.
    pub fn index_bytes(batch: usize) -> usize {
        (3 * batch + 1) * size_of::<i64>()
    }

    /// The launch that makes the index inputs for launches of `module` at an address, on a device of so many
    /// multiprocessors.
    pub fn launch(
        &self,
        module: &'static Module,
        batch: usize,
        address: u64,
        multiprocessors: u32,
    ) -> Launch<IndexParameters> {
        let &Self { seqlen, start_pos, stride } = self;
        let [past_at, slots_at] = [batch + 1, 2 * batch + 1].map(|words| address + (words * size_of::<i64>()) as u64);
        let blocks = (batch as u64 + 1).div_ceil(BLOCK.into());
        Launch {
            module,
            kernel: module.kernel(CacheKernel::MakeIndices),
            grid: blocks.min(most_blocks(multiprocessors)) as u32,
            parameters: IndexParameters {
                seqstarts: address,
                start_pos: past_at,
                cachestarts: slots_at,
                batch: batch as u64,
                seqlen: seqlen as i64,
                past: start_pos as i64,
                stride: stride as i64,
            },
        }
    }
}

/// As many blocks as are resident at once.
fn most_blocks(multiprocessors: u32) -> u64 {
    u64::from(multiprocessors.clamp(1, 1 << 16)) * BLOCKS_PER_MULTIPROCESSOR
}

/// A number that the kernels' integers hold, and a few rounds more.
fn narrow(what: &'static str, got: usize) -> Result<u32, TooLarge> {
    const LIMIT: usize = i32::MAX as usize - 2 * LONGEST_ROUND as usize;
    match got {
        0..=LIMIT => Ok(got as u32),
        _ => Err(TooLarge { what, got, limit: LIMIT }),
    }
}

/// The length of a round, in units: the one with which the busiest warp ends first. Long rounds need fewer look-ups of
/// slots, but balance the work less evenly.
fn round(total: u64, per_token: u32, multiprocessors: u32) -> u32 {
    let warps = u64::from(multiprocessors.max(1)) * BLOCKS_PER_MULTIPROCESSOR * u64::from(BLOCK / WARP);
    let most_of_a_warp = |round: u32| {
        let rounds = total.div_ceil(u64::from(round)).div_ceil(warps);
        rounds.saturating_mul(u64::from(round) + UNITS_OF_A_LOOK_UP)
    };
    // One lane looks up one token, so a round spans 32 tokens at most.
    let fits = |&round: &u32| round == WARP || (round - 1).div_ceil(per_token) < WARP;
    let rounds = (1..=LONGEST_ROUND / WARP).rev().map(|warps| warps * WARP).filter(fits);
    rounds.min_by_key(|&round| most_of_a_warp(round)).unwrap_or(WARP)
}

#[cfg(test)]
mod tests {
    use kvcache_schema::ElementType::{Float16, Int8};
    use kvcache_schema::{CacheDims, CacheLayout};

    use super::*;

    /// A call of one sequence that stores and loads so many rows, aligned as well as can be.
    fn problem(element: ElementType, rows: usize, num_heads: usize, head_dim: usize) -> DeviceProblem {
        let dims = CacheDims { max_t: 64, num_layer: 3, num_heads, inner: head_dim };
        let geometry = Geometry {
            batch: 1,
            num_heads,
            head_dim,
            layer_idx: 2,
            t1: element,
            t2: element,
            quant: None,
            cache_len: CacheLayout::LayerMajor.shape(dims).iter().product(),
            cache: CacheLayout::LayerMajor.strides(dims).unwrap(),
        };
        let stores = DeviceStores {
            geometry,
            max_t: 64,
            addressing: DeviceAddressing::Offset,
            current_rows: rows,
            all_rows: rows,
            exact_rows: true,
            current: [0x1000, 0x2000],
            cache: 0x5000,
            scale: 0x6002,
            seqstarts: 0x7000,
            start_pos: 0x7100,
            cachestarts: 0x7200,
            status: 0x7300,
        };
        DeviceProblem { stores, num_repeat: 2, outputs: [0x3000, 0x4000] }
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
            let stores = problem(Float16, tokens, 8, 128).stores;
            assert_eq!(stores.store(132).unwrap().unwrap().parameters.round, round, "{tokens}");
        }
    }

    #[test]
    fn what_is_too_large_is_named() {
        assert_eq!(problem(Int8, 5, 1 << 24, 1 << 12).stores.store(2).unwrap_err().what, "num_heads * head_dim");
        assert_eq!(problem(Int8, 1 << 62, 2, 16).load(2).unwrap_err().what, "rows * num_heads * head_dim");
    }

    #[test]
    fn grids_cover_the_work_and_rounds_the_lanes() {
        for num_heads in 1..40 {
            for rows in [1, 31, 33, 1000, 1 << 20, 1 << 33] {
                for multiprocessors in [1, 132] {
                    let stores = problem(Int8, rows, num_heads, 16).stores;
                    let Launch { grid, parameters, .. } = stores.store(multiprocessors).unwrap().unwrap();
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

//! The launches that make a call: which kernels, with which parameters and grids.

use kvcache_kernels::CacheBytes;
use kvcache_kernels::cuda::{Divisor, Error, Launch, Module, Parameters, Queue, Strides, TooLarge};
use kvcache_schema::ElementType;

use super::parameters::AttentionParameters;
use super::ptx::{self, AttentionKernelName};
use super::units::Units;
use crate::device_attention::{DeviceAttention, DeviceKeys, DevicePacked};
use crate::problem::AttentionGeometry;

/// Blocks for each multiprocessor: several times as many as are resident, so that short units even out, and not one for
/// each unit, since each block reads the lengths of the whole batch once.
const BLOCKS_PER_MULTIPROCESSOR: u64 = 16;

/// Bytes of T1 whose elements a lane of a wide kernel reads of a key at once.
const WIDE_BYTES: usize = 16;

/// A window that hides no key; small enough that subtracting a position does not overflow.
const NO_WINDOW: i64 = 1 << 62;

/// The largest number of heads, or of sequences.
const LIMIT: usize = i32::MAX as usize;

/// The launches of a call, in the order of a stream. Each may be absent: then there is nothing to do.
#[derive(Debug, Clone, Copy)]
pub struct AttentionLaunches {
    /// Stores the current tokens.
    pub store: Option<Launch>,
    /// Attends, and writes what needs no other piece.
    pub attend: Option<Launch<AttentionParameters>>,
    /// Adds the pieces of decoding steps.
    pub combine: Option<Launch<AttentionParameters>>,
    /// Sums the weights of each key.
    pub mass: Option<Launch<AttentionParameters>>,
}

impl AttentionLaunches {
    /// The launches of a call, on a device of so many multiprocessors, which size the grids.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub fn new(call: &DeviceAttention, multiprocessors: u32) -> Result<Self, TooLarge> {
        let units = call.units()?;
        let AttentionGeometry { batch, num_heads, head_dim, .. } = call.geometry;
        let store = match &call.keys {
            DeviceKeys::Packed(_) => None,
            DeviceKeys::Cache(stores) => stores.store(multiprocessors)?,
        };
        if batch == 0 || num_heads == 0 || head_dim == 0 {
            return Ok(Self { store, attend: None, combine: None, mass: None });
        }
        let parameters = call.parameters(&units)?;
        let (t1, t2, t3) = call.types();
        let module = kvcache_kernels::cuda::module(&ptx::MODULES, (t1, t2, t3));
        // The mass is of all pieces, those before a window too.
        let of_mass = AttentionParameters {
            step_units: (units.masses * units.tiles_per_step) as u64,
            window_pieces: 0,
            ..parameters
        };
        let launch = |kernel: AttentionKernelName, units: usize, parameters: AttentionParameters| {
            let most = u64::from(multiprocessors.clamp(1, 1 << 16)) * BLOCKS_PER_MULTIPROCESSOR;
            Launch { module, kernel: name(module, kernel), grid: (units as u64).min(most) as u32, parameters }
        };
        let (attend, mass) = match call.is_wide(&parameters) {
            true => (AttentionKernelName::AttendWide, AttentionKernelName::MassWide),
            false => (AttentionKernelName::AttendNarrow, AttentionKernelName::MassNarrow),
        };
        let has_queries = call.query_rows > 0;
        Ok(Self {
            store,
            attend: has_queries.then(|| launch(attend, units.units, parameters)),
            combine: (has_queries && units.combined > 0)
                .then(|| launch(AttentionKernelName::Combine, units.combined, parameters)),
            mass: (units.masses > 0).then(|| launch(mass, units.masses, of_mass)),
        })
    }
}

/// Launches a call on a stream.
///
/// # Errors
/// [`Error::TooLarge`], [`Error::NotPrepared`], [`Error::Module`]: nothing has been launched. [`Error::Driver`]: the
/// first launches may have been.
///
/// # Safety
/// The conditions of [`DeviceAttention`], while the stream executes the call (for a captured call: each replay).
pub unsafe fn run(queue: &Queue<'_>, call: &DeviceAttention) -> Result<(), Error> {
    let launches = AttentionLaunches::new(call, queue.multiprocessors())?;
    let store = launches.store.map(|store| queue.ready(store)).transpose()?;
    let attend = launches.attend.map(|attend| queue.ready(attend)).transpose()?;
    let combine = launches.combine.map(|combine| queue.ready(combine)).transpose()?;
    let mass = launches.mass.map(|mass| queue.ready(mass)).transpose()?;
    if let Some(store) = store {
        // SAFETY: a launch of `DeviceStores` has the parameter of its kernel, whose addresses are accessible: see
        // `# Safety`.
        unsafe { store.launch() }?;
    }
    for launch in [attend, combine, mass].into_iter().flatten() {
        // SAFETY: a launch of `DeviceAttention` has the parameter of its kernel, whose addresses are accessible: see
        // `# Safety`.
        unsafe { launch.launch() }?;
    }
    Ok(())
}

fn name(module: &'static Module, kernel: AttentionKernelName) -> &'static str {
    module.kernels[kernel as usize]
}

fn narrow(what: &'static str, got: usize) -> Result<u32, TooLarge> {
    match got {
        0..=LIMIT => Ok(got as u32),
        _ => Err(TooLarge { what, got, limit: LIMIT }),
    }
}

fn wide(what: &'static str, got: usize) -> Result<i64, TooLarge> {
    i64::try_from(got).map_err(|_| TooLarge { what, got, limit: i64::MAX as usize })
}

impl DeviceAttention {
    /// The bytes of scratch memory that the call needs. No others than `geometry`, `keys`, `query_rows`, `max_seqlen`,
    /// `max_kvlen` and whether there is an `attention_mass` decide; the addresses do not.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub fn scratch_bytes(&self) -> Result<usize, TooLarge> {
        let Units { sums_bytes, totals_bytes, .. } = self.units()?;
        Ok(sums_bytes + totals_bytes)
    }

    /// The types of the module whose kernels make the call: T1, T2 and, with quantization, T3.
    fn types(&self) -> (ElementType, ElementType, Option<ElementType>) {
        let t1 = self.geometry.t1;
        match &self.keys {
            DeviceKeys::Packed(_) => (t1, t1, None),
            DeviceKeys::Cache(stores) => (t1, stores.geometry.t2, stores.geometry.quant.map(|quant| quant.t3)),
        }
    }

    fn parameters(&self, units: &Units) -> Result<AttentionParameters, TooLarge> {
        let AttentionGeometry { num_heads, num_kv_heads, is_causal, is_alibi, decoding_batches, .. } = self.geometry;
        let AttentionGeometry { scale, softcap, local_window_size, .. } = self.geometry;
        let (tokens, rows, scales, seqstarts) = match &self.keys {
            DeviceKeys::Packed(packed) => (packed.tokens(&self.geometry)?, packed.rows_at, [0; 2], packed.seqstarts),
            DeviceKeys::Cache(stores) => {
                let tokens = stores.tokens()?;
                let layer = CacheBytes::new(&stores.geometry);
                let [(first_key, first_scale), (value, value_scale)] = [0, 1].map(|kv| layer.head(0, kv, 0));
                let rows = [tokens.cache, tokens.cache.wrapping_add((value - first_key) as u64)];
                let scales = [tokens.scale, tokens.scale.wrapping_add((value_scale - first_scale) as u64)];
                (tokens, rows, scales, stores.seqstarts)
            }
        };
        let mask_width = self.attn_mask.map_or(0, |mask| mask.width);
        let per_head = self.attn_mask.is_some_and(|mask| mask.per_head);
        Ok(AttentionParameters {
            tokens,
            rows,
            scales,
            query: self.query,
            mask: self.attn_mask.map_or(0, |mask| mask.address),
            sinks: self.head_sink.unwrap_or(0),
            output: self.attn_output,
            scratch: if units.sums_bytes > 0 { self.scratch } else { 0 },
            totals: if units.masses > 0 { self.scratch + units.sums_bytes as u64 } else { 0 },
            mass: self.attention_mass.unwrap_or(0),
            seqstarts,
            query_rows: wide("rows of query", self.query_rows)?,
            mask_width: wide("the width of attn_mask", mask_width)?,
            mask_plane: match per_head {
                true => wide("a plane of attn_mask", mask_width.saturating_mul(self.query_rows))?,
                false => 0,
            },
            decoding_batches: wide("decoding_batches", decoding_batches)?,
            window: local_window_size.map_or(NO_WINDOW, |window| (window as i64).min(NO_WINDOW)),
            step_units: units.step_units as u64,
            units: units.units as u64,
            heads_per_key: narrow("num_heads", num_heads / num_kv_heads)?,
            num_heads: narrow("num_heads", num_heads)?,
            num_kv_heads: narrow("num_kv_heads", num_kv_heads)?,
            most_step_rows: narrow("num_heads", units.most_step_rows)?,
            tiles_per_step: narrow("num_heads", units.tiles_per_step)?,
            rows_per_tile: narrow("num_heads", units.rows_per_tile)?,
            window_pieces: narrow("batch", units.window_pieces)?,
            factor: if softcap == 0.0 { scale } else { 1.0 },
            scale,
            softcap,
            is_causal: is_causal.into(),
            alibi_heads: if is_alibi { 1 << num_heads.ilog2() } else { 0 },
            packed: matches!(self.keys, DeviceKeys::Packed(_)).into(),
        })
    }

    /// Whether rows are whole packs of one group each, at addresses that are multiples of their size.
    fn is_wide(&self, parameters: &AttentionParameters) -> bool {
        let (t1, t2, _) = self.types();
        let pack = WIDE_BYTES / t1.align();
        let bytes = (t2.byte_len(pack)) as u64;
        let group = match &self.keys {
            DeviceKeys::Packed(_) => None,
            DeviceKeys::Cache(stores) => stores.geometry.quant.map(|quant| quant.group),
        };
        self.geometry.head_dim.is_multiple_of(pack)
            && group.is_none_or(|group| group.is_multiple_of(pack))
            // Strides are multiples of head_dim.
            && parameters.rows.iter().all(|address| address.is_multiple_of(bytes))
    }
}

impl DevicePacked {
    /// Each sequence's rows, as the slots of a cache in offset mode.
    fn tokens(&self, geometry: &AttentionGeometry) -> Result<Parameters, TooLarge> {
        let &AttentionGeometry { batch, num_kv_heads, head_dim, .. } = geometry;
        let rows = wide("rows of key", self.rows)?;
        let token = num_kv_heads.saturating_mul(head_dim);
        Ok(Parameters {
            current: [0; 2],
            outputs: [0; 2],
            cache: 0,
            scale: 0,
            seqstarts: self.kvstarts,
            start_pos: 0,
            cachestarts: self.kvstarts,
            status: self.status,
            rows,
            max_t: rows,
            max_p: 1,
            page_size: i64::MAX,
            cache_strides: Strides { token: wide("num_kv_heads * head_dim", token)?, kv: 0, head: head_dim as i64 },
            scale_strides: Strides::default(),
            batch: narrow("batch", batch)?,
            head_dim: narrow("head_dim", head_dim)?,
            num_repeat: 0,
            group: 1,
            round: 0,
            exact_rows: self.exact_rows.into(),
            units_per_token: Divisor::new(1),
            units_per_head: Divisor::new(1),
            units_per_group: Divisor::new(1),
            rotation_order: 1,
        })
    }
}

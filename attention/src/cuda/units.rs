//! How the work of a call is cut into units: see `kernel/work.cuh`.

use kvcache_kernels::cuda::TooLarge;

use crate::device_attention::{DeviceAttention, DeviceKeys};
use crate::problem::AttentionGeometry;

/// The longest head that the kernels serve: a tile's queries, and each lane's part of a key, are held on the chip.
pub const MAX_HEAD_DIM: usize = 256;

/// Query rows that a block attends for at once, as in the kernels.
const TILE: usize = 16;

/// Keys of a piece, as in the kernels. Not chosen for the device: the sums of a piece are made alone, so that other
/// pieces would give other bits.
const PIECE: usize = 512;

/// The most units that a call may have.
const MOST_UNITS: usize = 1 << 62;

/// The units of a call, and what they need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Units {
    /// A sequence of at most so many query rows for each key head is a decoding step.
    pub(super) most_step_rows: usize,
    /// Tiles of so many rows.
    pub(super) tiles_per_step: usize,
    /// Rows in a tile of a decoding step.
    pub(super) rows_per_tile: usize,
    /// Pieces of a decoding step that have units, from the first that it sees on; 0 where each piece has one.
    pub(super) window_pieces: usize,
    /// Units of decoding steps: pieces.
    pub(super) step_units: usize,
    /// Those, and the tiles of other sequences.
    pub(super) units: usize,
    /// Tiles of all decoding steps whose pieces must be added; 0 where no sequence can have two pieces.
    pub(super) combined: usize,
    /// The sums of all pieces.
    pub(super) sums_bytes: usize,
    /// What the mass needs of query rows.
    pub(super) totals_bytes: usize,
    /// Pieces for each key head, whose mass is computed.
    pub(super) masses: usize,
}

impl DeviceAttention {
    /// The units of this call.
    pub(super) fn units(&self) -> Result<Units, TooLarge> {
        let AttentionGeometry { batch, num_heads, num_kv_heads, head_dim, .. } = self.geometry;
        if head_dim > MAX_HEAD_DIM {
            return Err(TooLarge { what: "head_dim", got: head_dim, limit: MAX_HEAD_DIM });
        }
        let heads = num_heads / num_kv_heads.max(1);
        let most = heads.max(TILE);
        let most_step_rows = self.max_seqlen.saturating_mul(heads).clamp(heads, most);
        let tiles_per_step = most_step_rows.div_ceil(TILE);
        let rows_per_tile = most_step_rows.min(TILE);
        let key_rows = match &self.keys {
            DeviceKeys::Packed(packed) => packed.rows,
            DeviceKeys::Cache(stores) => stores.all_rows,
        };
        // The keys that the queries of a decoding step see are at most so many pieces.
        let window_pieces = self.geometry.local_window_size.map(|window| {
            let queries = most_step_rows / heads.max(1);
            (window - 1).saturating_add(queries.saturating_sub(1)).div_ceil(PIECE) + 1
        });
        let product = |factors: &[usize]| factors.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
        let counted = || {
            let slots = (key_rows / PIECE).checked_add(batch)?;
            let pieces = product(&[slots, num_kv_heads])?;
            let window_slots = window_pieces.and_then(|pieces| pieces.checked_mul(batch)).filter(|&most| most < slots);
            let all_units = product(&[pieces, tiles_per_step])?;
            let step_units = window_slots.map_or(all_units, |slots| slots * num_kv_heads * tiles_per_step);
            let rows = product(&[self.query_rows, heads])?;
            // No sequence has more rows than there are.
            let tiles = if rows <= most_step_rows { 0 } else { product(&[rows / TILE + batch, num_kv_heads])? };
            let longest = key_rows.min(self.max_kvlen);
            let combined = if longest <= PIECE { 0 } else { product(&[batch, num_kv_heads, tiles_per_step])? };
            let sums = product(&[step_units, rows_per_tile, 2 + head_dim, size_of::<f32>()])?;
            let sums_bytes = if combined == 0 { 0 } else { sums };
            let has_mass = self.attention_mass.is_some();
            let totals = product(&[self.query_rows, num_heads, 2, size_of::<f32>()])?;
            let units = step_units.checked_add(tiles).filter(|&units| units < MOST_UNITS)?;
            (sums < MOST_UNITS && totals < MOST_UNITS).then_some(Units {
                most_step_rows,
                tiles_per_step,
                rows_per_tile,
                window_pieces: window_slots.and(window_pieces).unwrap_or(0),
                step_units,
                units,
                combined,
                sums_bytes,
                totals_bytes: if has_mass { totals } else { 0 },
                masses: if has_mass && key_rows > 0 { pieces } else { 0 },
            })
        };
        counted().ok_or(TooLarge { what: "rows * num_heads * head_dim", got: usize::MAX, limit: MOST_UNITS })
    }
}

//! A call of an attention operator whose tensors lie on a device, as the host knows it.

use kvcache_kernels::cuda::DeviceProblem;
use kvcache_schema::ElementType;

use crate::problem::AttentionGeometry;

/// The longest head that the kernels serve: a tile's queries, and each lane's part of a key, are held on the chip.
pub const MAX_HEAD_DIM: usize = 256;

/// A call whose tensors lie on a device: everything that the host knows of it. Addresses are the device's.
///
/// As for [`DeviceProblem`], lengths and slots stay on the device, and the numbers of rows are capacities.
#[derive(Debug, Clone, Copy)]
pub struct DeviceAttention {
    /// Dimensions, types and masks.
    pub geometry: AttentionGeometry,
    /// Where the keys and values are, and which rows each sequence has.
    pub keys: DeviceKeys,
    /// Rows of `query` and `attn_output`.
    pub query_rows: usize,
    /// An upper bound of seqlen as the caller says: the size of scratch memory depends on it, no result does.
    pub max_seqlen: usize,
    /// `query`.
    pub query: u64,
    /// `attn_mask`, if given.
    pub attn_mask: Option<DeviceMask>,
    /// `attn_output`.
    pub attn_output: u64,
    /// Memory of [`scratch_bytes`](Self::scratch_bytes), aligned to 4.
    pub scratch: u64,
    /// Multiprocessors of the device; sizes the grid only.
    pub multiprocessors: u32,
}

/// Where a call's keys and values are.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::large_enum_variant, reason = "there is one in a call, and a box would be an allocation in each")]
pub enum DeviceKeys {
    /// `key` and `value`.
    Packed(DevicePacked),
    /// In the cache of a call of `KeyValueCache`, of which only the store is launched: its `num_repeat` is 0, and its
    /// `output_rows` are the rows that `key` would have.
    Cache(DeviceProblem),
}

/// Packed keys and values.
#[derive(Debug, Clone, Copy)]
pub struct DevicePacked {
    /// `key` and `value`: T1, shape (`rows`, Hk, Dh).
    pub rows_at: [u64; 2],
    /// Rows of both.
    pub rows: usize,
    /// int64, shape (B + 1).
    pub seqstarts: u64,
    /// int64, shape (B + 1).
    pub kvstarts: u64,
    /// Whether device lengths that add up to fewer rows are reported.
    pub exact_rows: bool,
    /// The status word, as in [`DeviceProblem`].
    pub status: u64,
}

/// `attn_mask` on a device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceMask {
    /// The first element.
    pub address: u64,
    /// Elements in a row, at least as many as there are rows of keys.
    pub width: usize,
    /// Whether there is a plane for each query head; else all share one.
    pub per_head: bool,
}

impl DeviceAttention {
    /// The types of the module whose kernels make the call: T1, T2 and, with quantization, T3.
    pub(super) fn types(&self) -> (ElementType, ElementType, Option<ElementType>) {
        let t1 = self.geometry.t1;
        match &self.keys {
            DeviceKeys::Packed(_) => (t1, t1, None),
            DeviceKeys::Cache(problem) => (t1, problem.geometry.t2, problem.geometry.quant.map(|quant| quant.t3)),
        }
    }
}

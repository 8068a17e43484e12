//! A call of an attention operator whose tensors lie on a device, as the host knows it.

use kvcache_kernels::DeviceStores;

use crate::problem::AttentionGeometry;

/// A call whose tensors lie on a device: everything that the host knows of it. Addresses are the device's.
///
/// Lengths and slots stay on the device, and the numbers of rows are capacities, as in [`DeviceStores`].
///
/// Whoever has a device execute it keeps to these conditions meanwhile:
/// - The types are a legal combination, `num_kv_heads` divides `num_heads`, and a mask is as wide as there are rows of
///   keys. The stores, if there are any, are as a [`DeviceProblem`](kvcache_kernels::DeviceProblem) asks for.
/// - Each address is aligned for its type and accessible to the device for its tensor's shape: `attn_output`,
///   `attention_mass` and scratch memory for writes and reads, the status word for atomic access to its 8 bytes, the
///   others for reads. These three overlap nothing else.
/// - Nothing else writes what the call reads or accesses what it writes.
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
    /// An upper bound of kvlen as the caller says, which decides as little.
    pub max_kvlen: usize,
    /// `query`.
    pub query: u64,
    /// `attn_mask`, if given.
    pub attn_mask: Option<DeviceMask>,
    /// `head_sink`, if given: T1, shape (Hq).
    pub head_sink: Option<u64>,
    /// `attn_output`.
    pub attn_output: u64,
    /// `attention_mass`, if it is asked for: float32, shape (Hq, rows of keys).
    pub attention_mass: Option<u64>,
    /// Memory of as many bytes as the device's kernels say, aligned to 4.
    pub scratch: u64,
}

/// Where a call's keys and values are.
#[derive(Debug, Clone, Copy)]
pub enum DeviceKeys {
    /// `key` and `value`.
    Packed(DevicePacked),
    /// In the cache, after these stores.
    Cache(DeviceStores),
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
    /// The status word, as in [`DeviceStores`].
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

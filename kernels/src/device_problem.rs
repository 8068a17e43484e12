//! A call whose tensors lie on a device, as the host knows it.
//!
//! The host knows types, dimensions, strides, device addresses, and the number of rows of `current_key` and of `key`,
//! which are the shapes of tensors that somebody has allocated. Lengths and slots stay on the device: the kernels read
//! `seqstarts`, `start_pos` and `cachestarts` there.
//!
//! - `kvstarts` is not needed on the device. Sequence b has `start_pos[b] + seqlen[b]` tokens in `key`, and every block
//!   makes the running sum over the batch for itself, once: an L2 read of three int64 a sequence and one scan.
//! - `max_seqlen` and `max_kvlen` are not needed either: the rows give the amount of work exactly, ragged or not.
//!   Blocks stride over all work whatever the grid is.
//! - The numbers of rows are capacities. The device's lengths may add up to less, so that a captured graph serves
//!   smaller batches; more is reported and nothing is moved. [`DeviceStores::exact_rows`] reports less, too.
//!
//! Both halves of a call, the store and the load, go to one stream in this order. Each may be absent: then there is
//! nothing to do, and nothing is checked.

use crate::problem::Geometry;

/// How `cachestarts` is indexed: [`Addressing`](crate::Addressing), but for the entries, which the device has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceAddressing {
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

/// Sequences that are alike, as static batching has them: a kernel makes their index inputs on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AlikeSequences {
    /// The current tokens of each sequence.
    pub seqlen: usize,
    /// The position of each sequence's first current token.
    pub start_pos: usize,
    /// Slots from the first token of a sequence to the first of the next, in `cache_mode` 0.
    pub stride: usize,
}

/// [`Stores`](crate::Stores) whose tensors lie on a device: everything that the host knows of them. Addresses are the
/// device's.
#[derive(Debug, Clone, Copy)]
pub struct DeviceStores {
    /// Dimensions, types and strides.
    pub geometry: Geometry,
    /// Slots of the cache (MaxT).
    pub max_t: usize,
    /// How `cachestarts` is indexed.
    pub addressing: DeviceAddressing,
    /// Rows of `current_key` and `current_value`: no more than these are read.
    pub current_rows: usize,
    /// Rows that `key` and `value` have, or would have: no more than these are loaded.
    pub all_rows: usize,
    /// Whether device lengths that add up to fewer rows are reported. False for a graph that is replayed with smaller
    /// batches; elsewhere rows of `key` and `value` would stay unwritten without a word.
    pub exact_rows: bool,
    /// `current_key` and `current_value`.
    pub current: [u64; 2],
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
    /// The status word: 8 aligned bytes, which the caller zeroes once.
    pub status: u64,
}

/// A call whose tensors lie on a device: what it stores and reads, and its outputs.
///
/// Whoever has a device execute it keeps to these conditions meanwhile:
/// - The types are a legal combination; `head_dim` is a multiple of the group; strides, `max_t` and rows
///   belong to tensors that exist.
/// - Each address is aligned for its type and accessible to the device for its tensor's shape: the current tokens,
///   `seqstarts`, `start_pos` and `cachestarts` for reads, outputs for writes, cache and scale for reads and writes,
///   and the status word for atomic access to its 8 bytes. Outputs, cache and scale overlap nothing else.
/// - Nothing else writes what the call reads or accesses what it writes.
///
/// Of two current tokens with the same slot, the bytes of either may remain.
#[derive(Debug, Clone, Copy)]
pub struct DeviceProblem {
    /// What the call stores and reads.
    pub stores: DeviceStores,
    /// Output heads per cache head.
    pub num_repeat: usize,
    /// `key` and `value`: T1, shape (`all_rows`, H * `num_repeat`, Dh).
    pub outputs: [u64; 2],
}

//! What a checked call on a device does: the addresses and sizes that its kernels get.

use kvcache_attention::{AttentionGeometry, AttentionPointers, DeviceAttention, DeviceKeys, DeviceMask, Mask};
use kvcache_kernels::{AlikeSequences, DeviceAddressing, DeviceStores, Geometry, Pointers};

use crate::checked::Work;
use crate::tensor::TensorRef;
use crate::validate::indices;

/// A call without outputs, scratch memory and the status word.
#[derive(Debug)]
pub(crate) enum DeviceWork {
    Stores {
        stores: DeviceStores,
        num_repeat: usize,
        /// Sequences whose index inputs the launch makes.
        alike: Option<AlikeSequences>,
    },
    Attention(DeviceAttention),
}

/// A call that stores, then loads.
pub(crate) fn stores<'a>(stores: DeviceStores, num_repeat: usize, alike: Option<AlikeSequences>) -> Work<'a> {
    Work::Device(DeviceWork::Stores { stores, num_repeat, alike })
}

/// A call of static batching, whose index inputs the launch makes.
pub(crate) fn alike_stores<'a>(
    geometry: Geometry,
    pointers: Pointers,
    sequences: AlikeSequences,
    num_repeat: usize,
) -> Work<'a> {
    // No more than there are elements in the tensors, whose sizes fit, unless these are empty.
    let rows = |len: usize| geometry.batch.saturating_mul(len);
    let kvlen = sequences.start_pos + sequences.seqlen;
    // An upper bound of the slots' numbers, which the host has checked.
    let max_t = geometry.cache_len.checked_div(geometry.cache.token).unwrap_or(0);
    let rows = [max_t, rows(sequences.seqlen), rows(kvlen)];
    stores(without_indices(geometry, pointers, rows, DeviceAddressing::Offset), num_repeat, Some(sequences))
}

/// The stores of checked tensors, with MaxT and the rows of current tokens and of all; without index inputs.
pub(crate) fn without_indices(
    geometry: Geometry,
    Pointers { current, cache, scale }: Pointers,
    [max_t, current_rows, all_rows]: [usize; 3],
    addressing: DeviceAddressing,
) -> DeviceStores {
    DeviceStores {
        geometry,
        max_t,
        addressing,
        current_rows,
        all_rows,
        exact_rows: true,
        current: current.map(|current| current.addr() as u64),
        cache: cache.addr() as u64,
        scale: scale.addr() as u64,
        seqstarts: 0,
        start_pos: 0,
        cachestarts: 0,
        status: 0,
    }
}

/// A call of checked tensors that attends, with `max_seqlen` and `max_kvlen`, which are on the host.
pub(crate) fn attention<'a>(
    geometry: AttentionGeometry,
    AttentionPointers { query, attn_mask, head_sink }: AttentionPointers,
    keys: DeviceKeys,
    query_rows: usize,
    bounds: [&TensorRef<'_>; 2],
) -> Work<'a> {
    // Below 0 a bound has been refused.
    let [max_seqlen, max_kvlen] = bounds.map(|bound| usize::try_from(indices::values(bound)[0]).unwrap_or(0));
    let on_device = |Mask { data, width, per_head }| DeviceMask { address: data.addr() as u64, width, per_head };
    Work::Device(DeviceWork::Attention(DeviceAttention {
        geometry,
        keys,
        query_rows,
        max_seqlen,
        max_kvlen,
        query: query.addr() as u64,
        attn_mask: attn_mask.map(on_device),
        head_sink: head_sink.map(|sinks| sinks.addr() as u64),
        attn_output: 0,
        attention_mass: None,
        scratch: 0,
    }))
}

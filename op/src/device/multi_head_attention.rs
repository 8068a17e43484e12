//! `MultiHeadAttention` on a device.

use cudarc::driver::CudaStream;
use kvcache_attention::cuda::{MAX_HEAD_DIM, MODULES};
use kvcache_attention::{DeviceAttention, DeviceKeys, DeviceMask, DevicePacked, Mask};
use kvcache_kernels::cuda::{Queue, TooLarge, cudarc, module};
use kvcache_schema::ElementType;

use super::device_attention_call::DeviceAttentionCall;
use super::device_tensor::{DeviceRef, StreamGuards};
use super::error::Error;
use crate::attention::{MultiHeadAttention, queries_and_mask as checks};
use crate::tensor::TensorRef;
use crate::validate::{Extents, indices};

/// The inputs of `MultiHeadAttention` for a call on a device.
#[derive(Debug)]
pub struct DeviceAttentionInputs<'a> {
    /// T1, shape (`seqstarts[B]`, Hq, Dh).
    pub query: DeviceRef<'a>,
    /// T1, shape (`kvstarts[B]`, Hk, Dh).
    pub key: DeviceRef<'a>,
    /// T1, shape (`kvstarts[B]`, Hk, Dh).
    pub value: DeviceRef<'a>,
    /// int64, shape (B + 1).
    pub seqstarts: DeviceRef<'a>,
    /// int64, shape (B + 1).
    pub kvstarts: DeviceRef<'a>,
    /// int64, a scalar or of shape (1), in memory of the host.
    pub decoding_batches: TensorRef<'a>,
    /// int64, a scalar or of shape (1), in memory of the host.
    pub max_seqlen: TensorRef<'a>,
    /// int64, a scalar or of shape (1), in memory of the host.
    pub max_kvlen: TensorRef<'a>,
    /// T1, shape (`seqstarts[B]`, W) or (Hq, `seqstarts[B]`, W), if given; without elements it is as good as none.
    pub attn_mask: Option<DeviceRef<'a>>,
    /// Whether the status word tells if the device's lengths add up to fewer rows than `query` and `key` have. Without,
    /// rows behind them are left untouched: for CUDA graphs that are replayed with batches of other lengths.
    pub exact_rows: bool,
}

impl MultiHeadAttention {
    /// Checks a call on a device as far as the host can; nothing is launched yet, and no driver is needed.
    ///
    /// # Errors
    /// Every [`Error`](crate::Error) that concerns the types, shapes and memory of the inputs, and the values of
    /// `decoding_batches`, `max_seqlen` and `max_kvlen`.
    pub fn check_device<'a>(&self, inputs: DeviceAttentionInputs<'a>) -> Result<DeviceAttentionCall<'a>, crate::Error> {
        let DeviceAttentionInputs { query, key, value, seqstarts, kvstarts, attn_mask, .. } = inputs;
        let DeviceAttentionInputs { decoding_batches, max_seqlen, max_kvlen, exact_rows, .. } = inputs;
        let tensors = crate::AttentionInputs {
            query: query.tensor.clone(),
            key: key.tensor.clone(),
            value: value.tensor.clone(),
            seqstarts: seqstarts.tensor.clone(),
            kvstarts: kvstarts.tensor.clone(),
            decoding_batches,
            max_seqlen,
            max_kvlen,
            attn_mask: attn_mask.as_ref().map(|mask| mask.tensor.clone()),
        };
        let t1 = tensors.query.element;
        let checked = self.check_tensors(&tensors)?;
        let mut extents = checked.extents;
        // SAFETY: `decoding_batches` and `max_seqlen` are `TensorRef`s of the host in the inputs.
        let (decoding_batches, max_seqlen) =
            unsafe { host_scalars(&tensors.decoding_batches, &tensors.max_seqlen, checked.batch, &mut extents) }?;
        for (name, bound) in [("max_seqlen", &tensors.max_seqlen), ("max_kvlen", &tensors.max_kvlen)] {
            indices::bound(name, indices::values(bound), &[])?;
        }
        let mask = tensors.attn_mask.as_ref();
        let mask = checks::mask(&self.config, t1, mask, checked.tokens, checked.total_kvlen, &mut extents)?;
        let keys = DevicePacked {
            rows_at: [key.address(), value.address()],
            rows: checked.total_kvlen,
            seqstarts: seqstarts.address(),
            kvstarts: kvstarts.address(),
            exact_rows,
            status: 0,
        };
        let call = DeviceAttention {
            geometry: checks::geometry(&self.config, t1, checked.batch, decoding_batches),
            keys: DeviceKeys::Packed(keys),
            query_rows: checked.tokens,
            max_seqlen,
            query: query.address(),
            attn_mask: mask.map(on_device),
            attn_output: 0,
            attention_mass: None,
            scratch: 0,
        };
        let guards = [
            ("query", query.guard),
            ("attn_mask", attn_mask.filter(|_| mask.is_some()).and_then(|mask| mask.guard)),
            ("key", key.guard),
            ("value", value.guard),
            ("kvstarts", kvstarts.guard),
            ("seqstarts", seqstarts.guard),
        ];
        Ok(DeviceAttentionCall { call, extents, guards: StreamGuards::of(guards) })
    }

    /// Loads the kernels for this type into the stream's context, so that the first call takes no longer than others
    /// and can be captured into a CUDA graph. A graph executor does so when it loads a model.
    ///
    /// # Errors
    /// Those of [`check_types`](Self::check_types); what concerns the machine or its driver; heads that are too long.
    pub fn prepare_device(&self, t1: ElementType, stream: &CudaStream) -> Result<(), Error> {
        self.check_types(t1, t1, t1)?;
        prepare_attention((t1, t1, None), self.config.head_dim, &Queue::new(stream)?)
    }
}

/// Loads the kernels of attention for a legal combination of types (of packed keys, T1 twice), for heads of this length.
pub(super) fn prepare_attention(
    types: (ElementType, ElementType, Option<ElementType>),
    head_dim: usize,
    queue: &Queue<'_>,
) -> Result<(), Error> {
    if head_dim > MAX_HEAD_DIM {
        return Err(TooLarge { what: "head_dim", got: head_dim, limit: MAX_HEAD_DIM }.into());
    }
    Ok(queue.prepare_module(module(&MODULES, types))?)
}

/// A checked mask, whose address is the device's.
pub(super) fn on_device(mask: Mask) -> DeviceMask {
    DeviceMask { address: mask.data.addr() as u64, width: mask.width, per_head: mask.per_head }
}

/// The values of `decoding_batches`, B at most, and of `max_seqlen`, whose type, shape and memory have been checked.
///
/// # Safety
/// Both are in host memory.
pub(super) unsafe fn host_scalars(
    decoding_batches: &TensorRef<'_>,
    max_seqlen: &TensorRef<'_>,
    batch: usize,
    extents: &mut Extents,
) -> Result<(usize, usize), crate::Error> {
    let decoding_batches = checks::decoding_batches(decoding_batches, batch, extents)?;
    // Below 0 it is refused as a bound.
    Ok((decoding_batches, usize::try_from(indices::values(max_seqlen)[0]).unwrap_or(0)))
}

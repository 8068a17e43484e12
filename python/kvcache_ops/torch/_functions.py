"""The operators as functions of torch tensors, and the types of graphs that were exported with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor  # type: ignore[import-not-found,unused-ignore]

from kvcache_ops.torch._operator import Operator

if TYPE_CHECKING:
    import onnx


def _all_rows(inputs: dict[str, Any], attributes: dict[str, int], all_keys: Callable[[], Any]) -> tuple[Any, ...]:
    """(kvstarts[B], H * num_repeat, Dh)."""
    _, heads, head_dim = inputs["current_key"].shape
    return all_keys(), heads * attributes["num_repeat"], head_dim


def _queries(inputs: dict[str, Any], attributes: dict[str, int], all_keys: Callable[[], Any]) -> Any:
    """The shape of the queries."""
    return inputs["query"].shape


_CACHE = Operator("KeyValueCache", _all_rows)
_PACKED = Operator("MultiHeadAttention", _queries)
_CACHED = Operator("MultiHeadCacheAttention", _queries)


def key_value_cache(
    current_key: Tensor,
    current_value: Tensor,
    seqstarts: Tensor,
    kvstarts: Tensor,
    cachestarts: Tensor,
    start_pos: Tensor,
    max_seqlen: Tensor,
    max_kvlen: Tensor,
    cache: Tensor,
    scale: Tensor | None = None,
    *,
    num_layer: int = 1,
    layer_idx: int = 0,
    quant_bit: int = 0,
    quant_group: int = 8,
    num_repeat: int = 1,
    cache_mode: int = 0,
    cache_layout: int = 0,
    page_size: int = 128,
    quant_rotation: int = 0,
) -> tuple[Tensor, Tensor]:
    """Stores the current keys and values of a ragged batch into the cache; returns all of every sequence, packed.

    current_key, current_value: (seqstarts[B], H, Dh), float32 or float16. cache: for `cache_layout` 0 (MaxT, L, 2, H,
    Dh), written in place, as is scale, which is needed where `quant_bit` is not 0.

    Returns key and value, (kvstarts[B], H * num_repeat, Dh), of current_key's type.
    """
    step = [seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen]
    attributes = [num_layer, layer_idx, quant_bit, quant_group, num_repeat, cache_mode, cache_layout, page_size]
    key, value = _CACHE([current_key, current_value, *step, cache, scale], [*attributes, quant_rotation])
    return key, value


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seqstarts: Tensor,
    kvstarts: Tensor,
    decoding_batches: Tensor,
    max_seqlen: Tensor,
    max_kvlen: Tensor,
    attn_mask: Tensor | None = None,
    head_sink: Tensor | None = None,
    *,
    num_heads: int,
    head_dim: int,
    is_causal: int = 1,
    is_alibi: int = 0,
    num_kv_heads: int = 0,
    local_window_size: int = -1,
    attention_scale: float = 0.0,
    softcap: float = 0.0,
) -> Tensor:
    """Attention of a ragged batch: the queries of each sequence over all keys and values of that sequence.

    query: (seqstarts[B], Hq, Dh), float32 or float16, rotated already. key, value: (kvstarts[B], Hk, Dh). num_kv_heads:
    Hk, 0 stands for Hq.

    Returns (seqstarts[B], Hq, Dh), of query's type.
    """
    inputs = [query, key, value, seqstarts, kvstarts, decoding_batches, max_seqlen, max_kvlen, attn_mask, head_sink]
    attributes = [num_heads, head_dim, is_causal, is_alibi, num_kv_heads, local_window_size, attention_scale, softcap]
    (attn_output,) = _PACKED(inputs, attributes)
    return attn_output


def multi_head_cache_attention(
    query: Tensor,
    current_key: Tensor,
    current_value: Tensor,
    seqstarts: Tensor,
    kvstarts: Tensor,
    cachestarts: Tensor,
    start_pos: Tensor,
    decoding_batches: Tensor,
    max_seqlen: Tensor,
    max_kvlen: Tensor,
    cache: Tensor,
    scale: Tensor | None = None,
    attn_mask: Tensor | None = None,
    head_sink: Tensor | None = None,
    *,
    num_heads: int,
    head_dim: int,
    is_causal: int = 1,
    is_alibi: int = 0,
    num_kv_heads: int = 0,
    local_window_size: int = -1,
    attention_scale: float = 0.0,
    softcap: float = 0.0,
    num_layer: int = 1,
    layer_idx: int = 0,
    quant_bit: int = 0,
    quant_group: int = 8,
    cache_mode: int = 0,
    cache_layout: int = 0,
    page_size: int = 128,
    quant_rotation: int = 0,
) -> Tensor:
    """Stores as `key_value_cache` does, then attends as `multi_head_attention` does, straight over the cache.

    Returns (seqstarts[B], Hq, Dh), of query's type.
    """
    step = [seqstarts, kvstarts, cachestarts, start_pos, decoding_batches, max_seqlen, max_kvlen]
    inputs = [query, current_key, current_value, *step, cache, scale, attn_mask, head_sink]
    attributes = [num_heads, head_dim, is_causal, is_alibi, num_kv_heads, local_window_size, attention_scale, softcap]
    of_cache = [num_layer, layer_idx, quant_bit, quant_group, cache_mode, cache_layout, page_size, quant_rotation]
    (attn_output,) = _CACHED(inputs, [*attributes, *of_cache])
    return attn_output


def int4_inputs(model: onnx.ModelProto, names: Sequence[str] = ("cache",)) -> None:
    """Makes graph inputs that were exported as packed uint8 what they hold: INT4, twice as many in the last axis.

    The memory stays the same: two elements in a byte, the first in the low nibble.

    Raises ValueError for a name that is no graph input of uint8.
    """
    from onnx import TensorProto

    inputs = {value.name: value.type.tensor_type for value in model.graph.input}
    for name in names:
        if name not in inputs or inputs[name].elem_type != TensorProto.UINT8:
            bytes_ = [name for name, tensor in inputs.items() if tensor.elem_type == TensorProto.UINT8]
            raise ValueError(f"{name!r} is no graph input of uint8, expected one of {bytes_}")
    for name in names:
        inputs[name].elem_type = TensorProto.INT4
        last = inputs[name].shape.dim[-1]
        if last.HasField("dim_value"):
            last.dim_value *= 2
        else:
            last.Clear()

"""The attention operators as functions of torch tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor  # type: ignore[import-not-found,unused-ignore]

from kvcache_ops.torch._operator import Operator


def _shape(inputs: dict[str, Any], attributes: dict[str, int], all_keys: Callable[[], Any]) -> Any:
    """The shape of the queries."""
    return inputs["query"].shape


_PACKED = Operator("MultiHeadAttention", _shape)
_CACHED = Operator("MultiHeadCacheAttention", _shape)


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

    query: (seqstarts[B], Hq, Dh), float32 or float16, rotated already. key, value: (kvstarts[B], Hk, Dh).
    seqstarts, kvstarts: (B + 1), where each sequence's queries and its keys begin; int64, as the next three.
    decoding_batches: scalar or (1): that many sequences, from the first, have no causal mask. max_seqlen, max_kvlen:
    scalars or (1), upper bounds.
    attn_mask: (seqstarts[B], W) or (Hq, seqstarts[B], W), W at least kvstarts[B]: added to the scores.
    head_sink: (Hq), a score of each query head that has no key and no value.
    num_heads and head_dim are Hq and Dh; num_kv_heads is Hk, 0 stands for Hq. attention_scale is the attribute `scale`;
    the other attributes are the operator's.

    Returns (seqstarts[B], Hq, Dh), of query's type. Eagerly and in compiled functions it raises KvCacheError.
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

    The inputs are theirs: query (seqstarts[B], Hq, Dh), current_key and current_value (seqstarts[B], Hk, Dh), the index
    tensors, decoding_batches, then cache and scale, which are written in place, attn_mask and head_sink.

    Returns (seqstarts[B], Hq, Dh), of query's type. Eagerly and in compiled functions it raises KvCacheError with its
    `kind`, and has then written nothing.
    """
    step = [seqstarts, kvstarts, cachestarts, start_pos, decoding_batches, max_seqlen, max_kvlen]
    inputs = [query, current_key, current_value, *step, cache, scale, attn_mask, head_sink]
    attributes = [num_heads, head_dim, is_causal, is_alibi, num_kv_heads, local_window_size, attention_scale, softcap]
    of_cache = [num_layer, layer_idx, quant_bit, quant_group, cache_mode, cache_layout, page_size, quant_rotation]
    (attn_output,) = _CACHED(inputs, [*attributes, *of_cache])
    return attn_output

"""`KeyValueCache` as a function of torch tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor  # type: ignore[import-not-found,unused-ignore]

from kvcache_ops.torch._operator import Operator


def _shape(inputs: dict[str, Any], attributes: dict[str, int], all_keys: Callable[[], Any]) -> tuple[Any, ...]:
    """(kvstarts[B], H * num_repeat, Dh)."""
    _, heads, head_dim = inputs["current_key"].shape
    return all_keys(), heads * attributes["num_repeat"], head_dim


_OPERATOR = Operator("KeyValueCache", _shape)


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

    current_key, current_value: (seqstarts[B], H, Dh), float32 or float16.
    seqstarts, kvstarts: (B + 1), where each sequence's current tokens and all of its tokens begin; int64, as all that
    follow up to max_kvlen. cachestarts: (B), or (B, MaxP) in `cache_mode` 1, the slots. start_pos: (B), how many tokens
    the cache holds already. max_seqlen, max_kvlen: scalars or (1), upper bounds.
    cache: by `cache_layout`, for 0 (MaxT, L, 2, H, Dh), written in place; float32, float16, int8 for `quant_bit` 8,
    and for 4 uint8 of Dh / 2, two elements in a byte, the first in the low nibble.
    scale: the same with Dh / quant_group, float32 or float16, written in place; needed where `quant_bit` is not 0.
    The attributes and their meanings are the operator's.

    Returns key and value, (kvstarts[B], H * num_repeat, Dh), of current_key's type.

    Eagerly and in compiled functions it raises KvCacheError with its `kind`, and has then written nothing.
    """
    step = [seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen]
    attributes = [num_layer, layer_idx, quant_bit, quant_group, num_repeat, cache_mode, cache_layout, page_size]
    key, value = _OPERATOR([current_key, current_value, *step, cache, scale], [*attributes, quant_rotation])
    return key, value

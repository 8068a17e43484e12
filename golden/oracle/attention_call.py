"""What a call of the attention operators is given, beside what KeyValueCache is."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from .call import INPUTS, Attributes, Inputs

CACHE_ATTENTION_INPUTS = ("query", *INPUTS, "decoding_batches", "attn_mask", "head_sink")


@dataclass(frozen=True)
class AttentionAttributes(Attributes):
    """The attributes of attention, after the cache's, which MultiHeadCacheAttention alone has."""

    num_heads: int = 0  # required
    head_dim: int = 0  # required
    is_causal: int = 1
    is_alibi: int = 0
    num_kv_heads: int = 0
    scale: float = 0.0
    softcap: float = 0.0
    local_window_size: int = -1

    @property
    def kv_heads(self) -> int:
        """Hk."""
        return self.num_kv_heads or self.num_heads


@dataclass
class CacheAttentionInputs(Inputs):
    """The inputs of MultiHeadCacheAttention that are only read."""

    query: np.ndarray  # (seqstarts[B], Hq, Dh) of T1
    decoding_batches: np.ndarray  # () or (1)
    attn_mask: np.ndarray | None = None  # (seqstarts[B], W) or (Hq, seqstarts[B], W) of T1
    head_sink: np.ndarray | None = None  # (Hq) of T1


@dataclass
class AttentionInputs:
    """The inputs of MultiHeadAttention."""

    query: np.ndarray  # (seqstarts[B], Hq, Dh) of T1
    key: np.ndarray  # (kvstarts[B], Hk, Dh) of T1
    value: np.ndarray  # (kvstarts[B], Hk, Dh) of T1
    seqstarts: np.ndarray  # (B + 1)
    kvstarts: np.ndarray  # (B + 1)
    decoding_batches: np.ndarray  # () or (1)
    max_seqlen: np.ndarray  # () or (1)
    max_kvlen: np.ndarray  # () or (1)
    attn_mask: np.ndarray | None = None  # (seqstarts[B], W) or (Hq, seqstarts[B], W) of T1
    head_sink: np.ndarray | None = None  # (Hq) of T1


ATTENTION_INPUTS = tuple(field.name for field in fields(AttentionInputs))

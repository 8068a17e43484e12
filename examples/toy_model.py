"""A toy model in numpy, of random weights, for the serving loop in docs/serving.md.

Attention is the operator; a session of ONNX Runtime would take the place of `forward`.
"""

from __future__ import annotations

import kvcache_ops
import numpy as np
from kvcache_ops.manager import Step
from numpy.typing import NDArray

LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY, END = 2, 4, 2, 16, 32, 0
spec = kvcache_ops.CacheSpec(
    max_tokens=48,
    num_kv_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    dtype="float32",
    num_layers=LAYERS,
    cache_layout=3,
    cache_mode=1,
    page_size=4,
)
cache = spec.allocate()

random = np.random.default_rng(2)
embedding = random.standard_normal((VOCABULARY, HEADS, HEAD_DIM)).astype(np.float32)
projections = random.standard_normal((LAYERS, 3, HEAD_DIM, HEAD_DIM)).astype(np.float32) / 4
head = random.standard_normal((HEADS * HEAD_DIM, VOCABULARY)).astype(np.float32) / 8
frequencies = 1e4 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
INDICES = ["seqstarts", "kvstarts", "cachestarts", "start_pos", "decoding_batches", "max_seqlen", "max_kvlen"]


def rotate(rows: NDArray[np.float32], positions: NDArray[np.int64]) -> NDArray[np.float32]:
    """Rotary embedding of rows (tokens, heads, HEAD_DIM)."""
    angles = (positions[:, None, None] * frequencies).astype(np.float32)
    a, b = np.split(rows, 2, axis=-1)
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], axis=-1)


def forward(step: Step) -> NDArray[np.float32]:
    """The logits of the last new token of each entry, (B, VOCABULARY). It stores all new tokens in the cache."""
    x = embedding[step.token_ids]
    for layer, (query, key, value) in enumerate(projections):
        x = x + kvcache_ops.multi_head_cache_attention(
            spec,
            rotate(x @ query, step.positions),
            rotate(x[:, :KV_HEADS] @ key, step.positions),
            x[:, :KV_HEADS] @ value,
            **{name: getattr(step, name) for name in INDICES},
            cache=cache.cache,
            num_heads=HEADS,
            layer_idx=layer,
        )
    return x[step.seqstarts[1:] - 1].reshape(-1, HEADS * HEAD_DIM) @ head

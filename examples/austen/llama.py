"""A small LLaMA in torch: RMSNorm, rotary positions, grouped-query attention, SwiGLU, embedding and head are one.

It computes on packed tokens, (tokens, ...) without a batch axis, and leaves attention to its caller: training attends
within equal chunks, serving over a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""From a layer's index and its rotated queries (tokens, num_heads, Dh), rotated keys and values (tokens, num_kv_heads,
Dh) to (tokens, num_heads, Dh)."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model."""

    vocab_size: int = 1024
    hidden: int = 128
    num_layer: int = 4
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    ffn_dim: int = 352
    rope_base: float = 10000.0
    norm_eps: float = 1e-5


class Layer(nn.Module):
    """The weights of one layer."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        heads, kv_heads = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
        self.attention_norm = nn.RMSNorm(sizes.hidden, sizes.norm_eps)
        self.query = nn.Linear(sizes.hidden, heads, bias=False)
        self.key = nn.Linear(sizes.hidden, kv_heads, bias=False)
        self.value = nn.Linear(sizes.hidden, kv_heads, bias=False)
        self.attention_out = nn.Linear(heads, sizes.hidden, bias=False)
        self.ffn_norm = nn.RMSNorm(sizes.hidden, sizes.norm_eps)
        self.gate = nn.Linear(sizes.hidden, sizes.ffn_dim, bias=False)
        self.up = nn.Linear(sizes.hidden, sizes.ffn_dim, bias=False)
        self.down = nn.Linear(sizes.ffn_dim, sizes.hidden, bias=False)


class Llama(nn.Module):
    """The model: token ids and their positions to logits."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Embedding(sizes.vocab_size, sizes.hidden)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.num_layer))
        self.norm = nn.RMSNorm(sizes.hidden, sizes.norm_eps)
        half = sizes.head_dim // 2
        frequencies = sizes.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
        self.register_buffer("frequencies", frequencies.float(), persistent=False)

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """(tokens), (tokens) to (tokens, vocab_size)."""
        angles = positions.to(torch.float32)[:, None, None] * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        x = self.embedding(token_ids)
        for index, layer in enumerate(self.layers):
            normal = layer.attention_norm(x)
            query = rotate(layer.query(normal).unflatten(-1, (self.sizes.num_heads, -1)), cos, sin)
            key = rotate(layer.key(normal).unflatten(-1, (self.sizes.num_kv_heads, -1)), cos, sin)
            value = layer.value(normal).unflatten(-1, (self.sizes.num_kv_heads, -1))
            x = x + layer.attention_out(attend(index, query, key, value).flatten(1))
            normal = layer.ffn_norm(x)
            x = x + layer.down(nn.functional.silu(layer.gate(normal)) * layer.up(normal))
        return nn.functional.linear(self.norm(x), self.embedding.weight)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates (tokens, heads, Dh): element d and element d + Dh / 2 are a pair."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

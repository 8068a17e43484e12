"""Small models of the families that the public PMX exporter knows, and their random weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from kvcache_ops import CACHE_LAYOUTS


@dataclass(frozen=True)
class Params:
    """What is exported, in the exporter's own words."""

    family: str = "llama"  # llama, bigcode, falcon or mixtral
    element: str = "float16"
    hidden_dim: int = 32
    intermediate_dim: int = 48
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    vocab_size: int = 61
    norm_eps: float = 1e-5
    max_position_embeddings: int = 64
    fused_qkv: bool = True
    fused_kvcache: bool = True
    fused_ffn_glu: bool = True
    friendly_gqa: bool = False
    auto_causal: bool = True
    cache_quant_bit: int = 0
    cache_quant_group: int = 8
    cache_layout: int = 0
    cache_mode: int = 0
    page_size: int = 4
    rotary_dim: int = 0
    rope_theta: float = 10000.0
    rope_scaling_type: str = ""
    rope_scaling_factor: float = 1.0
    alibi: str = ""  # "fused" into the attention, or as a "mask"
    attn_wqkv_bias_term: bool = False
    attn_wo_bias_term: bool = False
    ffn_linear_bias_term: bool = False
    num_experts: int = 5
    num_experts_per_token: int = 2
    domain: str = "opmx"

    @property
    def head_dim(self) -> int:
        """The size of a head."""
        return self.hidden_dim // self.num_heads

    @property
    def with_rope(self) -> bool:
        """Whether positions are rotations."""
        return self.family != "bigcode" and not self.alibi

    @property
    def cache_shape(self) -> list[str | int]:
        """The axes of the cache but for the last; `max_tokens` is open."""
        sizes = {"MaxT": "max_tokens", "L": self.num_layers, "2": 2, "H": self.num_kv_heads}
        return [sizes[axis] for axis in CACHE_LAYOUTS[self.cache_layout][:4]]


def bigcode(**changes: object) -> Params:
    """The form of the StarCoder family: one key head, positions in an embedding, biases everywhere."""
    biases = dict.fromkeys(["attn_wqkv_bias_term", "attn_wo_bias_term", "ffn_linear_bias_term"], True)
    sizes = dict(num_kv_heads=1, cache_layout=3, page_size=128)
    return Params(**{"family": "bigcode", **sizes, **biases, **changes})


def falcon(**changes: object) -> Params:
    """The form of the Falcon family: one LayerNorm for attention and feed forward, which run side by side."""
    sizes = dict(num_kv_heads=1, page_size=128, max_position_embeddings=2048)
    return Params(**{"family": "falcon", **sizes, **changes})


def mixtral(**changes: object) -> Params:
    """The form of the Mixtral family: experts, and biases of query, key and value."""
    sizes = dict(page_size=128, max_position_embeddings=2048)
    return Params(**{"family": "mixtral", "attn_wqkv_bias_term": True, **sizes, **changes})


def random_weights(params: Params, seed: int = 7) -> dict[str, np.ndarray]:
    """Weights by the names of the exporter's parameters."""
    random = np.random.default_rng(seed)
    weights: dict[str, np.ndarray] = {}
    hidden, middle, experts = params.hidden_dim, params.intermediate_dim, params.num_experts
    queries, keys = params.num_heads * params.head_dim, params.num_kv_heads * params.head_dim

    def add(name: str, *shape: int, size: float = 1.0, mean: float = 0.0) -> None:
        weights[name] = (mean + size * random.standard_normal(shape)).astype(params.element)

    def linear(name: str, out: int, inside: int, bias: bool, *leading: int) -> None:
        add(f"{name}.weight", *leading, out, inside, size=1.2 / inside**0.5)
        if bias:
            add(f"{name}.bias", *leading, out, size=0.3)

    def norm(name: str) -> None:
        add(f"{name}.weight", hidden, size=0.1, mean=1.0)
        if params.family in ("bigcode", "falcon"):
            add(f"{name}.bias", hidden, size=0.1)

    add("tok_embeddings.weight", params.vocab_size, hidden)
    if params.family == "bigcode":
        add("pos_embeddings.weight", params.max_position_embeddings, hidden)
    for layer in range(params.num_layers):
        attention, ffn = f"layers.{layer}.attention", f"layers.{layer}.feed_forward"
        if params.fused_qkv:
            linear(f"{attention}.wqkv", queries + 2 * keys, hidden, params.attn_wqkv_bias_term)
        else:
            for name, out in [("wq", queries), ("wk", keys), ("wv", keys)]:
                linear(f"{attention}.{name}", out, hidden, params.attn_wqkv_bias_term)
        linear(f"{attention}.wo", hidden, queries, params.attn_wo_bias_term)
        norm(f"layers.{layer}.attention_norm")
        if params.family != "falcon":
            norm(f"layers.{layer}.ffn_norm")
        leading = (experts,) if params.family == "mixtral" else ()
        if leading:
            linear(f"{ffn}.gate", experts, hidden, False)
        bias = params.ffn_linear_bias_term
        if params.family in ("bigcode", "falcon"):
            linear(f"{ffn}.w1", middle, hidden, bias)
        elif params.fused_ffn_glu:
            linear(f"{ffn}.wu", 2 * middle, hidden, bias, *leading)
        else:
            linear(f"{ffn}.w1", middle, hidden, bias, *leading)
            linear(f"{ffn}.w3", middle, hidden, bias, *leading)
        linear(f"{ffn}.w2", hidden, middle, bias, *leading)
    norm("norm")
    linear("output", params.vocab_size, hidden, False)
    return weights

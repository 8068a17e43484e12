"""The models of pmx_params in numpy, from the public documentation of their operators.

Every operator computes in float64 and rounds its result to the model's element type, as the operators do; cache and
attention are the golden oracle's. Loops go over sequences and tokens, in the order of the documentation's formulas.
"""

from __future__ import annotations

import math

import numpy as np

from oracle.attention import multi_head_attention
from oracle.attention_call import AttentionAttributes, AttentionInputs
from oracle.call import Attributes, Inputs, Types
from oracle.key_value_cache import key_value_cache
from pmx_params import Params

Arrays = dict[str, np.ndarray]


class NumpyModel:
    """A model with its weights; `logits` is one step of it, which stores into cache and scale."""

    def __init__(self, params: Params, weights: Arrays) -> None:
        self.params = params
        self.weights = weights

    def logits(self, step: Arrays, cache: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
        """The scores of the next token of each sequence, float32 (batch, vocab_size)."""
        self.step, self.cache, self.scale = step, cache, scale
        h = getattr(self, f"_{self.params.family}")()
        rows = h[step["seqstarts"][1:] - 1]
        return self._linear("output", rows).astype(np.float32)

    def _llama(self) -> np.ndarray:
        h, skip = self._embedding("tok_embeddings", self.step["token_ids"]), None
        for layer in range(self.params.num_layers):
            x = self._sum(h, skip)
            h = self._sum(x, self._attention(layer, self._rms_norm(f"layers.{layer}.attention_norm", x)))
            skip = self._feed_forward(layer, self._rms_norm(f"layers.{layer}.ffn_norm", h))
        return self._rms_norm("norm", self._sum(h, skip))

    def _mixtral(self) -> np.ndarray:
        x = self._embedding("tok_embeddings", self.step["token_ids"])
        for layer in range(self.params.num_layers):
            x = self._sum(x, self._attention(layer, self._rms_norm(f"layers.{layer}.attention_norm", x)))
            x = self._sum(x, self._experts(layer, self._rms_norm(f"layers.{layer}.ffn_norm", x)))
        return self._rms_norm("norm", x)

    def _bigcode(self) -> np.ndarray:
        x = self._sum(
            self._embedding("tok_embeddings", self.step["token_ids"]),
            self._embedding("pos_embeddings", np.array([position for _, position in self._tokens()], np.int64)),
        )
        for layer in range(self.params.num_layers):
            x = self._sum(x, self._attention(layer, self._layer_norm(f"layers.{layer}.attention_norm", x)))
            x = self._sum(x, self._gelu_feed_forward(layer, self._layer_norm(f"layers.{layer}.ffn_norm", x)))
        return self._layer_norm("norm", x)

    def _falcon(self) -> np.ndarray:
        x = self._embedding("tok_embeddings", self.step["token_ids"])
        for layer in range(self.params.num_layers):
            norm = self._layer_norm(f"layers.{layer}.attention_norm", x)
            x = self._sum(self._sum(x, self._attention(layer, norm)), self._gelu_feed_forward(layer, norm))
        return self._layer_norm("norm", x)

    def _round(self, x: np.ndarray) -> np.ndarray:
        return x.astype(self.params.element)

    def _wide(self, name: str) -> np.ndarray:
        return self.weights[name].astype(np.float64)

    def _sum(self, x: np.ndarray, skip: np.ndarray | None) -> np.ndarray:
        return x if skip is None else self._round(x.astype(np.float64) + skip)

    def _tokens(self) -> list[tuple[int, int]]:
        """Sequence and position of each token of the step."""
        starts = self.step["seqstarts"]
        return [
            (b, int(self.step["start_pos"][b]) + i)
            for b in range(len(starts) - 1)
            for i in range(starts[b + 1] - starts[b])
        ]

    def _embedding(self, name: str, ids: np.ndarray) -> np.ndarray:
        return self.weights[f"{name}.weight"][ids]

    def _linear(self, name: str, x: np.ndarray, expert: int | None = None) -> np.ndarray:
        weight = self._wide(f"{name}.weight")
        bias = self._wide(f"{name}.bias") if f"{name}.bias" in self.weights else None
        if expert is not None:
            weight, bias = weight[expert], None if bias is None else bias[expert]
        y = x.astype(np.float64) @ weight.T
        return self._round(y if bias is None else y + bias)

    def _rms_norm(self, name: str, x: np.ndarray) -> np.ndarray:
        wide = x.astype(np.float64)
        y = self._round(wide / np.sqrt((wide**2).mean(-1, keepdims=True) + self.params.norm_eps))
        return self._round(y * self._wide(f"{name}.weight"))

    def _layer_norm(self, name: str, x: np.ndarray) -> np.ndarray:
        wide = x.astype(np.float64)
        # Var[x] is the reference's estimate, with n - 1.
        variance = wide.var(-1, ddof=1, keepdims=True)
        y = self._round((wide - wide.mean(-1, keepdims=True)) / np.sqrt(variance + self.params.norm_eps))
        return self._round(y * self._wide(f"{name}.weight") + self._wide(f"{name}.bias"))

    def _rotated(self, x: np.ndarray) -> np.ndarray:
        """Each pair of neighbors (2i, 2i + 1) turned by position * theta^(-2i / dim)."""
        params, result = self.params, x.copy()
        dim = params.rotary_dim or params.head_dim
        lengths = self.step["start_pos"] + np.diff(self.step["seqstarts"])
        for token, (b, position) in enumerate(self._tokens()):
            theta, place = params.rope_theta, float(position)
            if params.rope_scaling_type == "linear":
                place = position / params.rope_scaling_factor
            if params.rope_scaling_type == "dynamic" and lengths[b] > params.max_position_embeddings:
                factor = params.rope_scaling_factor
                stretch = factor * lengths[b] / params.max_position_embeddings - (factor - 1)
                theta *= stretch ** (dim / (dim - 2))
            for i in range(dim // 2):
                angle = place * theta ** (-2 * i / dim)
                cos, sin = math.cos(angle), math.sin(angle)
                a, b_ = x[token, :, 2 * i].astype(np.float64), x[token, :, 2 * i + 1].astype(np.float64)
                result[token, :, 2 * i] = a * cos - b_ * sin
                result[token, :, 2 * i + 1] = b_ * cos + a * sin
        return result

    def _attention(self, layer: int, x: np.ndarray) -> np.ndarray:
        params, name, step = self.params, f"layers.{layer}.attention", self.step
        heads, kv_heads = params.num_heads, params.num_kv_heads
        if params.fused_qkv:
            x = self._linear(f"{name}.wqkv", x).reshape(len(x), -1, params.head_dim)
            query, key, value = np.split(x, [heads, heads + kv_heads], axis=1)
        else:
            query, key, value = (
                self._linear(f"{name}.{part}", x).reshape(len(x), -1, params.head_dim) for part in ("wq", "wk", "wv")
            )
        if params.with_rope:
            query, key = self._rotated(query), self._rotated(key)
        indices = {name: step[name] for name in ("seqstarts", "kvstarts", "max_seqlen", "max_kvlen")}
        attributes = dict(
            num_layer=params.num_layers,
            layer_idx=layer,
            quant_bit=params.cache_quant_bit,
            quant_group=params.cache_quant_group,
            cache_mode=params.cache_mode,
            cache_layout=params.cache_layout,
            page_size=params.page_size,
        )
        key, value = key_value_cache(
            Inputs(key, value, cachestarts=step["cachestarts"], start_pos=step["start_pos"], **indices),
            self.cache,
            self.scale,
            Attributes(**attributes),
            Types(params.element, str(self.cache.dtype), None if self.scale is None else params.element),
        )
        mask = step["attn_mask"] if step["attn_mask"].size else None
        attended = multi_head_attention(
            AttentionInputs(query, key, value, decoding_batches=step["decoding_batches"], attn_mask=mask, **indices),
            AttentionAttributes(
                num_heads=heads,
                head_dim=params.head_dim,
                is_causal=int(params.auto_causal),
                is_alibi=int(bool(params.alibi)),
                num_kv_heads=kv_heads,
            ),
        ).attn_output
        return self._linear(f"{name}.wo", self._round(attended).reshape(len(x), -1))

    def _swiglu(self, name: str, x: np.ndarray, expert: int | None = None) -> np.ndarray:
        if self.params.fused_ffn_glu:
            x, gate = np.split(self._linear(f"{name}.wu", x, expert).astype(np.float64), 2, axis=-1)
        else:
            x, gate = (self._linear(f"{name}.{part}", x, expert).astype(np.float64) for part in ("w1", "w3"))
        return self._linear(f"{name}.w2", self._round(gate * x / (1 + np.exp(-x))), expert)

    def _feed_forward(self, layer: int, x: np.ndarray) -> np.ndarray:
        return self._swiglu(f"layers.{layer}.feed_forward", x)

    def _gelu_feed_forward(self, layer: int, x: np.ndarray) -> np.ndarray:
        name = f"layers.{layer}.feed_forward"
        x = self._linear(f"{name}.w1", x).astype(np.float64)
        y = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return self._linear(f"{name}.w2", self._round(y))

    def _experts(self, layer: int, x: np.ndarray) -> np.ndarray:
        """For each token the sum of its best experts, weighted with the softmax of their scores."""
        name, result = f"layers.{layer}.feed_forward", np.zeros_like(x)
        scores = self._linear(f"{name}.gate", x).astype(np.float64)
        for token, row in enumerate(scores):
            best = np.argsort(-row, kind="stable")[: self.params.num_experts_per_token]
            weights = self._round(np.exp(row[best] - row.max()) / np.exp(row[best] - row.max()).sum())
            outputs = [self._swiglu(name, x[token : token + 1], int(expert))[0] for expert in best]
            result[token] = sum(weight.astype(np.float64) * output for weight, output in zip(weights, outputs))
        return result

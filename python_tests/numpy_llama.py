"""The trained model in numpy alone: read from its file of weights, no graph, no cache, no operator of ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

NUM_LAYER, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 4, 2, 32
ROPE_BASE, NORM_EPS = 10000.0, 1e-5


class NumpyLlama:
    """RMSNorm, rotary positions, grouped-query attention, SwiGLU, a head that is the embedding; all in float64."""

    def __init__(self, weights: Path):
        self.weights = {name: weight.astype(np.float64) for name, weight in load_file(weights).items()}

    def logits(self, tokens: list[int]) -> np.ndarray:
        """(tokens, vocabulary): what follows each token of one sequence."""
        length = len(tokens)
        hidden = np.triu(np.ones((length, length), bool), 1)
        x = self.weights["embedding.weight"][tokens]
        for layer in range(NUM_LAYER):

            def linear(name: str, x: np.ndarray, layer: int = layer) -> np.ndarray:
                return x @ self.weights[f"layers.{layer}.{name}.weight"].T

            normal = self._normal(f"layers.{layer}.attention_norm.weight", x)
            query, key, value = (
                linear(name, normal).reshape(length, heads, HEAD_DIM).swapaxes(0, 1)
                for name, heads in (("query", NUM_HEADS), ("key", NUM_KV_HEADS), ("value", NUM_KV_HEADS))
            )
            key, value = (np.repeat(y, NUM_HEADS // NUM_KV_HEADS, axis=0) for y in (self._rotated(key), value))
            scores = self._rotated(query) @ key.swapaxes(1, 2) / np.sqrt(HEAD_DIM)
            scores[:, hidden] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (weights / weights.sum(-1, keepdims=True)) @ value
            x = x + linear("attention_out", mixed.swapaxes(0, 1).reshape(length, -1))
            normal = self._normal(f"layers.{layer}.ffn_norm.weight", x)
            gate = linear("gate", normal)
            x = x + linear("down", gate / (1 + np.exp(-gate)) * linear("up", normal))
        return self._normal("norm.weight", x) @ self.weights["embedding.weight"].T

    def perplexity(self, tokens: list[int], window: int) -> float:
        """Of each token but the first, in windows of that many tokens."""
        total = 0.0
        for first in range(0, len(tokens) - 1, window):
            chunk = tokens[first : first + window + 1]
            logits = self.logits(chunk[:-1])
            largest = logits.max(-1)
            normalizer = largest + np.log(np.exp(logits - largest[:, None]).sum(-1))
            total += (normalizer - logits[np.arange(len(logits)), chunk[1:]]).sum()
        return float(np.exp(total / (len(tokens) - 1)))

    def _normal(self, name: str, x: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + NORM_EPS) * self.weights[name]

    def _rotated(self, x: np.ndarray) -> np.ndarray:
        """(heads, tokens, Dh), each token by its index; elements d and d + Dh / 2 are a pair."""
        half = x.shape[-1] // 2
        angles = np.outer(np.arange(x.shape[1]), ROPE_BASE ** (-np.arange(half) / half))
        a, b = x[..., :half], x[..., half:]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate((a * cos - b * sin, a * sin + b * cos), axis=-1)

"""A GGUF file's model in numpy alone: dequantized by the package gguf, no graph, no cache, no operator of ours."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np


class NumpyGguf:
    """Llama, Qwen2, Qwen3, Gemma 2 and 3 in float32 or float64, by the file's own metadata and order of rows."""

    def __init__(self, path: Path, dtype: type = np.float64):
        import gguf  # which the environments of older runtimes have not got

        reader = gguf.GGUFReader(path)
        fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("tokenizer")}
        self.family = fields["general.architecture"]
        self.weights = {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(dtype)
            for tensor in reader.tensors
        }
        get = {key.removeprefix(f"{self.family}."): value for key, value in fields.items()}
        self.layers = get["block_count"]
        self.heads, self.kv_heads = get["attention.head_count"], get["attention.head_count_kv"]
        self.head_dim = get.get("attention.key_length", get["embedding_length"] // self.heads)
        self.epsilon = get["attention.layer_norm_rms_epsilon"]
        self.gemma, period = self.family.startswith("gemma"), {"gemma2": 2, "gemma3": 6}.get(self.family, 0)
        window = get.get("attention.sliding_window", 4096 if self.family == "gemma2" else None)
        local = get.get("attention.sliding_window_pattern", period)
        if not isinstance(local, list):
            local = [not local or bool((layer + 1) % local) for layer in range(self.layers)]
        self.windows = [window if each else None for each in local]
        self.scale = get.get("attention.scale", self.head_dim**-0.5)
        self.caps = [get.get(f"{of}_logit_softcapping") for of in ("attn", "final")]
        self.inv_freq = get["rope.freq_base"] ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        self.magnitude, factor = 1.0, get.get("rope.scaling.factor", 1)
        if get.get("rope.scaling.type") == "yarn":
            self.inv_freq, self.magnitude = yarn(
                self.inv_freq, get["rope.freq_base"], factor, get["rope.scaling.original_context_length"]
            )
        else:
            self.inv_freq = self.inv_freq / self.weights.get("rope_freqs.weight", 1) / factor
        base = get.get("rope.freq_base_swa", 10000.0)
        self.local = base ** (-np.arange(0, self.head_dim, 2) / self.head_dim) if self.family == "gemma3" else None

    def logits(self, tokens: list[int], rows: slice = slice(None)) -> np.ndarray:
        """(tokens, vocabulary): what follows each of these tokens of one sequence."""
        distance = np.subtract.outer(np.arange(len(tokens)), np.arange(len(tokens)))
        x = self.weights["token_embd.weight"][tokens]
        x = x * x.dtype.type(x.shape[1] ** 0.5 if self.gemma else 1)
        for layer, window in enumerate(self.windows):
            hidden = (distance < 0) | (distance >= (window or len(tokens)))
            inv_freq = self.inv_freq if self.local is None or not window else self.local
            normal = self._normal(f"blk.{layer}.attn_norm.weight", x)
            query, key, value = (
                self._linear(f"blk.{layer}.attn_{part}", normal).reshape(len(tokens), -1, self.head_dim).swapaxes(0, 1)
                for part in "qkv"
            )
            if self.family in ("qwen3", "gemma3"):
                query = self._normal(f"blk.{layer}.attn_q_norm.weight", query)
                key = self._normal(f"blk.{layer}.attn_k_norm.weight", key)
            repeat = self.heads // self.kv_heads
            query, key = self._rotated(query, inv_freq), self._rotated(key, inv_freq)
            key, value = np.repeat(key, repeat, axis=0), np.repeat(value, repeat, axis=0)
            heads = zip(query * query.dtype.type(self.scale), key, value)
            mixed = np.stack([_attend(*head, hidden, self.caps[0]) for head in heads], axis=1)
            out = self._linear(f"blk.{layer}.attn_output", mixed.reshape(len(tokens), -1))
            x = x + (self._normal(f"blk.{layer}.post_attention_norm.weight", out) if self.gemma else out)
            normal = self._normal(f"blk.{layer}.ffn_norm.weight", x)
            gate = self._linear(f"blk.{layer}.ffn_gate", normal)
            gated = (gelu(gate) if self.gemma else gate / (1 + np.exp(-gate))) * self._linear(
                f"blk.{layer}.ffn_up", normal
            )
            out = self._linear(f"blk.{layer}.ffn_down", gated)
            x = x + (self._normal(f"blk.{layer}.post_ffw_norm.weight", out) if self.gemma else out)
        head = self.weights.get("output.weight", self.weights["token_embd.weight"])
        return capped(self._normal("output_norm.weight", x[rows]) @ head.T, self.caps[1])

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0)

    def _normal(self, name: str, x: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + x.dtype.type(self.epsilon)) * self.weights[name]

    def _rotated(self, x: np.ndarray, inv_freq: np.ndarray) -> np.ndarray:
        """(heads, tokens, Dh), each token by its index; Llama's files have a pair's elements side by side."""
        half = self.head_dim // 2
        first = slice(0, None, 2) if self.family == "llama" else slice(0, half)
        second = slice(1, None, 2) if self.family == "llama" else slice(half, None)
        angles = np.outer(np.arange(x.shape[1]), inv_freq)
        magnitude = self.magnitude if inv_freq is self.inv_freq else 1.0
        cos, sin = (magnitude * of(angles).astype(x.dtype) for of in (np.cos, np.sin))
        rotated = np.empty_like(x)
        rotated[..., first] = x[..., first] * cos - x[..., second] * sin
        rotated[..., second] = x[..., second] * cos + x[..., first] * sin
        return rotated


def yarn(inv_freq: np.ndarray, base: float, factor: float, original: int) -> tuple[np.ndarray, float]:
    """Pair by pair, as its authors and llama.cpp wrote it: 32 turns in the original context stay, 1 is stretched."""
    size = 2 * len(inv_freq)
    low, high = (size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1))
    low, high = max(math.floor(low), 0), min(math.ceil(high), size - 1)
    found = []
    for pair, frequency in enumerate(inv_freq):
        kept = 1 - min(1, max(0, (pair - low) / max(0.001, high - low)))
        found.append(frequency / factor * (1 - kept) + frequency * kept)
    return np.array(found), 1 + 0.1 * math.log(factor)


def gelu(x: np.ndarray) -> np.ndarray:
    """GELU by its tanh approximation."""
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi).astype(x.dtype) * (x + x.dtype.type(0.044715) * x**3)))


def capped(x: np.ndarray, cap: float | None) -> np.ndarray:
    """Within +- cap, where there is one."""
    return x.dtype.type(cap) * np.tanh(x / x.dtype.type(cap)) if cap else x


def _attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, hidden: np.ndarray, cap: float | None) -> np.ndarray:
    """One head, (tokens, Dh)."""
    scores = capped(query @ key.T, cap)
    scores[hidden] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)) @ value

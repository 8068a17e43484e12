"""The PMX operators in numpy, from their public documentation, and whole exports node by node.

Every operator computes in float64 and rounds its result to the type of its first input, as the operators do; cache and
attention are the golden oracle's. Loops go over sequences and tokens, in the order of the documentation's formulas. An
operator takes its attributes by name and its inputs by position, None for one that is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper

from compare import Arrays
from oracle.attention import multi_head_attention
from oracle.attention_call import AttentionAttributes, AttentionInputs
from oracle.call import Attributes, Inputs, Types
from oracle.key_value_cache import key_value_cache
from sessions import attributes_of

Attribute = dict[str, Any]
Tensor = np.ndarray | None


def wide(x: np.ndarray) -> np.ndarray:
    """In float64."""
    return x.astype(np.float64)


def given(x: Tensor) -> bool:
    """Whether an optional tensor is there; one without elements is not."""
    return x is not None and x.size > 0


def swish(x: np.ndarray, beta: float) -> np.ndarray:
    """x times the sigmoid of beta x."""
    return x / (1 + np.exp(-beta * x))


def gelu(x: np.ndarray, approximate: int) -> np.ndarray:
    """x * Phi(x), or its estimate."""
    if approximate:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def activation(function: Callable, attribute: str, default: float, halves: bool) -> Callable:
    """An operator that applies a function to X, or to the first half of its last axis, times a gate if there is one."""

    def operator(a: Attribute, x: np.ndarray, gate: Tensor = None) -> np.ndarray:
        first, second = np.split(wide(x), 2, axis=-1) if halves else (wide(x), 1 if gate is None else wide(gate))
        return (second * function(first, a.get(attribute, default))).astype(x.dtype)

    return operator


def rms_norm(a: Attribute, x: np.ndarray, w: np.ndarray, skip: Tensor = None) -> tuple[np.ndarray, ...]:
    """X, plus what is skipped, over the root of its mean square, times the weight; and the sum."""
    total = x if skip is None else (wide(x) + skip).astype(x.dtype)
    square = (wide(total) ** 2).mean(-1, keepdims=True) / a.get("scale", 1.0)
    normal = (wide(total) / np.sqrt(square + a["eps"])).astype(x.dtype)
    return (wide(normal) * wide(w)).astype(x.dtype), total


def layer_norm(a: Attribute, x: np.ndarray, w: Tensor = None, b: Tensor = None, skip: Tensor = None) -> tuple:
    """The same without the mean, over the standard deviation as the reference estimates it, with n - 1."""
    total = x if skip is None else (wide(x) + skip).astype(x.dtype)
    centered = wide(total) - wide(total).mean(-1, keepdims=True)
    y = centered / np.sqrt(centered.var(-1, ddof=1, keepdims=True) + a["eps"])
    if a.get("elementwise_affine", 0):
        y = wide(y.astype(x.dtype)) * wide(w) + wide(b)
    return y.astype(x.dtype), total


def linear(a: Attribute, x: np.ndarray, w: np.ndarray, b: Tensor = None) -> np.ndarray:
    """X times the transposed weight, plus the bias."""
    y = wide(x) @ wide(w).T
    return (y if b is None else y + b).astype(x.dtype)


def reshape(a: Attribute, x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """0 keeps a dimension."""
    return x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(shape)])


def moe_select(a: Attribute, x: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, ...]:
    """Each token once for each of its experts, sorted by expert; their weights; the way back; where each begins."""
    chosen = np.argsort(-wide(scores), axis=-1, kind="stable")[..., : a["num_experts_per_token"]]
    weights = np.exp(np.take_along_axis(wide(scores), chosen, -1))
    order = np.argsort(chosen.reshape(-1), kind="stable")
    sorted_x = x[order // chosen.shape[-1]].reshape(*chosen.shape, -1)
    offsets = np.searchsorted(np.sort(chosen.reshape(-1)), np.arange(a["num_experts"] + 1))
    weights = (weights / weights.sum(-1, keepdims=True)).astype(scores.dtype)
    return sorted_x, weights, np.argsort(order).reshape(chosen.shape), offsets


def moe_linear(a: Attribute, x: np.ndarray, offset: np.ndarray, w: np.ndarray, b: Tensor = None) -> np.ndarray:
    """Each expert's rows through its own layer."""
    rows = x.reshape(-1, x.shape[-1])
    parts = [rows[offset[e] : offset[e + 1]] for e in range(len(w))]
    done = [linear(a, part, w[e], None if b is None else b[e]) for e, part in enumerate(parts)]
    return np.concatenate(done).reshape(*x.shape[:-1], w.shape[1])


def moe_reduce(a: Attribute, y: np.ndarray, weights: np.ndarray, back: np.ndarray) -> np.ndarray:
    """The sum of each token's experts, weighted."""
    rows = wide(y.reshape(-1, y.shape[-1]))[back]
    return (rows * wide(weights)[..., None]).sum(-2).astype(y.dtype)


def alibi_slopes(a: Attribute) -> np.ndarray:
    """Powers of two, then those between them."""
    c = 2 ** int(math.log2(a["num_heads"]))
    slopes = [2 ** (-8 * k / c) for k in range(1, c + 1)]
    return np.array(slopes + [2 ** (-4 * k / c) for k in range(1, 2 * (a["num_heads"] - c) + 1, 2)], np.float32)


def alibi_mask(a: Attribute, seqstarts: np.ndarray, kvstarts: np.ndarray, mask: Tensor = None) -> np.ndarray:
    """Slope times distance to the last key that a query sees, -inf behind it; what is between sequences is unread."""
    bias = np.zeros((a["num_heads"], seqstarts[-1], kvstarts[-1]))
    for b in range(len(seqstarts) - 1):
        rows, columns = np.arange(*seqstarts[b : b + 2]), np.arange(*kvstarts[b : b + 2])
        last = kvstarts[b + 1] - (seqstarts[b + 1] - rows)
        distance = np.where(columns <= last[:, None], columns - last[:, None], -np.inf)
        bias[:, rows[:, None], columns] = alibi_slopes(a)[:, None, None] * distance
    if given(mask):
        bias = bias + wide(mask)[..., : kvstarts[-1]]
    return bias.astype(helper.tensor_dtype_to_np_dtype(a["data_type"]))


def positions(seqstarts: np.ndarray, start_pos: np.ndarray) -> list[tuple[int, int]]:
    """Sequence and position of each token."""
    return [(b, int(start_pos[b]) + i) for b in range(len(start_pos)) for i in range(seqstarts[b + 1] - seqstarts[b])]


def rotary(a: Attribute, query: np.ndarray, key: np.ndarray, seqstarts: np.ndarray, start_pos: np.ndarray, _) -> tuple:
    """Each pair of neighbors (2i, 2i + 1) rotated by position * theta^(-2i / dim)."""
    lengths = start_pos + np.diff(seqstarts)

    def rotated(x: np.ndarray) -> np.ndarray:
        dim, result, scaling = a.get("rotary_dim", 0) or x.shape[-1], x.copy(), a.get("scaling_type", b"")
        factor, longest = a.get("scaling_factor", 1.0), a.get("max_position_embeddings", 2048)
        for token, (b, position) in enumerate(positions(seqstarts, start_pos)):
            theta, place = a["theta"], position / factor if scaling == b"linear" else float(position)
            if scaling == b"dynamic" and lengths[b] > longest:
                theta *= (factor * lengths[b] / longest - (factor - 1)) ** (dim / (dim - 2))
            turn = np.exp(1j * place * float(theta) ** (-np.arange(0, dim, 2) / dim))
            pairs = (wide(x[token, :, 0:dim:2]) + 1j * wide(x[token, :, 1:dim:2])) * turn
            result[token, :, 0:dim:2], result[token, :, 1:dim:2] = pairs.real, pairs.imag
        return result

    return rotated(query), key if a.get("bypass_key", 0) else rotated(key)


ATTENTION = ("num_heads", "head_dim", "is_causal", "is_alibi", "num_kv_heads")


def cached(a: Attribute, key: np.ndarray, value: np.ndarray, *rest: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """KeyValueCache by the oracle; cache and scale are written."""
    *indices, cache, scale = [*rest, None][:8]
    types = Types(key.dtype.name, cache.dtype.name, scale.dtype.name if given(scale) else None)
    attributes = {name: n for name, n in a.items() if name not in ATTENTION and (name != "quant_group" or n)}
    return key_value_cache(
        Inputs(key, value, *indices), cache, scale if given(scale) else None, Attributes(**attributes), types
    )


def packed_attention(a: Attribute, *inputs: Tensor) -> np.ndarray:
    """MultiHeadAttention by the oracle."""
    rows, mask = inputs[:8], inputs[8] if len(inputs) > 8 and given(inputs[8]) else None
    attributes = AttentionAttributes(**{name: a[name] for name in ATTENTION})
    return multi_head_attention(AttentionInputs(*rows, mask), attributes).attn_output.astype(inputs[0].dtype)


def cache_attention(a: Attribute, query: np.ndarray, key: np.ndarray, value: np.ndarray, *rest: Tensor) -> np.ndarray:
    """The two, one after the other."""
    seqstarts, kvstarts, cachestarts, start_pos, decoding, max_seqlen, max_kvlen, cache, scale, mask = rest
    stored = cached(a, key, value, seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen, cache, scale)
    return packed_attention(a, query, *stored, seqstarts, kvstarts, decoding, max_seqlen, max_kvlen, mask)


OPERATORS: dict[str, Callable] = {
    "SiLU": activation(swish, "", 1.0, False),
    "Swish": activation(swish, "beta", 1.0, False),
    "SwiGLU": activation(swish, "beta", 1.0, True),
    "GELU": activation(gelu, "approximate", 0, False),
    "GeGLU": activation(gelu, "approximate", 0, True),
    "RMSNorm": rms_norm,
    "TensorParallelRMSNorm": rms_norm,
    "LayerNorm": layer_norm,
    "ParallelEmbedding": lambda a, ids, w: w[ids],
    **dict.fromkeys(("Linear", "ColumnParallelLinear", "RowParallelLinear"), linear),
    "Reshape": reshape,
    "MoeSelect": moe_select,
    **dict.fromkeys(("MoeColumnParallelLinear", "MoeRowParallelLinear"), moe_linear),
    "MoeReduce": moe_reduce,
    "ALiBiSlope": alibi_slopes,
    "ALiBiMask": alibi_mask,
    "PositionIndex": lambda a, ids, starts, past, _: np.array([p for _, p in positions(starts, past)], np.int64),
    "RotaryPositionEmbedding": rotary,
    "KeyValueCache": cached,
    "MultiHeadAttention": packed_attention,
    "MultiHeadCacheAttention": cache_attention,
    # Standard operators of opset 11, as far as exports have them.
    "Constant": lambda a: numpy_helper.to_array(a["value"]),
    "Split": lambda a, x: tuple(np.split(x, np.cumsum(a["split"])[:-1], axis=a["axis"])),
    "Gather": lambda a, x, index: np.take(x, index, axis=a["axis"]),
    "Slice": lambda a, x, start, end, axis, step: x[start[0] :],
    "Add": lambda a, x, y: x + y,
    "Sub": lambda a, x, y: x - y,
    "Cast": lambda a, x: x.astype(helper.tensor_dtype_to_np_dtype(a["to"])),
}


def run_operator(op_type: str, attributes: Attribute, *inputs: Tensor) -> tuple[np.ndarray, ...]:
    """The results of one operator."""
    results = OPERATORS[op_type](attributes, *inputs)
    return results if isinstance(results, tuple) else (results,)


def run_export(model: ModelProto, feeds: Arrays) -> np.ndarray:
    """The logits of an export as it came; what it stores is in the arrays of `feeds`."""
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer} | feeds
    for node in model.graph.node:
        inputs = [values[name] if name else None for name in node.input]
        values.update(zip(node.output, run_operator(node.op_type, attributes_of(node), *inputs)))
    return values["logits"]

"""Each lowered operator by itself against numpy, in the forms that the small models do not have."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pmx_node import run_node

TYPES = ["float32", "float16"]
LIMITS = {"float32": dict(rtol=2e-6, atol=2e-6), "float16": dict(rtol=3e-3, atol=3e-3)}


def rows(element: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Random values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(element)


def wide(*arrays: np.ndarray) -> list[np.ndarray]:
    """The arrays in float64."""
    return [x.astype(np.float64) for x in arrays]


def near(got: np.ndarray, expected: np.ndarray, element: str) -> None:
    """The result has the operator's type and is right up to its rounding."""
    assert got.dtype == element
    np.testing.assert_allclose(got.astype(np.float64), expected, **LIMITS[element])


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x)."""
    return 1 / (1 + np.exp(-x))


def gelu(x: np.ndarray, approximate: int) -> np.ndarray:
    """x * Phi(x), or its estimate."""
    if approximate:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


@pytest.mark.parametrize("element", TYPES)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("op_type", "attributes", "function"),
    [
        ("SiLU", {}, lambda x: x * sigmoid(x)),
        ("Swish", {"beta": 1.7}, lambda x: x * sigmoid(1.7 * x)),
        ("Swish", {}, lambda x: x * sigmoid(x)),
        ("GELU", {"approximate": 0}, lambda x: gelu(x, 0)),
        ("GELU", {"approximate": 1}, lambda x: gelu(x, 1)),
        ("GELU", {}, lambda x: gelu(x, 0)),
    ],
)
def test_activations(op_type: str, attributes: dict, function: object, gated: bool, element: str) -> None:
    """With a gate and without."""
    x, gate = rows(element, 5, 8) * 3, rows(element, 5, 8, seed=1)
    inputs = {"x": x} | ({"gate": gate} if gated else {})
    (y,) = run_node(op_type, inputs, **attributes)
    near(y, function(wide(x)[0]) * (wide(gate)[0] if gated else 1), element)


@pytest.mark.parametrize("element", TYPES)
@pytest.mark.parametrize(
    ("op_type", "attributes", "function"),
    [
        ("SwiGLU", {"beta": 0.5}, lambda x: x * sigmoid(0.5 * x)),
        ("GeGLU", {"approximate": 0}, lambda x: gelu(x, 0)),
        ("GeGLU", {"approximate": 1}, lambda x: gelu(x, 1)),
    ],
)
def test_gated_halves(op_type: str, attributes: dict, function: object, element: str) -> None:
    """The second half of the last axis times a function of the first, at any rank."""
    x = rows(element, 2, 3, 12) * 2
    (y,) = run_node(op_type, {"x": x}, **attributes)
    first, second = np.split(wide(x)[0], 2, axis=-1)
    near(y, second * function(first), element)


def rms(x: np.ndarray, eps: float) -> np.ndarray:
    """x over the root of its mean square."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def standardized(x: np.ndarray, eps: float) -> np.ndarray:
    """x without its mean, over its standard deviation as the reference estimates it."""
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, ddof=1, keepdims=True) + eps)


@pytest.mark.parametrize("element", TYPES)
@pytest.mark.parametrize("skip", ["no", "absent", "given"])
def test_rms_norm(skip: str, element: str) -> None:
    """Without a skip term, with one but no skip input (the first layer), with one; the sum is the second output."""
    x, w, other = rows(element, 4, 16), rows(element, 16, seed=1), rows(element, 4, 16, seed=2)
    inputs = {"x": x, "w": w} | ({"skip": other} if skip == "given" else {})
    got = run_node("RMSNorm", inputs, 1 + (skip != "no"), axis=-1, eps=1e-3, skip_term=int(skip != "no"))
    total = wide(x)[0] + (wide(other)[0] if skip == "given" else 0)
    near(got[0], rms(total, 1e-3) * wide(w)[0], element)
    if skip != "no":
        near(got[1], total, element)


@pytest.mark.parametrize("element", TYPES)
@pytest.mark.parametrize("affine", [0, 1])
@pytest.mark.parametrize("skip", ["no", "absent", "given"])
def test_layer_norm(skip: str, affine: int, element: str) -> None:
    """With weights and without: before a skip input they are then empty tensors."""
    x, w, b, other = rows(element, 4, 16), rows(element, 16), rows(element, 16, seed=1), rows(element, 4, 16, seed=2)
    inputs = {"x": x}
    if affine:
        inputs |= {"w": w, "b": b}
    if skip == "given":
        empty = np.zeros(0, element)
        inputs |= ({} if affine else {"w": empty, "b": empty}) | {"skip": other}
    attributes = dict(axis=-1, eps=1e-3, elementwise_affine=affine, skip_term=int(skip != "no"))
    got = run_node("LayerNorm", inputs, 1 + (skip != "no"), **attributes)
    total = wide(x)[0] + (wide(other)[0] if skip == "given" else 0)
    expected = standardized(total, 1e-3)
    near(got[0], expected * wide(w)[0] + wide(b)[0] if affine else expected, element)
    if skip != "no":
        near(got[1], total, element)


def test_tensor_parallel_rms_norm() -> None:
    """The mean square is divided by the scale."""
    x, w = rows("float32", 4, 16), rows("float32", 16, seed=1)
    (y,) = run_node("TensorParallelRMSNorm", {"x": x, "w": w}, axis=-1, eps=1e-3, scale=0.5, input_is_parallel=1)
    square = (wide(x)[0] ** 2).mean(-1, keepdims=True) / 0.5
    near(y, wide(x)[0] / np.sqrt(square + 1e-3) * w, "float32")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("op_type", ["Linear", "ColumnParallelLinear", "RowParallelLinear"])
def test_linear(op_type: str, bias: bool) -> None:
    """At ranks 2 and 3."""
    w, b = rows("float32", 6, 8, seed=1), rows("float32", 6, seed=2)
    for x in (rows("float32", 5, 8), rows("float32", 2, 3, 8)):
        inputs = {"x": x, "w": w} | ({"b": b} if bias else {})
        attributes = dict(in_features=8, out_features=6, bias_term=int(bias))
        (y,) = run_node(op_type, inputs, weights=("w",), **attributes)
        near(y, wide(x)[0] @ wide(w)[0].T + (b if bias else 0), "float32")


def test_embedding_of_int32() -> None:
    """Ids are int64 in exports and int32 in the documentation."""
    ids, w = np.array([[3, 0], [1, 3]], np.int32), rows("float16", 4, 6)
    attributes = dict(num_embeddings=4, embedding_dims=6, padding_idx=-1, max_norm=0.0)
    (y,) = run_node("ParallelEmbedding", {"ids": ids, "w": w}, weights=("w",), **attributes)
    np.testing.assert_array_equal(y, w[ids])


@pytest.mark.parametrize("num_heads", [1, 4, 6, 12])
def test_alibi_slopes(num_heads: int) -> None:
    """Powers of two, then those between them."""
    (y,) = run_node("ALiBiSlope", {}, num_heads=num_heads)
    c = 2 ** int(math.log2(num_heads))
    expected = [2 ** (-8 * k / c) for k in range(1, c + 1)]
    expected += [2 ** (-4 * k / c) for k in range(1, 2 * (num_heads - c) + 1, 2)]
    near(y, np.array(expected), "float32")


def test_a_key_that_is_not_rotated() -> None:
    """With bypass_key the key is as it was, while the query turns."""
    query, key = rows("float16", 3, 2, 8), rows("float16", 3, 1, 8, seed=1)
    steps = dict(seqstarts=np.array([0, 1, 1, 3]), start_pos=np.array([4, 7, 0]), max_seqlen=np.array([2]))
    inputs = {"query": query, "key": key} | steps
    domain = "opmx.dynamic_batching"
    got_query, got_key = run_node("RotaryPositionEmbedding", inputs, 2, domain=domain, bypass_key=1, theta=100.0)
    np.testing.assert_array_equal(got_key, key)
    for token, position in enumerate([4, 0, 1]):
        for i in range(4):
            turn = np.exp(1j * position * 100.0 ** (-2 * i / 8))
            pair = (query[token, :, 2 * i] + 1j * query[token, :, 2 * i + 1].astype(float)) * turn
            near(got_query[token, :, 2 * i], pair.real, "float16")
            near(got_query[token, :, 2 * i + 1], pair.imag, "float16")


@pytest.mark.parametrize("mask_rank", [None, 2, 3])
def test_alibi_mask(mask_rank: int | None) -> None:
    """The mask of ragged sequences, plus another one, whose padding is not read."""
    seqstarts, kvstarts, heads = np.array([0, 2, 2, 5]), np.array([0, 4, 5, 9]), 3
    inputs = {"seqstarts": seqstarts, "kvstarts": kvstarts}
    mask = None
    if mask_rank:
        mask = rows("float32", *[heads, 5, 16][-mask_rank:])
        mask[..., 9:] = np.nan
        inputs["mask"] = mask
    (got,) = run_node("ALiBiMask", inputs, domain="opmx.dynamic_batching", num_heads=heads, data_type=1)
    assert got.shape == (heads, 5, 9)
    slopes = [2**-4, 2**-8, 2**-2]
    for b, h in np.ndindex(3, heads):
        n, m = seqstarts[b + 1] - seqstarts[b], kvstarts[b + 1] - kvstarts[b]
        for i, j in np.ndindex(n, m):
            row, column = seqstarts[b] + i, kvstarts[b] + j
            distance = j - (m - n + i)
            expected = slopes[h] * distance if distance <= 0 else -np.inf
            if mask is not None:
                expected += mask[row, column] if mask_rank == 2 else mask[h, row, column]
            near(got[h, row, column], expected, "float32")


def test_experts_without_rows() -> None:
    """Tokens that all choose the same experts, beside experts that nobody chooses."""
    x, scores = rows("float32", 4, 6), np.tile(np.array([0.0, 5.0, 1.0, 4.0, -1.0], np.float32), (4, 1))
    got = run_node("MoeSelect", {"x": x, "scores": scores}, 4, num_experts=5, num_experts_per_token=2)
    sorted_x, weights, back, offset = got
    np.testing.assert_array_equal(offset, [0, 0, 4, 4, 8, 8])
    np.testing.assert_array_equal(sorted_x.reshape(-1, 6), np.concatenate([x, x]))
    np.testing.assert_array_equal(back, [[i, 4 + i] for i in range(4)])
    near(weights, np.tile(np.exp([5.0, 4.0]) / np.exp([5.0, 4.0]).sum(), (4, 1)), "float32")
    w = rows("float32", 5, 3, 6)
    inputs = {"x": sorted_x, "offset": offset, "w": w}
    (y,) = run_node("MoeColumnParallelLinear", inputs, weights=("w",), num_experts=5, in_features=6, out_features=3)
    assert y.shape == (4, 2, 3)
    near(y.reshape(-1, 3), np.concatenate([x @ w[1].T, x @ w[3].T]), "float32")

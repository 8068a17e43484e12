"""Each lowered operator by itself against numpy, in the forms that the small models do not have."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from compare import Arrays
from pmx_numpy import run_operator
from pmx_steps import run_node

pytestmark = pytest.mark.runtime

DYNAMIC = "opmx.dynamic_batching"
TYPES = ["float32", "float16"]
LIMITS = {"float32": dict(rtol=2e-6, atol=2e-6), "float16": dict(rtol=3e-3, atol=3e-3)}


def rows(element: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Random values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(element)


def check(op_type: str, inputs: Arrays, outputs: int = 1, *, domain: str = "opmx", weights=(), **attributes) -> None:
    """The lowered node's results have their types and are right up to their rounding."""
    got = run_node(op_type, inputs, outputs, domain=domain, weights=weights, **attributes)
    expected = run_operator(op_type, attributes, *(inputs[name] if name else None for name in inputs))
    for array, one in zip(got, expected[:outputs], strict=True):
        assert array.dtype == one.dtype
        limits = LIMITS.get(one.dtype.name, dict(rtol=0, atol=0))
        np.testing.assert_allclose(array.astype(np.float64), one.astype(np.float64), **limits)


@pytest.mark.parametrize("element", TYPES)
def test_activations(element: str) -> None:
    """With a gate and without; gated halves at any rank."""
    x, gate = rows(element, 5, 8) * 3, rows(element, 5, 8, seed=1)
    forms = [("SiLU", {}), ("Swish", {"beta": 1.7}), ("Swish", {}), ("GELU", {"approximate": 1}), ("GELU", {})]
    for (op_type, attributes), gated in product(forms, (False, True)):
        check(op_type, {"x": x} | ({"gate": gate} if gated else {}), **attributes)
    for op_type, attributes in [
        ("SwiGLU", {"beta": 0.5}),
        ("GeGLU", {"approximate": 0}),
        ("GeGLU", {"approximate": 1}),
    ]:
        check(op_type, {"x": rows(element, 2, 3, 12) * 2}, **attributes)


@pytest.mark.parametrize("element", TYPES)
@pytest.mark.parametrize("skip", ["no", "absent", "given"])
def test_norms(skip: str, element: str) -> None:
    """Without a skip term, with one but no skip input (the first layer), with one; the sum is the second output.

    LayerNorm with weights and without: before a skip input they are then empty tensors.
    """
    x, w, b, other = (rows(element, *shape, seed=i) for i, shape in enumerate([(4, 16), (16,), (16,), (4, 16)]))
    more = {"skip": other} if skip == "given" else {}
    attributes = dict(axis=-1, eps=1e-3, skip_term=int(skip != "no"))
    outputs = 1 + (skip != "no")
    check("RMSNorm", {"x": x, "w": w} | more, outputs, **attributes)
    check("LayerNorm", {"x": x, "w": w, "b": b} | more, outputs, elementwise_affine=1, **attributes)
    empty = np.zeros(0, element)
    inputs = {"x": x} | ({"w": empty, "b": empty} if more else {}) | more
    check("LayerNorm", inputs, outputs, elementwise_affine=0, **attributes)


def test_tensor_parallel_rms_norm() -> None:
    """The mean square is divided by the scale."""
    inputs = {"x": rows("float32", 4, 16), "w": rows("float32", 16, seed=1)}
    check("TensorParallelRMSNorm", inputs, axis=-1, eps=1e-3, scale=0.5, input_is_parallel=1)


@pytest.mark.parametrize("op_type", ["Linear", "ColumnParallelLinear", "RowParallelLinear"])
def test_linear(op_type: str) -> None:
    """At ranks 2 and 3, with a bias and without."""
    w, b = rows("float32", 6, 8, seed=1), rows("float32", 6, seed=2)
    for x, bias in product((rows("float32", 5, 8), rows("float32", 2, 3, 8)), (False, True)):
        attributes = dict(in_features=8, out_features=6, bias_term=int(bias))
        check(op_type, {"x": x, "w": w} | ({"b": b} if bias else {}), weights=("w",), **attributes)


def test_embedding_of_int32() -> None:
    """Ids are int64 in exports and int32 in the documentation."""
    inputs = {"ids": np.array([[3, 0], [1, 3]], np.int32), "w": rows("float16", 4, 6)}
    attributes = dict(num_embeddings=4, embedding_dims=6, padding_idx=-1, max_norm=0.0)
    check("ParallelEmbedding", inputs, weights=("w",), **attributes)


@pytest.mark.parametrize("num_heads", [1, 4, 6, 12])
def test_alibi_slopes(num_heads: int) -> None:
    """Of any number of heads."""
    check("ALiBiSlope", {}, num_heads=num_heads)


def test_a_key_that_is_not_rotated() -> None:
    """With bypass_key the key is as it was, while the query turns."""
    query, key = rows("float16", 3, 2, 8), rows("float16", 3, 1, 8, seed=1)
    steps = dict(seqstarts=np.array([0, 1, 1, 3]), start_pos=np.array([4, 7, 0]), max_seqlen=np.array([2]))
    inputs = {"query": query, "key": key} | steps
    check("RotaryPositionEmbedding", inputs, 2, domain=DYNAMIC, bypass_key=1, theta=100.0)


@pytest.mark.parametrize("mask_rank", [None, 2, 3])
def test_alibi_mask(mask_rank: int | None) -> None:
    """The mask of ragged sequences, plus another one, whose padding is not read."""
    inputs = {"seqstarts": np.array([0, 2, 2, 5]), "kvstarts": np.array([0, 4, 5, 9])}
    if mask_rank:
        inputs["mask"] = rows("float32", *[3, 5, 16][-mask_rank:])
        inputs["mask"][..., 9:] = np.nan
    check("ALiBiMask", inputs, domain=DYNAMIC, num_heads=3, data_type=1)


def test_experts_without_rows() -> None:
    """Tokens that all choose the same experts, beside experts that nobody chooses."""
    x, scores = rows("float32", 4, 6), np.tile(np.array([0.0, 5.0, 1.0, 4.0, -1.0], np.float32), (4, 1))
    attributes = dict(num_experts=5, num_experts_per_token=2)
    check("MoeSelect", {"x": x, "scores": scores}, 4, **attributes)
    sorted_x, _, back, offset = run_operator("MoeSelect", attributes, x, scores)
    assert offset.tolist() == [0, 0, 4, 4, 8, 8] and back.tolist() == [[i, 4 + i] for i in range(4)]
    np.testing.assert_array_equal(sorted_x.reshape(-1, 6), np.concatenate([x, x]))
    inputs = {"x": sorted_x, "offset": offset, "w": rows("float32", 5, 3, 6)}
    sizes = dict(num_experts=5, in_features=6, out_features=3)
    check("MoeColumnParallelLinear", inputs, weights=("w",), **sizes)

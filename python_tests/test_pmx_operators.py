"""Each lowered operator by itself against numpy, in all forms that exports have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from kvcache_ops import KvCacheError
from kvcache_pmx import lower
from onnx import ModelProto

from compare import Arrays
from pmx_numpy import run_operator
from pmx_steps import break_node, node_model
from sessions import RUNTIME, create_session

pytestmark = pytest.mark.runtime

DYNAMIC = dict(domain="opmx.dynamic_batching")
LIMITS = {"float32": dict(rtol=2e-6, atol=2e-6), "float16": dict(rtol=3e-3, atol=3e-3)}
WEIGHT = dict(weights=("w",))


def rows(element: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Random values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(element)


def integers(*values: object) -> np.ndarray:
    """int64 values."""
    return np.array(values, np.int64)


Case = tuple[str, Arrays, int, dict[str, Any]]  # operator, inputs, outputs, attributes and how the model is made


def activations(element: str) -> Iterator[Case]:
    """With a gate and without; gated halves at any rank."""
    x, gate = rows(element, 5, 8) * 3, rows(element, 5, 8, seed=1)
    forms = [("SiLU", {}), ("Swish", {"beta": 1.7}), ("Swish", {}), ("GELU", {"approximate": 1}), ("GELU", {})]
    for (op_type, attributes), gated in product(forms, (False, True)):
        yield op_type, {"x": x} | ({"gate": gate} if gated else {}), 1, attributes
    halves = {"x": rows(element, 2, 3, 12) * 2}
    for op_type, attributes in ("SwiGLU", {"beta": 0.5}), ("GeGLU", {"approximate": 0}), ("GeGLU", {"approximate": 1}):
        yield op_type, halves, 1, attributes


def norms(element: str) -> Iterator[Case]:
    """Without a skip term, with one but no skip input (the first layer), with one; the sum is the second output.

    LayerNorm with weights and without: before a skip input they are then empty tensors.
    """
    x, w, b, other = (rows(element, *shape, seed=i) for i, shape in enumerate([(4, 16), (16,), (16,), (4, 16)]))
    empty = np.zeros(0, element)
    for skip, more in ((0, {}), (1, {}), (1, {"skip": other})):
        attributes = dict(axis=-1, eps=1e-3, skip_term=skip)
        yield "RMSNorm", {"x": x, "w": w} | more, 1 + skip, attributes
        yield "LayerNorm", {"x": x, "w": w, "b": b} | more, 1 + skip, attributes | dict(elementwise_affine=1)
        inputs = {"x": x} | ({"w": empty, "b": empty} if more else {}) | more
        yield "LayerNorm", inputs, 1 + skip, attributes | dict(elementwise_affine=0)
    scaled = dict(axis=-1, eps=1e-3, scale=0.5, input_is_parallel=1)  # the mean square is divided by the scale
    yield "TensorParallelRMSNorm", {"x": x, "w": w}, 1, scaled


def weights(element: str) -> Iterator[Case]:
    """Linear layers at ranks 2 and 3, with a bias and without; ids are int64 in exports, int32 in the documentation."""
    w, b = rows(element, 6, 8, seed=1), rows(element, 6, seed=2)
    ranks = (rows(element, 5, 8), rows(element, 2, 3, 8))
    for op_type, x, bias in product(("Linear", "ColumnParallelLinear", "RowParallelLinear"), ranks, (False, True)):
        attributes = dict(in_features=8, out_features=6, bias_term=int(bias))
        yield op_type, {"x": x, "w": w} | ({"b": b} if bias else {}), 1, attributes | WEIGHT
    attributes = dict(num_embeddings=6, embedding_dims=8, padding_idx=-1, max_norm=0.0)
    for ids in (integers(3, 0), np.array([[3, 0], [1, 3]], np.int32)):
        yield "ParallelEmbedding", {"ids": ids, "w": w}, 1, attributes | WEIGHT
    yield "Reshape", {"x": ranks[1], "shape": integers(0, -1, 4)}, 1, {}


def places(element: str) -> Iterator[Case]:
    """Positions, rotations of each kind, and ALiBi of any number of heads, plus a mask whose padding is not read."""
    starts = dict(seqstarts=integers(0, 1, 1, 3), start_pos=integers(4, 7, 0), max_seqlen=integers(2))
    yield "PositionIndex", dict(ids=integers(7, 8, 9)) | starts, 1, DYNAMIC
    inputs = {"query": rows(element, 3, 2, 8), "key": rows(element, 3, 1, 8, seed=1)} | starts
    linear = dict(scaling_type="linear", scaling_factor=4.0)
    dynamic = dict(scaling_type="dynamic", scaling_factor=2.0, max_position_embeddings=4, rotary_dim=6)
    for form in ({}, dict(bypass_key=1), dict(rotary_dim=4, theta=1e6), linear, dynamic):
        yield "RotaryPositionEmbedding", inputs, 2, dict(theta=100.0) | form | DYNAMIC
    for num_heads in (1, 4, 6, 12):
        yield "ALiBiSlope", {}, 1, dict(num_heads=num_heads)
    for rank in (None, 2, 3):
        inputs = {"seqstarts": integers(0, 2, 2, 5), "kvstarts": integers(0, 4, 5, 9)}
        if rank:
            inputs["mask"] = rows(element, *[3, 5, 16][-rank:])
            inputs["mask"][..., 9:] = np.nan
        yield "ALiBiMask", inputs, 1, dict(num_heads=3, data_type=1 if element == "float32" else 10) | DYNAMIC


def experts(element: str) -> Iterator[Case]:
    """Tokens that all choose the same experts, beside experts that nobody chooses; and random ones."""
    sizes, bias = dict(num_experts=5, in_features=6, out_features=3), rows(element, 5, 3, seed=3)
    for scores in (np.tile(np.array([0, 5, 1, 4, -1], element), (4, 1)), rows(element, 4, 5, seed=5)):
        attributes = dict(num_experts=5, num_experts_per_token=2)
        chosen = {"x": rows(element, 4, 6), "scores": scores}
        yield "MoeSelect", chosen, 4, attributes
        sorted_x, share, back, offset = run_operator("MoeSelect", attributes, *chosen.values())
        inputs = {"x": sorted_x, "offset": offset, "w": rows(element, 5, 3, 6, seed=2)}
        yield "MoeColumnParallelLinear", inputs, 1, sizes | WEIGHT
        yield "MoeRowParallelLinear", inputs | {"b": bias}, 1, sizes | dict(bias_term=1) | WEIGHT
        yield "MoeReduce", {"y": sorted_x, "share": share, "back": back}, 1, dict(num_experts_per_token=2)


def attention(element: str) -> Iterator[Case]:
    """Attention by ONNX's operator: heads that share keys, decoding sequences, ALiBi, no mask and masks."""
    if RUNTIME < (1, 24):  # which has none
        return
    starts = dict(seqstarts=integers(0, 1, 1, 4), kvstarts=integers(0, 3, 5, 9), decoding=integers(1))
    inputs = {"query": rows(element, 4, 4, 8), "key": rows(element, 9, 2, 8, seed=1), "value": rows(element, 9, 2, 8)}
    inputs |= starts | dict(max_seqlen=integers(3), max_kvlen=integers(4))
    heads = dict(num_heads=4, head_dim=8, num_kv_heads=2, is_causal=1, is_alibi=0, attention="onnx") | DYNAMIC
    for form, mask in product((dict(), dict(is_causal=0), dict(is_alibi=1)), (None, (4, 16), (4, 4, 16))):
        given = {} if mask is None else {"mask": rows(element, *mask)}
        yield "MultiHeadAttention", inputs | given, 1, heads | form


FORMS = [activations, norms, weights, places, experts, attention]


def lowered(case: Case, random: np.random.Generator | None = None) -> ModelProto:
    """The lowered model of a case, with `random` after something of its node was broken."""
    op_type, inputs, outputs, given = case
    attributes = {name: value for name, value in given.items() if name not in ("domain", "weights", "attention")}
    kept = dict(domain=given.get("domain", "opmx"), weights=given.get("weights", ()))
    model = node_model(op_type, inputs, attributes, [f"y{i}" for i in range(outputs)], **kept)
    if random is not None:
        break_node(random, model.graph.node[0])
    return lower(model, attention=given.get("attention", "native"))


@pytest.mark.parametrize("element", LIMITS)
@pytest.mark.parametrize("cases", FORMS, ids=lambda cases: cases.__name__)
def test_lowered_operators(cases: Callable[[str], Iterator[Case]], element: str) -> None:
    """The results have their types and are right up to their rounding."""
    for case in cases(element):
        op_type, inputs, outputs, given = case
        session = create_session(lowered(case).SerializeToString())
        got = session.run(None, {name: x for name, x in inputs.items() if name not in given.get("weights", ())})
        in_bytes = {name: x.encode() if isinstance(x, str) else x for name, x in given.items()}
        expected = run_operator(op_type, in_bytes, *inputs.values())
        for array, one in zip(got, expected[:outputs], strict=True):
            assert array.dtype == one.dtype, op_type
            limits = LIMITS.get(one.dtype.name, dict(rtol=0, atol=0))
            wide = array.astype(np.float64), one.astype(np.float64)
            np.testing.assert_allclose(*wide, **limits, err_msg=f"{op_type} {given}")


@pytest.mark.parametrize("cases", FORMS, ids=lambda cases: cases.__name__)
def test_broken_nodes(cases: Callable[[str], Iterator[Case]]) -> None:
    """Whatever is missing or of another type: a typed error or a model, never anything else."""
    random = np.random.default_rng(11)
    for case in [*cases("float32")] * 2:
        try:
            lowered(case, random)
        except KvCacheError as error:
            assert error.kind in ("unsupported", "opset")

"""Caches of float8 with static scales: from Python, and through ONNX Runtime."""

from __future__ import annotations

import kvcache_ops
import numpy as np
from kvcache_ops import Cache, CacheSpec, step_indices
from onnx import TensorProto, numpy_helper

from compare import assert_same_bits, assert_same_outputs, refused
from one_node import node_model, node_types
from sessions import session_of

SPEC = CacheSpec(
    max_tokens=32,
    num_kv_heads=2,
    head_dim=20,
    dtype="float16",
    num_layers=2,
    quant_bit=8,
    cache_dtype="float8e4m3fn",
    scale_dtype="float32",
    cache_mode=1,
    page_size=4,
    static_scale=True,
)


def current(n: int) -> dict[str, np.ndarray]:
    """The keys and values of n tokens."""
    random = np.random.default_rng(n)
    names = ("current_key", "current_value")
    return {name: random.standard_normal((n, 2, 20)).astype(np.float16) for name in names}


def test_a_spec() -> None:
    """Scales are no part of a slot; ones until they are written."""
    cache, scale = SPEC.allocate()
    assert SPEC.attributes()["quant_type"] == 2
    assert (scale.shape, scale.min(), scale.max()) == ((2, 2, 2), 1, 1) and SPEC.scale_shape == scale.shape
    assert SPEC.bytes_per_token == 2 * 2 * 2 * 20 == cache.nbytes // 32
    with refused("illegal_types", "quant_type 2"):
        CacheSpec(8, 1, 8, quant_bit=8, static_scale=True)
    with refused("spec_range", "static_scale is 1"):
        CacheSpec(8, 1, 8, static_scale=1)  # type: ignore[arg-type]
    with refused("shape_mismatch", "scale"):
        Cache(SPEC, cache, np.ones((2, 3, 2), np.float32))


def test_an_initializer_of_a_model_is_read() -> None:
    """ONNX Runtime does what `run` does, and a scale that is a model's constant keeps its bytes."""
    indices = step_indices([3, 1], [0, 5], page_slots=[[8], [0, 16]], page_size=4)
    inputs = current(4) | {name: np.asarray(array) for name, array in indices._asdict().items()}
    types = node_types(TensorProto.FLOAT16, TensorProto.FLOAT8E4M3FN)
    for shape in ((2, 2, 2), (1, 2, 1), (1, 1, 1)):
        scale = np.linspace(0.002, 0.01, np.prod(shape), dtype=np.float32).reshape(shape)
        scale.flags.writeable = False
        cache, memory = SPEC.allocate().cache, SPEC.allocate()
        assert Cache(SPEC, cache, scale).ortvalues()["scale"].shape() == list(shape)
        expected = kvcache_ops.run(SPEC, **inputs, cache=cache, scale=scale, layer_idx=1)
        model = node_model(types, SPEC.attributes(1), initializers=(numpy_helper.from_array(scale, "scale"),))
        outputs = session_of(model).run(None, inputs | {"cache": memory.ortvalues()["cache"]})
        assert_same_outputs([outputs], [expected])
        assert_same_bits("cache", memory.cache, cache)

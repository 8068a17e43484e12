"""`CacheSpec` and `Cache`: sizes, memory, static scales, and how ONNX Runtime gets it."""

from __future__ import annotations

import gc
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import kvcache_ops
import numpy as np
import pytest
import yaml
from kvcache_ops import Cache, CacheSpec, step_indices
from kvcache_ops.manager import HostMemory, Manager
from ml_dtypes import float8_e4m3fn
from onnx import TensorProto, numpy_helper

from compare import assert_same_bits, assert_same_outputs, refused
from one_node import Node, node_model, node_types
from sessions import session_of

SCHEMA = yaml.safe_load((Path(__file__).resolve().parents[1] / "schema/key_value_cache.yaml").read_text())
BITS = {"float32": 32, "float16": 16, "int8": 8, "int4": 4, "bfloat16": 16, "float8e4m3fn": 8}
TABLE = SCHEMA["combinations"] + SCHEMA["extensions"]
ROWS = [(row["quant_bit"], row["T1"], row["T2"], row.get("T3")) for row in TABLE]


def spec_of(row: tuple, cache_layout: int = 0, **sizes: int) -> CacheSpec:
    """A cache of a row of the table of types."""
    quant_bit, t1, t2, t3 = row
    types = dict(dtype=t1, cache_dtype=t2, scale_dtype=t3, quant_bit=quant_bit, quant_group=4)
    sizes = dict(max_tokens=24, num_kv_heads=3, head_dim=8, num_layers=2) | sizes
    return CacheSpec(**types, cache_layout=cache_layout, **sizes)


@pytest.mark.parametrize("cache_layout", range(4))
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_sizes(row: tuple, cache_layout: int) -> None:
    """A spec's shapes and bytes are what the schema's text says, and so is the memory that it allocates."""
    spec = spec_of(row, cache_layout)
    axes = [str(axis) for axis in SCHEMA["cache_layouts"][cache_layout]["axes"]]
    lengths = {"MaxT": 24, "L": 2, "2": 2, "H": 3}
    outer = tuple(lengths[axis] for axis in axes)
    assert spec.axes == (*axes, "Dh")
    assert spec.cache_shape == (*outer, 8)
    assert spec.cache_bytes == 24 * 2 * 2 * 3 * 8 * BITS[spec.cache_dtype] // 8
    if spec.scale_dtype is None:
        assert (spec.scale_shape, spec.scale_bytes) == (None, 0)
    else:
        assert spec.scale_shape == (*outer, 2)
        assert spec.scale_bytes == 24 * 2 * 2 * 3 * 2 * BITS[spec.scale_dtype] // 8
    assert spec.bytes_per_token * 24 == spec.cache_bytes + spec.scale_bytes
    cache, scale = spec.allocate()
    assert (cache.nbytes, 0 if scale is None else scale.nbytes) == (spec.cache_bytes, spec.scale_bytes)
    for array in (cache, scale):
        assert array is None or (array.ctypes.data % 64 == 0 and array.flags.c_contiguous and not array.any())
    assert cache.shape == (*outer, 4 if spec.cache_dtype == "int4" else 8)


def test_types_that_are_left_out() -> None:
    """T2 is quant_bit's, T3 is T1, or float32 of bfloat16; without quantization T2 is T1 and there is no scale."""
    sizes = dict(max_tokens=8, num_kv_heads=1, head_dim=8)
    for dtype, quant_bit, cache_dtype, scale_dtype in (
        ("float16", 0, "float16", None),
        ("int8", 0, "int8", None),
        ("float32", 8, "int8", "float32"),
        ("float16", 4, "int4", "float16"),
        ("bfloat16", 0, "bfloat16", None),
        ("bfloat16", 8, "int8", "float32"),
    ):
        spec = CacheSpec(**sizes, dtype=dtype, quant_bit=quant_bit)
        assert (spec.cache_dtype, spec.scale_dtype) == (cache_dtype, scale_dtype)
        assert spec == replace(spec, cache_dtype=cache_dtype, scale_dtype=scale_dtype)


def test_attributes_are_all_of_the_nodes() -> None:
    """They have the schema's names; the spec has the cache's attributes, the caller gives the layer's."""
    spec = CacheSpec(8, 1, 8, num_layers=4, cache_layout=2, quant_bit=8, quant_group=4, cache_mode=1, page_size=16)
    expected = dict(num_layer=4, layer_idx=3, quant_bit=8, quant_group=4, num_repeat=2, cache_mode=1, cache_layout=2)
    assert spec.attributes(3, num_repeat=2) == expected | {"page_size": 16}
    float8 = CacheSpec(8, 1, 8, quant_bit=8, cache_dtype=float8_e4m3fn)
    assert (float8.cache_dtype, float8.attributes()["quant_type"]) == ("float8e4m3fn", 1)
    names = [attribute["name"] for attribute in SCHEMA["attributes"]]
    rotated = replace(float8, quant_rotation=1)
    assert [*spec.attributes(), "quant_type"] == list(float8.attributes()) == names[:-1]
    assert rotated.attributes() == float8.attributes() | {names[-1]: 1}


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"head_dim": 30}, "head_dim_not_divisible", "head_dim is 30"),
        ({"quant_bit": 3}, "attribute_out_of_range", "attribute quant_bit is 3, expected one of [0, 4, 8]"),
        ({"quant_bit": [4]}, "attribute_type", "attribute quant_bit is [4], expected an int"),
        ({"num_layers": 1.5}, "attribute_type", "attribute num_layer is 1.5"),
        ({"cache_dtype": "int8"}, "illegal_types", "cache (T2) is int8"),
        (
            {"dtype": "float8"},
            "type_unknown",
            'dtype is "float8", expected one of float32, float16, int8, int4, bfloat16, float8e4m3fn',
        ),
        ({"dtype": 3}, "type_unknown", "dtype is 3, expected the name of a type"),
        ({"quant_bit": 0, "cache_dtype": None}, "scale_unexpected", "scale_dtype is 'float16', expected None because"),
        ({"max_tokens": 0}, "spec_range", "max_tokens is 0, expected at least 1"),
        ({"head_dim": 2.0}, "spec_range", "head_dim is 2.0, expected an int"),
        ({"max_tokens": 2**64}, "spec_range", "expected an int of 64 bits"),
        ({"max_tokens": 2**62}, "size_overflow", "does not fit in 64 bits"),
    ],
)
def test_what_is_no_cache(changes: dict, kind: str, text: str) -> None:
    """Refused when it is described, with the sentence of the library."""
    with refused(kind, text):
        replace(CacheSpec(max_tokens=8, num_kv_heads=1, head_dim=8, quant_bit=4), **changes)


def test_too_much_memory() -> None:
    """Memory that cannot be allocated is refused, not a crash."""
    with refused("out_of_memory"):
        CacheSpec(max_tokens=2**50, num_kv_heads=1, head_dim=8).allocate()


INT4 = spec_of((4, "float32", "int4", "float32"))


def test_memory_is_checked_again_when_it_is_bound() -> None:
    """A cache that has become read-only since; and a scale where there is none."""
    memory = INT4.allocate()
    memory.cache.flags.writeable = False
    for use in (memory.ortvalues, lambda: memory.bind(None)):
        with refused("read_only"):
            use()
    plain = spec_of((0, "float32", "float32", None))
    with refused("scale_unexpected"):
        Cache(plain, plain.allocate().cache, memory.scale)


def test_ortvalues_of_bfloat16() -> None:
    """On the memory itself, and of the type that the operator expects."""
    memory = spec_of((0, "bfloat16", "bfloat16", None)).allocate()
    value = memory.ortvalues()["cache"]
    assert (value.data_type(), tuple(value.shape())) == ("tensor(bfloat16)", memory.cache.shape)
    assert value.data_ptr() == memory.cache.ctypes.data


def test_bindings_and_ortvalues_keep_the_memory() -> None:
    """Nobody else has the arrays: the addresses are still theirs."""
    stored, step = Node(INT4, layer_idx=1), step_indices([3, 1], [0, 2], cachestarts=[1, 20])._asdict()
    inputs, session = stored.inputs(np.random.default_rng(5), step), session_of(stored.model())
    values, binding = INT4.allocate().ortvalues(), session.io_binding()  # which run_node would make after the memory
    INT4.allocate().bind(binding)
    gc.collect()
    others = [np.full(INT4.cache_bytes, 85, np.uint8) for _ in range(64)]
    key, _ = session.run(None, inputs | values)
    for name, array in inputs.items():
        binding.bind_cpu_input(name, array)
    for name in ("key", "value"):
        binding.bind_output(name, "cpu")
    session.run_with_iobinding(binding)
    assert_same_bits("key", binding.copy_outputs_to_cpu()[0], key)
    assert all((other == 85).all() for other in others)


def test_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache needs it for OrtValues alone."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with refused("package_missing", "ortvalues() needs the package onnxruntime"):
        INT4.allocate().ortvalues()


def test_the_manager_takes_it() -> None:
    """One class, which can be printed, pickled, compared and hashed; its memory takes the arrays."""
    spec = CacheSpec(64, 2, 8, dtype=np.float32, num_layers=3, cache_layout=1, quant_bit=4, cache_mode=1, page_size=8)
    assert eval(repr(spec)) == spec == pickle.loads(pickle.dumps(spec)) == replace(spec, dtype="float32")
    assert hash(spec) == hash(replace(spec, dtype="float32"))
    assert kvcache_ops.manager.CacheSpec is CacheSpec and Manager(spec).spec is spec
    assert HostMemory(spec, *spec.allocate()).cache.shape == (3, 64, 2, 2, 4)
    for mode in ("runs", "cells"):
        assert Manager(replace(spec, cache_mode=0), mode=mode).stats()["slots"] == 64


def test_rows_are_copies_in_one_order() -> None:
    """Whatever the layout: slots, layers, key and value, heads."""
    for cache_layout in range(4):
        memory = spec_of((4, "float32", "int4", "float32"), cache_layout).allocate()
        slot = [0] * 5
        slot[memory.spec.axes.index("MaxT")], slot[memory.spec.axes.index("L")] = 7, 1
        memory.cache[tuple(slot)] = 0x21
        memory.scale[tuple(slot)] = 0.5
        cache, scale = memory.rows(np.array([3, 7]))
        assert (cache.shape, scale.shape) == ((2, 2, 2, 3, 4), (2, 2, 2, 3, 2))
        assert cache[1, 1, 0, 0, 0] == 0x21 and cache.astype(int).sum() == 0x21
        assert scale[1, 1, 0, 0, 0] == 0.5 and scale.sum() == 0.5
        cache[:] = 0
        assert memory.cache.any()


STATIC = CacheSpec(
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


def test_a_spec_with_static_scales() -> None:
    """Scales are no part of a slot; ones until they are written."""
    cache, scale = STATIC.allocate()
    assert STATIC.attributes()["quant_type"] == 2
    assert (scale.shape, scale.min(), scale.max()) == ((2, 2, 2), 1, 1) and STATIC.scale_shape == scale.shape
    assert STATIC.bytes_per_token == 2 * 2 * 2 * 20 == cache.nbytes // 32
    with refused("illegal_types", "quant_type 2"):
        CacheSpec(8, 1, 8, quant_bit=8, static_scale=True)
    with refused("spec_range", "static_scale is 1"):
        CacheSpec(8, 1, 8, static_scale=1)  # type: ignore[arg-type]
    with refused("shape_mismatch", "scale"):
        Cache(STATIC, cache, np.ones((2, 3, 2), np.float32))


def test_static_scales_may_be_an_initializer() -> None:
    """ONNX Runtime does what `run` does, and a scale that is a model's constant keeps its bytes."""
    indices = step_indices([3, 1], [0, 5], page_slots=[[8], [0, 16]], page_size=4)
    inputs = current(4) | {name: np.asarray(array) for name, array in indices._asdict().items()}
    types = node_types(TensorProto.FLOAT16, TensorProto.FLOAT8E4M3FN)
    for shape in ((2, 2, 2), (1, 2, 1), (1, 1, 1)):
        scale = np.linspace(0.002, 0.01, np.prod(shape), dtype=np.float32).reshape(shape)
        scale.flags.writeable = False
        cache, memory = STATIC.allocate().cache, STATIC.allocate()
        assert Cache(STATIC, cache, scale).ortvalues()["scale"].shape() == list(shape)
        expected = kvcache_ops.run(STATIC, **inputs, cache=cache, scale=scale, layer_idx=1)
        model = node_model(types, STATIC.attributes(1), initializers=(numpy_helper.from_array(scale, "scale"),))
        outputs = session_of(model).run(None, inputs | {"cache": memory.ortvalues()["cache"]})
        assert_same_outputs([outputs], [expected])
        assert_same_bits("cache", memory.cache, cache)

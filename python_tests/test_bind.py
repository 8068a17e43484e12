"""`kvcache.bind`, which gives ONNX Runtime a bare address: what the address cannot stand for is refused."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from kvcache import FORMATS, LAYOUT_AXES, bind
from node import session_of
from setting import INT4, Setting

pytestmark = pytest.mark.runtime


@pytest.fixture
def binding() -> onnxruntime.IOBinding:
    """A fresh binding of some session."""
    return session_of(Setting().model()).io_binding()


@pytest.mark.parametrize("array", [np.zeros((4, 6), np.float32)[:, ::2], np.zeros((4, 6), np.float32, order="F")])
def test_arrays_with_gaps(binding: onnxruntime.IOBinding, array: np.ndarray) -> None:
    """An address says nothing of strides."""
    with pytest.raises(ValueError, match="cache is not contiguous"):
        bind(binding, "cache", array)


def test_arrays_of_other_types_and_sizes(binding: onnxruntime.IOBinding) -> None:
    """Bytes alone may be packed int4 or not, so they need the type; the operator would go beyond too small an array."""
    for dtype in ("float64", "uint8", ">f4", "int32"):
        with pytest.raises(TypeError, match="cache is an array of"):
            bind(binding, "cache", np.zeros(4, dtype))
    for size in (15, 17, 32):  # one byte for each element is a usual mistake
        with pytest.raises(ValueError, match=f"{size} bytes.*takes 16"):
            bind(binding, "cache", np.zeros(size, np.uint8), INT4, (1, 1, 2, 2, 8))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("cache_layout", range(len(LAYOUT_AXES)))
def test_the_memory_of_every_format_can_be_bound(binding: onnxruntime.IOBinding, name: str, cache_layout: int) -> None:
    """A format's spec allocates what its shapes ask for, and counts it right."""
    format = FORMATS[name]
    spec = format.spec(num_layer=3, num_heads=2, head_dim=64, max_t=5, cache_layout=cache_layout)
    cache = spec.allocate()
    bind(binding, "cache", cache.cache, format.cache_type, spec.cache_shape)
    if cache.scale is not None:
        assert cache.scale.shape == (*spec.cache_shape[:4], 64 // format.quant_group)
    scales = 0 if cache.scale is None else 64 // format.quant_group * 16
    bits = {"float32": 32, "float16": 16, "int8": 8, "int4": 4}[name]
    assert spec.bytes_per_token == 3 * 2 * 2 * (64 * bits + scales) / 8

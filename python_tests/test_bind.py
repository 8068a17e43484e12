"""`kvcache.bind`, which gives ONNX Runtime a bare address: what the address cannot stand for is refused."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from kvcache import FORMATS, bind
from node import session_of
from setting import INT4, Setting

pytestmark = pytest.mark.runtime


@pytest.fixture
def binding() -> onnxruntime.IOBinding:
    """A fresh binding of some session."""
    return session_of(Setting().model()).io_binding()


def test_arrays_that_an_address_cannot_stand_for(binding: onnxruntime.IOBinding) -> None:
    """With gaps; bytes that may be packed int4 or not, without the type; too few for their shape."""
    with pytest.raises(ValueError, match="cache is not contiguous"):
        bind(binding, "cache", np.zeros((4, 6), np.float32)[:, ::2])
    for dtype in ("float64", "uint8", ">f4", "int32"):
        with pytest.raises(TypeError, match="cache is an array of"):
            bind(binding, "cache", np.zeros(4, dtype))
    for size in (15, 17, 32):  # one byte for each element is a usual mistake
        with pytest.raises(ValueError, match=f"{size} bytes.*takes 16"):
            bind(binding, "cache", np.zeros(size, np.uint8), INT4, (1, 1, 2, 2, 8))


@pytest.mark.parametrize("name", FORMATS)
def test_the_memory_of_every_format_can_be_bound(binding: onnxruntime.IOBinding, name: str) -> None:
    """A format's spec allocates what its shapes ask for."""
    spec = FORMATS[name].spec(num_layer=3, num_heads=2, head_dim=64, max_t=5, cache_layout=3)
    bind(binding, "cache", spec.allocate().cache, FORMATS[name].cache_type, spec.cache_shape)

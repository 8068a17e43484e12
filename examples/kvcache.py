"""The operator library in Python: find it, register it, allocate a cache, bind the cache in place.

    session = create_session(model_with_key_value_cache_nodes)
    cache = Cache(FORMATS["int4"], num_layer=6, num_heads=2, head_dim=64, max_t=4096)
    binding = session.io_binding()
    cache.bind(binding)                                   # once: the operator writes through this memory
    bind(binding, "current_key", current_key)             # for each call
    binding.bind_output("key", "cpu")
    session.run_with_iobinding(binding)

`cache` and `scale` are graph inputs that the operator also writes. That works because ONNX Runtime hands the operator
the caller's own memory: bind contiguous arrays, keep them alive while sessions use them, and never feed a copy. With
a contiguous numpy array `session.run(None, {"cache": array, ...})` writes the array as well; int4, which numpy does
not have, is bound by pointer as here. A read-only array is written all the same, and one in a read-only mapping (a
file opened with `mmap_mode="r"`) ends the process by a signal. Read the cache after the call, not by another node of
the graph, and let it come from a graph input or a subgraph's outer scope: the state of a Scan or Loop may be a copy.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import onnxruntime
import yaml
from onnx import TensorProto

DOMAIN = "opmx.dynamic_batching"

NUMPY_TYPES = {
    TensorProto.FLOAT: np.float32,
    TensorProto.FLOAT16: np.float16,
    TensorProto.INT8: np.int8,
    TensorProto.INT4: np.uint8,  # two elements in a byte, the first in the low nibble
    TensorProto.INT64: np.int64,
}
ELEMENT_TYPES = {np.dtype(numpy_type): element_type for element_type, numpy_type in NUMPY_TYPES.items()}
del ELEMENT_TYPES[np.dtype(np.uint8)]  # packed int4 is always named

TYPE_NAMES = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.INT8: "int8",
    TensorProto.INT4: "int4",
}

BITS = {TensorProto.FLOAT: 32, TensorProto.FLOAT16: 16, TensorProto.INT8: 8, TensorProto.INT4: 4, TensorProto.INT64: 64}

# What the operator is, as data.
SCHEMA = yaml.safe_load((Path(__file__).resolve().parents[1] / "schema/key_value_cache.yaml").read_text())

# The axes of `cache` for each `cache_layout`; `scale` has them too, with Dh / quant_group in the place of Dh.
LAYOUT_AXES = tuple((*map(str, layout["axes"]), "Dh") for layout in SCHEMA["cache_layouts"])


def find_library() -> Path:
    """The built operator library: `KVCACHE_ORT_LIB` if that is set, else the release build of this repository."""
    named = os.environ.get("KVCACHE_ORT_LIB")
    library = Path(named) if named else Path(__file__).resolve().parents[1] / "target/release/libkvcache_ort.so"
    if not library.is_file():
        origin = "KVCACHE_ORT_LIB names" if named else "this repository builds"
        raise FileNotFoundError(f"no file at {library}, where {origin} the operator library: run `make build`")
    return library


def create_session(model: bytes, options: onnxruntime.SessionOptions | None = None) -> onnxruntime.InferenceSession:
    """A session on the CPU that knows the operator `KeyValueCache`."""
    options = options or onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(find_library()))
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@dataclass(frozen=True)
class CacheFormat:
    """How keys and values are kept: the types T1, T2, T3 of the specification and the quantization attributes."""

    current_type: int
    cache_type: int
    scale_type: int | None = None
    quant_bit: int = 0
    quant_group: int = 8


FORMATS = {
    "float32": CacheFormat(TensorProto.FLOAT, TensorProto.FLOAT),
    "float16": CacheFormat(TensorProto.FLOAT16, TensorProto.FLOAT16),
    "int8": CacheFormat(TensorProto.FLOAT16, TensorProto.INT8, TensorProto.FLOAT16, quant_bit=8, quant_group=32),
    "int4": CacheFormat(TensorProto.FLOAT16, TensorProto.INT4, TensorProto.FLOAT16, quant_bit=4, quant_group=32),
}


def cache_shape(cache_layout: int, *, num_layer: int, num_heads: int, max_t: int, last: int) -> tuple[int, ...]:
    """The shape of `cache` (`last` is Dh) or of `scale` (`last` is Dh / quant_group)."""
    sizes = {"L": num_layer, "2": 2, "H": num_heads, "MaxT": max_t, "Dh": last}
    return tuple(sizes[axis] for axis in LAYOUT_AXES[cache_layout])


def bind(
    binding: onnxruntime.IOBinding,
    name: str,
    array: np.ndarray,
    element_type: int | None = None,
    shape: tuple[int, ...] | None = None,
) -> None:
    """Binds `array`'s own memory to an input; the array must stay alive until the run is over.

    `element_type` and `shape` are the array's own unless given; packed int4 needs both, with the shape in elements.
    """
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} is not contiguous, and its address stands for contiguous memory")
    element_type = element_type or ELEMENT_TYPES.get(array.dtype)
    if element_type is None:
        raise TypeError(f"{name} is an array of {array.dtype}; packed int4 is bound with its type and shape")
    shape = array.shape if shape is None else shape
    size = (prod(shape) * BITS[element_type] + 7) // 8
    if array.nbytes != size:  # ONNX Runtime believes the shape, and the operator would leave the array's memory
        raise ValueError(f"{name} has {array.nbytes} bytes, and {list(shape)} takes {size}")
    binding.bind_input(name, "cpu", 0, element_type, shape, array.ctypes.data)


class Cache:
    """The memory of `cache`, and of `scale` where the format has one, for all layers of a model."""

    def __init__(
        self, format: CacheFormat, *, num_layer: int, num_heads: int, head_dim: int, max_t: int, cache_layout: int = 0
    ):
        axes = dict(num_layer=num_layer, num_heads=num_heads, max_t=max_t)
        self.format = format
        self.max_t = max_t
        self.axes = LAYOUT_AXES[cache_layout]
        self.shape = cache_shape(cache_layout, **axes, last=head_dim)
        stored = head_dim // 2 if format.cache_type == TensorProto.INT4 else head_dim
        self.cache = np.zeros((*self.shape[:-1], stored), NUMPY_TYPES[format.cache_type])
        self.scale = None
        if format.scale_type is not None:
            scale_shape = cache_shape(cache_layout, **axes, last=head_dim // format.quant_group)
            self.scale = np.zeros(scale_shape, NUMPY_TYPES[format.scale_type])

    def bind(self, binding: onnxruntime.IOBinding) -> None:
        """Binds the memory in place; one binding serves every later run."""
        bind(binding, "cache", self.cache, self.format.cache_type, self.shape)
        if self.scale is not None:
            bind(binding, "scale", self.scale)

    def rows(self, slots: np.ndarray) -> list[np.ndarray]:
        """Copies of slots, (slots, L, 2, H, Dh) of the cache, of int4 (..., Dh / 2), and the same of the scale."""
        order = [self.axes.index(axis) for axis in ("MaxT", "L", "2", "H", "Dh")]
        return [x.transpose(order)[slots] for x in (self.cache, self.scale) if x is not None]

    @property
    def bytes_per_token(self) -> float:
        """What one token costs in all layers, scales included."""
        return (self.cache.nbytes + (0 if self.scale is None else self.scale.nbytes)) / self.max_t

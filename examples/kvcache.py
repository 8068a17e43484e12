"""Helpers of examples and tests: the types of tensors, and the library that they load.

    session = create_session(model_with_key_value_cache_nodes)
    cache = CacheSpec(max_tokens=4096, num_kv_heads=2, head_dim=64, num_layers=6, quant_bit=4).allocate()
    binding = session.io_binding()
    cache.bind(binding)                                   # once: the operator writes through this memory
    binding.bind_cpu_input("current_key", current_key)    # for each call
    binding.bind_output("key", "cpu")
    session.run_with_iobinding(binding)

`cache` and `scale` are graph inputs that the operator also writes. That works because ONNX Runtime hands the operator
the caller's own memory: bind contiguous arrays, keep them alive while sessions use them, and never feed a copy. With
a contiguous numpy array `session.run(None, {"cache": array, ...})` writes the array as well; int4, which numpy does
not have, is fed as one of `cache.ortvalues()`. Read the cache after the call, not by another node of the graph, and let
it come from a graph input or a subgraph's outer scope: the state of a Scan or Loop may be a copy.
"""

from __future__ import annotations

import os
from pathlib import Path

import kvcache_ops
import numpy as np
import onnxruntime
from onnx import TensorProto

DOMAIN = kvcache_ops.DOMAIN
OPSET = 21
IR_VERSION = 10  # what ONNX Runtime 1.20 reads

# The axes of `cache` for each `cache_layout`.
LAYOUT_AXES = kvcache_ops.CACHE_LAYOUTS

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


def find_library() -> Path:
    """The operator library: that of `kvcache_ops`, or another build of it that `KVCACHE_ORT_LIB` names."""
    library = Path(os.environ.get("KVCACHE_ORT_LIB") or kvcache_ops.library_path())
    if not library.is_file():
        raise FileNotFoundError(f"no file at {library}, where KVCACHE_ORT_LIB names the operator library")
    return library


def create_session(model: bytes, options: onnxruntime.SessionOptions | None = None) -> onnxruntime.InferenceSession:
    """A session on the CPU that knows the operator `KeyValueCache`."""
    options = options or onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(find_library()))
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def cache_shape(cache_layout: int, *, num_layer: int, num_heads: int, max_t: int, last: int) -> tuple[int, ...]:
    """The shape of `cache` (`last` is Dh) or of `scale` (`last` is Dh / quant_group)."""
    sizes = {"L": num_layer, "2": 2, "H": num_heads, "MaxT": max_t, "Dh": last}
    return tuple(sizes[axis] for axis in LAYOUT_AXES[cache_layout])

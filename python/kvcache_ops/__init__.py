"""The KV cache operators of PMX graphs (`dynamic_batching`) for ONNX Runtime, numpy and torch, and their cache.

    options = onnxruntime.SessionOptions()
    kvcache_ops.register(options)
    session = onnxruntime.InferenceSession("model.onnx", options)

`CacheSpec` describes a cache and allocates it, `step_indices` makes the index inputs of a step, `make_node` writes the
operators into graphs, `run` calls them without ONNX Runtime. `kvcache_ops.manager` decides which slots of the cache
hold which tokens. `python -m kvcache_ops doctor` says what works on this machine. What is refused raises
`KvCacheError`.
"""

from importlib.util import find_spec

try:
    from kvcache_ops import _native
except ImportError as _error:
    if find_spec("kvcache_ops._native") is not None:
        raise
    _message = (
        f"{__path__[0]} has the sources of kvcache_ops, not its compiled module: they shadow the installed package. "
        "Run Python in another folder; pip install ./python, in a checkout, installs the package"
    )
    raise ImportError(_message) from _error

from kvcache_ops._errors import KvCacheError
from kvcache_ops.ops._cache_spec import CACHE_LAYOUTS, Cache, CacheSpec
from kvcache_ops.ops._indices import StepIndices, step_indices
from kvcache_ops.ops._int4 import pack_int4, unpack_int4
from kvcache_ops.ops._nodes import DOMAIN, check_model, make_node
from kvcache_ops.ops._operators import (
    check,
    check_multi_head_attention,
    check_multi_head_cache_attention,
    multi_head_attention,
    multi_head_cache_attention,
    run,
)
from kvcache_ops.ops._quantized import pack_panels, pack_scales, quantized_gather, quantized_matmul
from kvcache_ops.ops._registration import library_path, register

__version__: str = _native.__version__

__all__ = [
    "CACHE_LAYOUTS",
    "DOMAIN",
    "Cache",
    "CacheSpec",
    "KvCacheError",
    "StepIndices",
    "__version__",
    "check",
    "check_model",
    "check_multi_head_attention",
    "check_multi_head_cache_attention",
    "library_path",
    "make_node",
    "multi_head_attention",
    "multi_head_cache_attention",
    "pack_int4",
    "pack_panels",
    "pack_scales",
    "quantized_gather",
    "quantized_matmul",
    "register",
    "run",
    "step_indices",
    "unpack_int4",
]

"""The operator `dynamic_batching.KeyValueCache` for ONNX Runtime, and the manager of its cache.

    options = onnxruntime.SessionOptions()
    kvcache_ops.register(options)
    session = onnxruntime.InferenceSession("model.onnx", options)

`kvcache_ops.manager` decides which slots of the cache hold which tokens.
"""

from __future__ import annotations

from typing import Protocol

from kvcache_ops import _native

__all__ = ["__version__", "library_path", "register"]

__version__: str = _native.__version__


class _SessionOptions(Protocol):
    """`onnxruntime.SessionOptions`, which this package does not import."""

    def register_custom_ops_library(self, library_path: str, /) -> None: ...


def library_path() -> str:
    """The file that ONNX Runtime loads as a custom operator library. It is the extension module of this package."""
    return _native.__file__


def register(session_options: _SessionOptions) -> None:
    """Makes the operator known to the sessions made with these options (`onnxruntime.SessionOptions`): once for each.

    Raises what ONNX Runtime raises: for a version before 1.20, and for options that have the operator already.
    """
    session_options.register_custom_ops_library(library_path())

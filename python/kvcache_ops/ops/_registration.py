"""The package as a custom operator library of ONNX Runtime."""

from __future__ import annotations

import re
import sys
from typing import Protocol
from weakref import WeakSet

from kvcache_ops import _native
from kvcache_ops._errors import KvCacheError


class _SessionOptions(Protocol):
    """`onnxruntime.SessionOptions`, which this package does not import."""

    def register_custom_ops_library(self, library_path: str, /) -> None: ...


_REGISTERED: WeakSet[_SessionOptions] = WeakSet()


def library_path() -> str:
    """The file that ONNX Runtime loads as a custom operator library. It is the extension module of this package."""
    return _native.__file__


def supported_versions() -> str:
    """The supported versions of ONNX Runtime, as text."""
    major, minor = _native.oldest_onnxruntime()
    return f"onnxruntime {major}.{minor} and later (tested with 1.20.1, 1.24.1 and 1.32.0)"


def check_version(version: str) -> None:
    """Raises KvCacheError of kind "onnxruntime_version" for a version of ONNX Runtime that is too old."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < _native.oldest_onnxruntime():
        message = f"onnxruntime is {version}, which is too old: kvcache_ops works with {supported_versions()}"
        raise KvCacheError(message, "onnxruntime_version")


def register(session_options: _SessionOptions) -> None:
    """Makes the operators known to the sessions made with these options (`onnxruntime.SessionOptions`).

    Registering twice has no further effect. Raises KvCacheError of kind
    "onnxruntime_version" for an ONNX Runtime that is too old, and "registration" with ONNX Runtime's own words for what
    else it refuses.
    """
    if session_options in _REGISTERED:
        return
    runtime = sys.modules.get(type(session_options).__module__.partition(".")[0])
    version = getattr(runtime, "__version__", None)
    if isinstance(version, str):
        check_version(version)
    try:
        session_options.register_custom_ops_library(library_path())
    except Exception as error:
        message = f"ONNX Runtime does not take the operators: {error}; kvcache_ops works with {supported_versions()}"
        raise KvCacheError(message, "registration") from error
    _REGISTERED.add(session_options)

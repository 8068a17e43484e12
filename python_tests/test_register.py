"""`register`: the operators in sessions, and runtimes that cannot have them."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import kvcache_ops
import onnxruntime
import pytest
from kvcache_ops import KvCacheError


def runtime(monkeypatch: pytest.MonkeyPatch, version: str, error: Exception | None = None) -> object:
    """Session options of an ONNX Runtime of another version."""

    class SessionOptions:
        def register_custom_ops_library(self, library_path: str, /) -> None:
            assert library_path == kvcache_ops.library_path()
            if error is not None:
                raise error

    module = ModuleType("other_runtime")
    module.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "other_runtime", module)
    SessionOptions.__module__ = "other_runtime.capi.state"
    return SessionOptions()


@pytest.mark.parametrize("version", ["1.19.2", "1.9.0", "0.5"])
def test_an_old_runtime(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """It is told which versions work, before it loads anything."""
    with pytest.raises(KvCacheError) as refusal:
        kvcache_ops.register(runtime(monkeypatch, version, AssertionError("it must not be asked")))
    assert refusal.value.kind == "onnxruntime_version"
    assert f"onnxruntime is {version}, which is too old" in str(refusal.value)
    assert "works with onnxruntime 1.20 and later" in str(refusal.value)


@pytest.mark.parametrize("version", ["1.20.0", "1.20.1rc1", "1.31.1", "2.0.0", "unknown"])
def test_a_runtime_that_may_work(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """It is asked; what it says is in the error, and which versions work."""
    kvcache_ops.register(runtime(monkeypatch, version))
    error = RuntimeError("no such symbol")
    with pytest.raises(KvCacheError, match="no such symbol; kvcache_ops works with onnxruntime") as refusal:
        kvcache_ops.register(runtime(monkeypatch, version, error))
    assert refusal.value.kind == "registration" and refusal.value.__cause__ is error


def test_this_runtime() -> None:
    """The one that the suite runs on takes the library."""
    kvcache_ops.register(onnxruntime.SessionOptions())


def test_nothing_else_is_imported() -> None:
    """Neither runtime nor graph nor tensor library."""
    code = "import kvcache_ops, sys; print({'onnx', 'onnxruntime', 'torch', 'yaml'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"

"""`register`: the operators in sessions, and runtimes that cannot have them."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import kvcache_ops
import pytest
from kvcache_ops import KvCacheError

from node import node_model, node_types
from setting import FLOAT


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


@pytest.mark.parametrize("version", ["1.19.2", "0.5"])
def test_an_old_runtime(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """It is told which versions work, before it loads anything."""
    with pytest.raises(KvCacheError) as refusal:
        kvcache_ops.register(runtime(monkeypatch, version, AssertionError("it must not be asked")))
    assert refusal.value.kind == "onnxruntime_version"
    assert f"onnxruntime is {version}, which is too old" in str(refusal.value)
    assert "works with onnxruntime 1.20 and later" in str(refusal.value)


@pytest.mark.parametrize("version", ["1.20.1rc1", "2.0.0", "unknown"])
def test_a_runtime_that_may_work(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """It is asked; what it says is in the error, and which versions work."""
    kvcache_ops.register(runtime(monkeypatch, version))
    error = RuntimeError("no such symbol")
    with pytest.raises(KvCacheError, match="no such symbol; kvcache_ops works with onnxruntime") as refusal:
        kvcache_ops.register(runtime(monkeypatch, version, error))
    assert refusal.value.kind == "registration" and refusal.value.__cause__ is error


def test_nothing_else_is_imported() -> None:
    """Neither runtime nor graph nor tensor library."""
    code = "import kvcache_ops, sys; print({'onnx', 'onnxruntime', 'torch', 'yaml'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


# Makes a session in a fresh process, drops it, and asks whether the library is still loaded, without loading it.
LOADED_AFTER_A_SESSION = """
import ctypes, gc, os, sys
import onnxruntime

library, model = sys.argv[1], sys.stdin.buffer.read()
for _ in range(2):
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    del options, session
    gc.collect()
    ctypes.CDLL(library, mode=os.RTLD_NOLOAD)
"""


@pytest.mark.runtime
def test_it_stays_loaded_after_the_last_session() -> None:
    """What it has made for the process, which sessions point to, is neither freed nor made again and again."""
    model = node_model(node_types(FLOAT, FLOAT), {})
    command = [sys.executable, "-c", LOADED_AFTER_A_SESSION, kvcache_ops.library_path()]
    run = subprocess.run(command, input=model, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr.decode()

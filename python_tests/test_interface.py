"""The names of `kvcache_ops`, as programs rely on them."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from shutil import copyfile
from types import ModuleType

import kvcache_ops
import pytest
from kvcache_ops import _native

from compare import refused
from one_node import FLOAT, node_model, node_types

FUNCTIONS = {
    "KeyValueCache": (kvcache_ops.run, kvcache_ops.check),
    "MultiHeadAttention": (kvcache_ops.multi_head_attention, kvcache_ops.check_multi_head_attention),
    "MultiHeadCacheAttention": (kvcache_ops.multi_head_cache_attention, kvcache_ops.check_multi_head_cache_attention),
}


def test_sources_that_shadow_the_package(tmp_path: Path) -> None:
    """They say so, and not that an import is circular."""
    (tmp_path / "kvcache_ops").mkdir()
    copyfile(kvcache_ops.__file__, tmp_path / "kvcache_ops/__init__.py")
    command = [sys.executable, "-c", "import kvcache_ops"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"ImportError: {tmp_path}/kvcache_ops has the sources of kvcache_ops, not its compiled module" in run.stderr


@pytest.mark.parametrize("op_type", FUNCTIONS)
def test_parameters(op_type: str) -> None:
    """Names and order are the operator's."""
    inputs, outputs = _native.input_names(op_type), _native.output_names(op_type)
    call, check = (list(inspect.signature(function).parameters) for function in FUNCTIONS[op_type])
    optional = ["attention_mass"] if op_type != "KeyValueCache" else []
    assert call == ["attributes", *inputs, *outputs, *optional, "more"]
    assert check == ["attributes", *inputs, "more"]


TORCH_STANDS_IN = """
import inspect, sys, types
torch = types.ModuleType("torch")
torch.Tensor = object
torch.library = types.SimpleNamespace(custom_op=lambda *_, **__: types.SimpleNamespace(register_fake=lambda _: None))
sys.modules["torch"] = torch
from kvcache_ops import DOMAIN
from kvcache_ops.ops._schemas import BY_DOMAIN_AND_NAME
from kvcache_ops.torch import _functions, _operator
_operator.Operator.__call__ = lambda self, *given: calls.append((self, *given)) or [None] * self._outputs
for op_type, function in (("KeyValueCache", _functions.key_value_cache),
                          ("MultiHeadAttention", _functions.multi_head_attention),
                          ("MultiHeadCacheAttention", _functions.multi_head_cache_attention)):
    calls, parameters = [], inspect.signature(function).parameters
    function(**{name: name for name in parameters})
    [(operator, inputs, attributes)] = calls
    named = lambda name: "attention_scale" if name == "scale" else name
    assert inputs == operator._inputs and attributes == [named(name) for name in operator._attributes]
    schema, required = BY_DOMAIN_AND_NAME[DOMAIN, op_type], inspect.Parameter.empty
    expected = {tensor.name: None if tensor.optional else required for tensor in schema.inputs}
    expected |= {named(a.name): required if a.default is None else a.default for a in schema.attributes
                 if a.name not in _operator.OF_FLOAT8}
    assert {name: p.default for name, p in parameters.items()} == expected and list(parameters) == list(expected)
"""


def test_torch_functions_know_every_input_and_attribute() -> None:
    """In the schema's order, with its defaults. (`make test-torch` calls them; this needs no torch.)"""
    subprocess.run([sys.executable, "-c", TORCH_STANDS_IN], check=True)


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
    """The error says which versions work, and nothing is loaded."""
    with refused("onnxruntime_version", f"onnxruntime is {version}, which is too old") as refusal:
        kvcache_ops.register(runtime(monkeypatch, version, AssertionError("it must not be asked")))
    assert "works with onnxruntime 1.20 and later" in str(refusal.value)


@pytest.mark.parametrize("version", ["1.20.1rc1", "2.0.0", "unknown"])
def test_a_runtime_that_may_work(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """The runtime is asked; the error has its words, and which versions work."""
    kvcache_ops.register(runtime(monkeypatch, version))
    error = RuntimeError("no such symbol")
    with refused("registration", "no such symbol; kvcache_ops works with onnxruntime") as refusal:
        kvcache_ops.register(runtime(monkeypatch, version, error))
    assert refusal.value.__cause__ is error


def test_nothing_else_is_imported() -> None:
    """Neither runtime nor graph nor tensor library."""
    code = "import kvcache_ops, sys; print({'onnx', 'onnxruntime', 'torch', 'yaml'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


@pytest.mark.parametrize("limit", [name for name, found in _native.instruction_sets() if found])
def test_instruction_sets_have_an_upper_limit(limit: str) -> None:
    """A process keeps to KVCACHE_INSTRUCTION_SET. (That each set gives the bits that it must: Rust.)"""
    code = "from kvcache_ops import _native; print(_native.instruction_set()[0])"
    environment = os.environ | {"KVCACHE_INSTRUCTION_SET": limit}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == limit


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
    """The library stays loaded: sessions point to what it made once for the process."""
    model = node_model(node_types(FLOAT, FLOAT), {})
    command = [sys.executable, "-c", LOADED_AFTER_A_SESSION, kvcache_ops.library_path()]
    run = subprocess.run(command, input=model, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr.decode()

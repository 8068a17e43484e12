"""`python -m kvcache_ops doctor`: the machine, and whether the operators compute known cases correctly."""

from __future__ import annotations

import importlib
import os
import platform
import time
from collections.abc import Callable, Collection, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from kvcache_ops import _model_cache, _native
from kvcache_ops._errors import KvCacheError
from kvcache_ops.cli._selftest import Call, results, through_onnxruntime, through_run
from kvcache_ops.ops._nodes import check_model
from kvcache_ops.ops._registration import check_version, library_path, supported_versions


def doctor(models: Sequence[str]) -> int:
    """Prints a line for each thing found; returns 1 if one of them does not work, else 0."""
    _say("kvcache_ops", f"{_native.__version__}, {library_path()}")
    system = f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}"
    _say("python", f"{platform.python_version()}, numpy {np.__version__}, {system}")
    kernel, missing = _native.cuda()
    sets = dict(_native.instruction_sets())
    every = ", ".join(f"{name}{'' if found else ' (not here)'}" for name, found in sets.items())
    _say("instruction sets", f"{every}; calls use {kernel}, products up to {_native.instruction_set()[0]}")
    _say("their limit", _limit(sets))
    _say("CUDA", "found" if missing is None else f"not found: {missing}")
    _say("cache types", ", ".join(dict.fromkeys(t2 for _, _, t2, _ in _native.legal_types())))
    for package in ("onnx", "torch"):
        _say(package, _installed(package) or "not installed (optional)")
    works = _self_test("self-test, run()", lambda: through_run)
    runtime, found = _onnxruntime()
    _say("onnxruntime", found)
    if runtime is not None:
        works &= _self_test("self-test, onnxruntime", lambda: through_onnxruntime(runtime))
    else:
        works &= not _installed("onnxruntime")
    for model in models:
        works &= _check_model(model)
    try:
        for line in _model_cache.contents():
            _say("built models", line)
    except OSError as error:
        _say("built models", str(error))
    _say("result", "everything that is here works" if works else "something does not work, see above")
    return 0 if works else 1


def _limit(sets: Collection[str]) -> str:
    """What the environment says of the best instruction set that may be used."""
    variable = _native.instruction_set()[1]
    given = os.environ.get(variable)
    if not given:
        return f"none; {variable} can name one"
    return f"{variable} is {given!r}" + ("" if given in sets else ", which is no instruction set and limits nothing")


def _say(name: str, text: str) -> None:
    print(f"{name + ':':<24}{text}")


def _installed(package: str) -> str | None:
    """The version of a package, without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _onnxruntime() -> tuple[Any, str]:
    """ONNX Runtime, if it is there and supported, and what is to say about it."""
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        return None, f"not found ({error}); kvcache_ops works with {supported_versions()}"
    try:
        check_version(runtime.__version__)
    except KvCacheError as error:
        return None, str(error)
    return runtime, f"{runtime.__version__}, supported; providers {', '.join(runtime.get_available_providers())}"


def _check_model(model: str) -> bool:
    """Says whether the library knows the attributes of a model, and whether it writes what the caller keeps."""
    try:
        check_model(model)
    except Exception as error:
        _say("model", f"{model}: {error}")
        return False
    _say("model", f"{model}: our nodes' attributes are known, their states are its inputs")
    return True


def _self_test(name: str, made: Callable[[], Call]) -> bool:
    """Makes the calls of the kit's cases, and says how many pass."""
    start, failures, cases = time.perf_counter(), [], []
    try:
        cases = results(made())
        failures = [f"  {case.name}: {case.difference or case.reason}" for case in cases if case.verdict != "passed"]
    except Exception as error:
        failures = [f"  the cases of the package cannot be made: {type(error).__name__}: {error}"]
    seconds = time.perf_counter() - start
    passed = sum(case.verdict == "passed" for case in cases)
    _say(name, f"{passed} of {len(cases)} golden cases pass, {seconds:.2f} s")
    for failure in failures:
        print(failure)
    return not failures

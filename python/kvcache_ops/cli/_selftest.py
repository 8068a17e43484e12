"""Some golden cases of the conformance kit: do the operators compute the right results here?"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib.resources import files
from typing import Any

from numpy.typing import NDArray

from kvcache_ops import _native
from kvcache_ops.conformance._library import run_session
from kvcache_ops.conformance._report import CaseResult
from kvcache_ops.conformance._run import run_suites
from kvcache_ops.ops._cache_spec import type_name
from kvcache_ops.ops._nodes import DOMAIN
from kvcache_ops.ops._registration import register
from kvcache_ops.ops._schemas import BY_DOMAIN_AND_NAME

FILE = "selftest.json"
"""A model of one node for the calls of each case, by `key`. `python/selftest/write_models.py` writes it."""

SUITES = {"key-value-cache": "decode-mode", "attention": "chunked-f"}
"""By suite, what the names of the cases contain: of each kind of cache, both modes, several layouts; and attention."""

Call = Callable[[str, dict[str, int], dict[str, NDArray[Any]], NDArray[Any] | None, NDArray[Any] | None], Any]
"""An operator as the kit calls implementations of attention."""


def key(op_type: str, attributes: Mapping[str, int], types: Mapping[str, str]) -> str:
    """What a model of one node depends on, as a short text; an attribute with its default is not in the model."""
    defaults = {attribute.name: attribute.default for attribute in BY_DOMAIN_AND_NAME[DOMAIN, op_type].attributes}
    given = {name: value for name, value in attributes.items() if value != defaults[name]}
    return sha256(json.dumps([op_type, given, types], sort_keys=True).encode()).hexdigest()[:16]


def results(call: Call) -> list[CaseResult]:
    """The result of every case."""

    def named(*given: Any) -> Any:
        return call(*given) if isinstance(given[0], str) else call("KeyValueCache", *given)

    reports = [run_suites(named, [suite], int4="packed", filter=word) for suite, word in SUITES.items()]
    return [case for report in reports for case in report.cases]


def through_run(op_type: str, attributes: dict[str, int], inputs: dict[str, Any], cache: Any, scale: Any) -> Any:
    """A call without ONNX Runtime."""
    given = inputs | {"cache": cache, "scale": scale}
    return _native.run(op_type, attributes, [given.get(name) for name in _native.input_names(op_type)], [])


def through_onnxruntime(onnxruntime: Any) -> Call:
    """Calls in sessions of it."""
    models = json.loads((files("kvcache_ops.cli") / FILE).read_text(encoding="utf-8"))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    register(options)

    def call(op_type: str, attributes: dict[str, int], inputs: dict[str, Any], cache: Any, scale: Any) -> Any:
        arrays = inputs | {name: x for name, x in (("cache", cache), ("scale", scale)) if x is not None}
        fed = {name: (type_name(array.dtype), list(array.shape), array) for name, array in arrays.items()}
        if cache is not None and cache.dtype == "uint8":
            fed["cache"] = ("int4", [*cache.shape[:-1], 2 * cache.shape[-1]], cache)
        model = b64decode(models[key(op_type, attributes, {name: element for name, (element, _, _) in fed.items()})])
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return run_session(session, fed)

    return call

"""A few golden cases of the conformance kit: whether the operators compute here what they must, to the bit."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcache_ops import _native
from kvcache_ops._cache import ONNX_TYPES, numpy_type
from kvcache_ops._registration import register
from kvcache_ops.conformance._call import Sent, packed_shape

Arrays = dict[str, NDArray[Any]]

FILE = "selftest.json"
"""A model of one node for each case, by its name in its suite. `python/selftest/write_models.py` writes it."""

CASES = {
    "key-value-cache": (
        *("decode-mode0-f32-f32", "decode-mode1-f16-f16", "decode-mode1-int8-int8", "decode-mode0-f32-int8-f32"),
        *("decode-mode1-f16-int8-f16", "decode-mode0-f32-int4-f32", "decode-mode1-f16-int4-f16"),
    ),
    "attention": ("chunked-f32-int8-f16", "chunked-f16-int4-f32"),
}
"""One of each kind of cache, both modes, three layouts; and attention."""
_COMMON = {
    "key-value-cache": "decode-mode",
    "attention": "chunked-f",
}  # to all names of a suite, so that it is read once


@dataclass(frozen=True)
class Case:
    """Calls in turn on one cache; of each, the inputs, and the outputs and the cache that must come out."""

    name: str
    op_type: str
    attributes: dict[str, int]
    model: bytes
    state: Arrays
    inputs: list[Arrays]
    expected: list[Arrays]

    def copied_state(self) -> Arrays:
        """`cache` and, if there is one, `scale`, as they are before the first call."""
        return {name: array.copy() for name, array in self.state.items()}

    def compare(self, step: int, got: Arrays) -> None:
        """Raises AssertionError with the first array that differs. Attention may do so by the case's tolerance, from
        what products of code and scale give that are rounded, or from what unrounded ones give."""
        expected = dict(self.expected[step])
        tolerance = expected.pop("tolerance", None)
        unrounded, its_tolerance = (expected.pop(f"unrounded.{name}", None) for name in ("attn_output", "tolerance"))
        for name, array in expected.items():
            if name == "attn_output" and tolerance is not None:
                output = got[name].astype(np.float64)
                same = np.abs(output - array) <= tolerance
                if not np.all(same) and unrounded is not None and its_tolerance is not None:
                    same = np.abs(output - unrounded) <= its_tolerance
            else:
                same = got[name].reshape(array.shape).view(np.uint8) == array.view(np.uint8)
            if not np.all(same):
                count = np.count_nonzero(~same)
                raise AssertionError(f"{self.name}, step {step}: {name} differs in {count} places")


def cases() -> Iterator[Case]:
    """Every case of `CASES`."""
    models = json.loads((files("kvcache_ops") / FILE).read_text(encoding="utf-8"))
    for suite, names in CASES.items():
        found = {case["name"]: case for case in _native.conformance_cases(suite, None, _COMMON[suite], (0, 0))}
        for name in names:
            case = found[name]
            yield Case(
                name,
                case["op_type"],
                case["attributes"],
                b64decode(models[name]),
                {key: _array(case[key]) for key in ("cache", "scale") if case[key] is not None},
                [_arrays(inputs) for inputs, _, _ in case["calls"]],
                [_arrays(after) for _, after, _ in case["calls"]],
            )


def _arrays(tensors: dict[str, Sent]) -> Arrays:
    return {name: _array(tensor) for name, tensor in tensors.items()}


def _array(tensor: Sent) -> NDArray[Any]:
    """An array of a tensor; of int4, its bytes."""
    element, shape, data = tensor
    if element == "int4":
        return np.frombuffer(data, np.uint8).reshape(packed_shape(shape)).copy()
    return np.frombuffer(data, numpy_type(element)).reshape(shape).copy()


def through_run(case: Case) -> None:
    """Makes the calls of a case without ONNX Runtime. Raises KvCacheError or AssertionError."""
    state = case.copied_state()
    names = _native.input_names(case.op_type)
    for step, inputs in enumerate(case.inputs):
        given = inputs | state
        outputs = _native.run(case.op_type, case.attributes, [given.get(name) for name in names], [])
        case.compare(step, dict(zip(_native.output_names(case.op_type), outputs)) | state)


def through_onnxruntime(case: Case, onnxruntime: Any) -> None:
    """Makes the calls of a case in a session. Raises what ONNX Runtime raises, or AssertionError."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    register(options)
    session = onnxruntime.InferenceSession(case.model, options, providers=["CPUExecutionProvider"])
    state = case.copied_state()
    binding = session.io_binding()
    element_types = {numpy_type(name): code for name, code in ONNX_TYPES.items() if name in np.sctypeDict}
    for step, inputs in enumerate(case.inputs):
        for name, array in (inputs | state).items():
            shape, element_type = array.shape, element_types.get(array.dtype)
            if element_type is None:  # packed int4
                shape, element_type = (*shape[:-1], 2 * shape[-1]), ONNX_TYPES["int4"]
            binding.bind_input(name, "cpu", 0, element_type, shape, array.ctypes.data)
        names = _native.output_names(case.op_type)
        for name in names:
            binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        case.compare(step, dict(zip(names, binding.copy_outputs_to_cpu())) | state)

"""The cases in the layout of ONNX's backend tests, which backend_tests.md describes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from kvcache_ops import _native
from kvcache_ops._errors import KvCacheError
from kvcache_ops._optional import load
from kvcache_ops.conformance._call import Sent
from kvcache_ops.conformance._models import node_model, operator
from kvcache_ops.ops._cache_spec import ONNX_TYPES, numpy_type

Tensors = dict[str, Sent]


def export_onnx(
    folder: str | os.PathLike[str],
    suites: Sequence[str],
    *,
    filter: str = "",
    cases: str | None = None,
    random: int = 0,
    seed: int = 0,
) -> str:
    """Writes the cases of these suites into a folder that has no tests yet; returns how many there are.

    Needs the package onnx. Raises KvCacheError: "package_missing", "export" if a file cannot be written, and what `run`
    raises about cases.
    """
    load("onnx", "export_onnx()")
    home, written = Path(folder), {"node": 0, "refused": 0}
    found = {suite: _native.conformance_cases(suite, cases, filter, (random, seed)) for suite in suites}
    if not any(found.values()):
        raise KvCacheError(f"no case has a name that contains {filter!r}", "no_case")
    try:
        home.mkdir(parents=True, exist_ok=True)
        for part in written:
            (home / part).mkdir()
        readme = files("kvcache_ops.conformance").joinpath("backend_tests.md").read_text(encoding="utf-8")
        (home / "README.md").write_text(readme, encoding="utf-8")
        for suite, of_suite in found.items():
            for case in of_suite:
                for part, count in _write_case(home, suite, case).items():
                    written[part] += count
    except OSError as error:
        raise KvCacheError(f"the tests cannot be written: {error}", "export") from error
    return f"{written['node']} tests and {written['refused']} of refusals in {home}"


def _write_case(home: Path, suite: str, case: _native.ConformanceCase) -> dict[str, int]:
    """Writes the calls of a case, one test for each model; returns how many of each part."""
    name = re.sub(r"[^0-9A-Za-z]", "_", f"test_{suite}_{case.name}")
    state = {name: sent for name, sent in (("cache", case.cache), ("scale", case.scale)) if sent is not None}
    groups: dict[str, dict[Any, list[_Call]]] = {"node": {}, "refused": {}}
    for inputs, after, error in case.calls():
        call = _Call(case, inputs, dict(state), after, error)
        groups["refused" if after is None else "node"].setdefault(call.signature, []).append(call)
        state = call.state_after
    for part, by_signature in groups.items():
        for number, calls in enumerate(by_signature.values()):
            test = home / part / (name if number == 0 else f"{name}_{number + 1}")
            test.mkdir()
            (test / "model.onnx").write_bytes(_model(case, calls))
            if case.any_nan:
                (test / "any_nan.txt").write_text("A NaN equals any other NaN.\n")
            for index, call in enumerate(calls):
                call.write(test / f"test_data_set_{index}")
    return {part: len(by_signature) for part, by_signature in groups.items()}


class _Call:
    """A call with the state before it, so that it can run alone."""

    def __init__(
        self,
        case: _native.ConformanceCase,
        inputs: Tensors,
        state: Tensors,
        after: Tensors | None,
        error: tuple[str, list[str]] | None,
    ) -> None:
        self.operator = operator(case.op_type, inputs)
        given = inputs | state
        self.inputs: Tensors = {
            tensor.name: given[tensor.name] for tensor in self.operator.inputs if tensor.name in given
        }
        self.after, self.error = after, error
        self.state_after: Tensors = state if after is None else {name: after[name] for name in state}

    @property
    def signature(self) -> tuple[Any, ...]:
        """The names, types and ranks of the inputs: calls that differ in these need models of their own."""
        return tuple((name, element, len(shape)) for name, (element, shape, _) in self.inputs.items())

    @property
    def outputs(self) -> Tensors:
        """What a call that succeeds gives, in the type of its first input."""
        if self.after is None:
            return {}
        t1 = next(iter(self.inputs.values()))[0]
        given = {tensor.name: tensor for tensor in self.operator.outputs if tensor.name in self.after}
        is_rounded = {name: t1 != "int8" and tensor.type != "float32" for name, tensor in given.items()}
        return {
            name: _rounded(self.after[name], t1) if rounds else self.after[name] for name, rounds in is_rounded.items()
        }

    def write(self, folder: Path) -> None:
        """Writes the data set."""
        folder.mkdir()
        for index, (name, tensor) in enumerate(self.inputs.items()):
            _write(folder / f"input_{index}.pb", name, tensor)
            if name in self.state_after:
                _write(folder / f"inplace_{index}.pb", name, self.state_after[name])
        for index, (name, tensor) in enumerate(self.outputs.items()):
            _write(folder / f"output_{index}.pb", name, tensor)
        tolerances = ("attn_output", "tolerance"), ("attention_mass", "mass_tolerance")
        for prefix, (index, (name, tolerance)) in product(("", "unrounded."), enumerate(tolerances)):
            if self.after is not None and f"{prefix}{tolerance}" in self.after:
                _write(folder / f"{prefix}exact_{index}.pb", name, self.after[f"{prefix}{name}"])
                _write(folder / f"{prefix}tolerance_{index}.pb", name, self.after[f"{prefix}{tolerance}"])
        if self.error is not None:
            kind, mentions = self.error
            (folder / "expected_error.txt").write_text("".join(f"{line}\n" for line in [kind, *mentions]))


def _model(case: _native.ConformanceCase, calls: list[_Call]) -> bytes:
    """The model of calls of one signature, with the lengths that all of them have."""
    first = calls[0]
    # A refused call has no outputs: in static batching they would have four axes.
    rank = 3 if "seqstarts" in first.inputs else 4
    outputs = list(first.outputs) or first.operator.required_outputs
    shapes: dict[str, list[int | None]] = {name: [None] * rank for name in outputs}
    for index, call in enumerate(calls):
        for name, (_, shape, _) in (call.inputs | call.outputs).items():
            common = shape if index == 0 else shapes[name]
            shapes[name] = [a if a == b else None for a, b in zip(common, shape)]
    types = {name: element for name, (element, _, _) in first.inputs.items()}
    domain = first.operator.domains[0]
    more: dict[str, Any] = dict(domain=domain, outputs=outputs, shapes=shapes, about=case.about)
    model = node_model(first.operator, case.attributes, types, **more)
    serialized: bytes = model.SerializeToString()
    return serialized


def _rounded(tensor: Sent, t1: str) -> Sent:
    """A float32 tensor in another float type; one of another type as it is."""
    import numpy as np

    element, shape, data = tensor
    if element != "float32":
        return tensor
    with np.errstate(over="ignore"):
        return t1, shape, np.frombuffer(data, np.float32).astype(numpy_type(t1)).tobytes()


def _write(file: Path, name: str, tensor: Sent) -> None:
    """Writes a tensor under a name."""
    element, shape, data = tensor
    helper = load("onnx.helper", "export_onnx()")
    file.write_bytes(helper.make_tensor(name, ONNX_TYPES[element], shape, data, raw=True).SerializeToString())

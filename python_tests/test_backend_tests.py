"""The conformance suite in the layout of ONNX's backend tests, as `--export-onnx` writes it."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kvcache_ops import KvCacheError, unpack_int4
from kvcache_ops.conformance import SUITES, Int4Array
from kvcache_ops.conformance._export import export_onnx
from kvcache_ops.conformance._run import run_suites
from onnx import TensorProto, numpy_helper

from compare import Arrays
from sessions import attributes_of


def read(path: Path) -> tuple[str, np.ndarray]:
    """The name of a tensor, and its elements in memory of their own; int4 as the kit has it."""
    tensor = onnx.load_tensor(str(path))
    if tensor.data_type != TensorProto.INT4:
        return tensor.name, numpy_helper.to_array(tensor).copy()
    elements = unpack_int4(np.frombuffer(tensor.raw_data, np.uint8))[: int(np.prod(tensor.dims))]
    return tensor.name, elements.reshape(tensor.dims).copy().view(Int4Array)


def read_all(folder: Path, kind: str) -> Arrays:
    """The tensors of one kind, in their order."""
    files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.removeprefix(f"{kind}_")))
    return dict(map(read, files))


def key(op_type: str, arrays: Arrays) -> str:
    """What tells calls apart: the operator, and the inputs to the last byte."""
    digest = sha256(op_type.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape} {isinstance(array, Int4Array)}".encode() + array.tobytes())
    return digest.hexdigest()


class Exported:
    """The data sets of a folder as an implementation: it gives what they say."""

    def __init__(self, home: Path) -> None:
        self.sets: dict[str, list[tuple[dict[str, int], Path]]] = {}
        for part in ("node", "refused"):
            tests = sorted(path.parent for path in home.glob(f"{part}/*/model.onnx"))
            assert tests
            for test in tests:
                self._add(test)

    def _add(self, test: Path) -> None:
        model = onnx.load(str(test / "model.onnx"))
        if test.parent.name == "node":
            onnx.checker.check_model(model)
        (node,) = model.graph.node
        attributes = attributes_of(node)
        folders = [test / f"test_data_set_{i}" for i in range(len(list(test.glob("test_data_set_*"))))]
        for folder in folders:
            inputs = read_all(folder, "input")
            assert list(inputs) == [value.name for value in model.graph.input]
            for value, array in zip(model.graph.input, inputs.values()):
                dims = value.type.tensor_type.shape.dim
                assert all(not d.HasField("dim_value") or d.dim_value == n for d, n in zip(dims, array.shape))
            self.sets.setdefault(key(node.op_type, inputs), []).append((attributes, folder))

    def __call__(
        self, op_type: str, attributes: dict[str, int], inputs: Arrays, cache: Any, scale: Any, outputs: Any = None
    ) -> Any:
        """What the data set of these inputs says."""
        state = {name: array for name, array in (("cache", cache), ("scale", scale)) if array is not None}
        # An attribute that a node has not got has its default.
        (folder,) = {
            folder
            for given, folder in self.sets[key(op_type, inputs | state)]
            if all(attributes[name] == value for name, value in given.items())
        }
        if (folder / "expected_error.txt").exists():
            kind, *mentions = (folder / "expected_error.txt").read_text().splitlines()
            assert not list(folder.glob("output_*.pb"))
            raise KvCacheError(" ".join(mentions), kind)
        after = read_all(folder, "inplace")
        assert after.keys() == state.keys()
        return (*read_all(folder, "output").values(), after.get("cache"), after.get("scale"))


@pytest.mark.parametrize(("suite", "word"), list(zip(SUITES, ("f16", "f16", "mask"))))
def test_what_is_exported_is_the_suite(suite: str, word: str, tmp_path: Path) -> None:
    """Models, inputs, outputs, what is left in place, and refusals with their texts: the kit finds nothing wrong.

    That the cases pass, test_conformance_command.py tells.
    """
    said = export_onnx(tmp_path, [suite], filter=word)
    assert said.endswith(f" in {tmp_path}") and (tmp_path / "README.md").read_text().startswith("# ")
    exported = Exported(tmp_path)
    named = exported if suite == "attention" else lambda *call: exported("KeyValueCache", *call)
    report = run_suites(named, [suite], int4="unpacked", filter=word, messages=True)
    report.raise_for_failures()
    assert report.passed == len(report.cases) > 50

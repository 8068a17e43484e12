"""The conformance suite in the layout of ONNX's backend tests, as `--export-onnx` writes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from kvcache_ops.conformance import SUITES
from kvcache_ops.conformance._export import export_onnx
from onnx import TensorProto, numpy_helper

from compare import assert_same_arrays, assert_same_bits, assert_within
from kvcache import NUMPY_TYPES
from node import RUNTIME, run_node, session_of


@pytest.fixture(scope="module", params=SUITES)
def tests(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """The folders of both parts, of a suite."""
    folder = tmp_path_factory.mktemp("tests")
    said = export_onnx(folder, [request.param])
    found = {part: sorted(path.parent for path in folder.glob(f"{part}/*/model.onnx")) for part in ("node", "refused")}
    assert all(found.values()) and (folder / "README.md").read_text().startswith("# ")
    assert said == f"{len(found['node'])} tests and {len(found['refused'])} of refusals in {folder}"
    return found


def read(path: Path) -> tuple[TensorProto, np.ndarray]:
    """A tensor, and its elements in memory of their own; int4 as packed bytes."""
    tensor = onnx.load_tensor(str(path))
    if tensor.data_type == TensorProto.INT4:
        return tensor, np.frombuffer(tensor.raw_data, NUMPY_TYPES[TensorProto.INT4]).copy()
    return tensor, numpy_helper.to_array(tensor).copy()


def read_all(folder: Path, kind: str) -> dict[int, tuple[TensorProto, np.ndarray]]:
    """The tensors of one kind, by number."""
    return {int(path.stem.removeprefix(f"{kind}_")): read(path) for path in folder.glob(f"{kind}_*.pb")}


def load(test: Path) -> onnx.ModelProto:
    """The model; runtimes that crash on an empty name get a constant without elements."""
    model = onnx.load(str(test / "model.onnx"))
    if RUNTIME < (1, 24):
        for i, name in enumerate(model.graph.node[0].input):
            if not name:
                model.graph.node[0].input[i] = f"left_out_{i}"
                model.graph.initializer.append(numpy_helper.from_array(np.zeros(0, np.float16), f"left_out_{i}"))
    return model


class Call:
    """A data set: the arrays of the inputs, and what they must be after the call."""

    def __init__(self, model: onnx.ModelProto, folder: Path) -> None:
        self.folder = folder
        inputs = read_all(folder, "input")
        assert sorted(inputs) == list(range(len(model.graph.input))), "an input for each of the model's"
        assert [inputs[k][0].name for k in sorted(inputs)] == [value.name for value in model.graph.input]
        for value, k in zip(model.graph.input, sorted(inputs)):
            declared = value.type.tensor_type
            assert declared.elem_type == inputs[k][0].data_type
            for dim, extent in zip(declared.shape.dim, inputs[k][0].dims, strict=True):
                assert not dim.HasField("dim_value") or dim.dim_value == extent
        self.int4_shape = next((tuple(x.dims) for x, _ in inputs.values() if x.data_type == TensorProto.INT4), None)
        self.inputs = {tensor.name: array for tensor, array in inputs.values()}
        in_place = read_all(folder, "inplace")
        assert all(inputs[k][0].name == tensor.name for k, (tensor, _) in in_place.items())
        after = {tensor.name: array for tensor, array in in_place.values()}
        assert after.keys() == self.inputs.keys() & {"cache", "scale"}
        self.after = {name: after.get(name, array.copy()) for name, array in self.inputs.items()}

    def run(self, model: onnx.ModelProto) -> list[np.ndarray]:
        """The outputs; the inputs are the arrays themselves."""
        return run_node(session_of(model.SerializeToString()), self.inputs, self.int4_shape)


def data_sets(test: Path) -> list[Path]:
    """The folders of the data sets, which are numbered without a gap."""
    folders = [test / f"test_data_set_{i}" for i in range(len(list(test.glob("test_data_set_*"))))]
    assert folders and all(folder.is_dir() for folder in folders)
    return folders


def test_calls_give_the_outputs_and_leave_behind_the_in_place_inputs(tests: dict[str, list[Path]]) -> None:
    """All calls of every twelfth test: that the cases pass, test_conformance_command.py tells."""
    for test in tests["node"][::12]:
        onnx.checker.check_model(onnx.load(str(test / "model.onnx")))
        model = load(test)
        any_nan = (test / "any_nan.txt").exists()
        for folder in data_sets(test):
            call, what = Call(model, folder), f"{test.name}/{folder.name}"
            got = call.run(model)
            outputs = read_all(folder, "output")
            assert [outputs[k][0].name for k in sorted(outputs)] == [value.name for value in model.graph.output]
            for k, (tensor, expected) in outputs.items():
                if tensor.name == "attn_output":
                    assert got[k].dtype == expected.dtype
                    pairs = [
                        [read(folder / f"{prefix}{kind}_{k}.pb")[1] for kind in ("exact", "tolerance")]
                        for prefix in ("", "unrounded.")
                        if (folder / f"{prefix}exact_{k}.pb").exists()
                    ]
                    assert_within(f"{what}: {tensor.name}", got[k], *pairs)
                    assert_within(f"{what}: rounded", expected, pairs[0])
                else:
                    assert_same_bits(f"{what}: {tensor.name}", got[k], expected, any_nan)
            for name, array in call.inputs.items():
                assert_same_bits(f"{what}: {name}", array, call.after[name], any_nan)


def test_illegal_calls_are_refused_and_change_nothing(tests: dict[str, list[Path]]) -> None:
    """Every fourth of them, with the texts that are expected."""
    for test in tests["refused"][::4]:
        model = load(test)
        for folder in data_sets(test):
            call = Call(model, folder)
            assert_same_arrays(call.after, call.inputs)
            with pytest.raises(Exception) as refusal:
                call.run(model)
            _kind, *mentions = (folder / "expected_error.txt").read_text().splitlines()
            assert all(mention in str(refusal.value) for mention in mentions), (folder, mentions, refusal.value)
            assert_same_arrays(call.inputs, call.after)
            assert not list(folder.glob("output_*.pb"))

"""The node in graphs of every kind, on every optimization level: what surrounds it changes no bit of what it does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from compare import assert_same_arrays, assert_same_bits
from graph import IR_VERSION, OPSET
from kvcache import DOMAIN, create_session
from node import INPUTS, quiet_options
from setting import HALF, INT8, Setting, one_call

SETTING = Setting(HALF, INT8, HALF, quant_bit=8, num_layer=2, layer_idx=1, cache_mode=1, page_size=3, num_repeat=2)
LEVELS = [
    onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
]
INPUT_TYPES = SETTING.types()
KEY_AND_VALUE = ("key", "value")

pytestmark = pytest.mark.runtime


class Example:
    """A call of three sequences and what the node makes of it by itself, which the kit compares with the oracle."""

    def __init__(self) -> None:
        self.inputs, self.before = one_call(SETTING, [5, 1, 2])
        self.expected = self.before.copy()
        self.outputs = SETTING.run(self.inputs, self.expected)

    def check(
        self, session: onnxruntime.InferenceSession, extra: dict[str, np.ndarray] | None = None
    ) -> list[np.ndarray]:
        """Runs the session, whose first outputs are key and value, on a copy of the memory: all of its outputs."""
        memory = self.before.copy()
        fed = {value.name for value in session.get_inputs()}
        feeds = {name: x for name, x in (self.inputs | memory.arrays).items() if name in fed}
        outputs = session.run(None, feeds | (extra or {}))
        for name, got, expected in zip(KEY_AND_VALUE, outputs, self.outputs):
            assert_same_bits(name, got, expected)
        assert_same_arrays(memory.arrays, self.expected.arrays)
        return outputs


@pytest.fixture
def example() -> Example:
    """A fresh call."""
    return Example()


def the_node() -> NodeProto:
    """The node, whose inputs and outputs have the operator's names."""
    return helper.make_node("KeyValueCache", INPUTS, KEY_AND_VALUE, name="cached", domain=DOMAIN, **SETTING.attributes)


def value_infos(types: dict[str, int], shape: list | None = None) -> list[ValueInfoProto]:
    """Declarations of the names, each of its type."""
    return [helper.make_tensor_value_info(name, element_type, shape) for name, element_type in types.items()]


def outputs_named(*names: str) -> list[ValueInfoProto]:
    """Declarations of outputs of T1."""
    return value_infos(dict.fromkeys(names, SETTING.t1))


def model(
    nodes: list[NodeProto],
    inputs: list[ValueInfoProto],
    outputs: list[ValueInfoProto],
    *,
    initializers: list[TensorProto] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
) -> bytes:
    """A model of these nodes."""
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers or [])
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1), helper.make_opsetid("local", 1)]
    made = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets, functions=functions or [])
    return made.SerializeToString()


def session_at(level: onnxruntime.GraphOptimizationLevel, made: bytes) -> onnxruntime.InferenceSession:
    """A session of the model on that level."""
    options = quiet_options()
    options.graph_optimization_level = level
    return create_session(made, options)


@pytest.mark.parametrize("format", ["ONNX", "ORT"])
def test_a_model_that_the_runtime_saved(example: Example, format: str, tmp_path: Path) -> None:
    """An optimized model, saved in either format, loads and works."""
    saved = tmp_path / "saved"
    options = quiet_options()
    options.optimized_model_filepath = str(saved)
    options.add_session_config_entry("session.save_model_format", format)
    create_session(SETTING.model(), options)
    example.check(create_session(saved.read_bytes(), quiet_options()))


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_all_read_inputs_as_initializers(example: Example, level: onnxruntime.GraphOptimizationLevel) -> None:
    """Constants in all places but the in-out ones: the node is not folded away, and stores each time."""
    constants = [numpy_helper.from_array(np.asarray(x), name) for name, x in example.inputs.items()]
    in_out = value_infos({name: INPUT_TYPES[name] for name in ("cache", "scale")})
    made = model([the_node()], in_out, outputs_named(*KEY_AND_VALUE), initializers=constants)
    session = session_at(level, made)
    for _ in range(2):
        example.check(session)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_a_branch_of_an_if(example: Example, level: onnxruntime.GraphOptimizationLevel) -> None:
    """A node in a branch works on the cache of the graph around it when the branch is taken, and only then."""
    passed_on = [helper.make_node("Identity", [f"current_{name}"], [f"passed_{name}"]) for name in KEY_AND_VALUE]
    choice = helper.make_node(
        "If",
        ["condition"],
        ["chosen_key", "chosen_value"],
        then_branch=helper.make_graph([the_node()], "cached", [], outputs_named(*KEY_AND_VALUE)),
        else_branch=helper.make_graph(passed_on, "passed", [], outputs_named("passed_key", "passed_value")),
    )
    inputs = value_infos(INPUT_TYPES) + value_infos({"condition": TensorProto.BOOL}, [])
    session = session_at(level, model([choice], inputs, outputs_named("chosen_key", "chosen_value")))
    example.check(session, {"condition": np.array(True)})

    memory = example.before.copy()
    feeds = example.inputs | memory.arrays | {"condition": np.array(False)}
    key, _ = session.run(None, feeds)
    assert_same_bits("key", key, example.inputs["current_key"])
    assert_same_arrays(memory.arrays, example.before.arrays)


def test_the_body_of_a_loop(example: Example) -> None:
    """A node in a body stores in every iteration, into the cache of the graph around it. (A cache that is the state of
    a Scan or Loop may be a copy, which the operator cannot see.)"""
    scalars = value_infos({"i": TensorProto.INT64, "go_on": TensorProto.BOOL}, [])
    outputs = value_infos({"still": TensorProto.BOOL}, []) + outputs_named(*KEY_AND_VALUE)
    nodes = [the_node(), helper.make_node("Identity", ["go_on"], ["still"])]
    body = helper.make_graph(nodes, "body", scalars, outputs)
    loop = helper.make_node("Loop", ["count", "condition"], ["keys", "values"], body=body)
    inputs = value_infos(INPUT_TYPES) + value_infos({"count": TensorProto.INT64, "condition": TensorProto.BOOL}, [])
    session = create_session(model([loop], inputs, outputs_named("keys", "values")), quiet_options())
    memory = example.before.copy()
    feeds = {"count": np.array(3), "condition": np.array(True)}
    got = session.run(None, example.inputs | memory.arrays | feeds)
    for name, array, expected in zip(KEY_AND_VALUE, got, example.outputs):
        assert_same_bits(name, array, np.stack([expected] * 3))
    assert_same_arrays(memory.arrays, example.expected.arrays)


def test_a_function_of_the_model(example: Example) -> None:
    """A node in a function that the model defines."""
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    function = helper.make_function("local", "Cached", INPUTS, KEY_AND_VALUE, [the_node()], opsets)
    call = helper.make_node("Cached", INPUTS, KEY_AND_VALUE, domain="local")
    made = model([call], value_infos(INPUT_TYPES), outputs_named(*KEY_AND_VALUE), functions=[function])
    example.check(create_session(made, quiet_options()))


@pytest.mark.parametrize("opset", [11, 17, 21])
def test_default_opsets_of_exporters(example: Example, opset: int) -> None:
    """The node does not depend on the version of the default operators beside it; PMX exports have 11."""
    made = onnx.load_from_string(SETTING.model())
    made.opset_import[0].version = opset
    example.check(create_session(made.SerializeToString(), quiet_options()))

"""The node in graphs of every kind, on every optimization level: what surrounds it changes no bit of what it does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from kvcache_ops import step_indices
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.compose import add_prefix

from compare import assert_same_arrays, assert_same_bits
from graph import IR_VERSION, OPSET
from kvcache import DOMAIN, LAYOUT_AXES, create_session
from one_node import (
    FLOAT,
    HALF,
    INPUTS,
    STATIC_DOMAINS,
    STATIC_INPUTS,
    Node,
    arrays_of,
    copy_of,
    node,
    node_model,
    node_types,
    one_call,
    quiet_options,
    run_node,
    session_of,
    types_for,
)

SIZES = dict(quant_bit=8, num_layers=2, cache_mode=1, page_size=3)
STORED = node("float16", "int8", "float16", layer_idx=1, num_repeat=2, **SIZES)
LEVELS = [
    onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
]
INPUT_TYPES = STORED.types()
KEY_AND_VALUE = ("key", "value")

pytestmark = pytest.mark.runtime


class Example:
    """A call of three sequences and what the node makes of it by itself, which the kit compares with the oracle."""

    def __init__(self) -> None:
        self.inputs, self.before = one_call(STORED, [5, 1, 2])
        self.expected = copy_of(self.before)
        self.outputs = STORED.run(self.inputs, self.expected)

    def check(
        self, session: onnxruntime.InferenceSession, extra: dict[str, np.ndarray] | None = None
    ) -> list[np.ndarray]:
        """Runs the session, whose first outputs are key and value, on a copy of the memory: all of its outputs."""
        memory = copy_of(self.before)
        fed = {value.name for value in session.get_inputs()}
        feeds = {name: x for name, x in (self.inputs | arrays_of(memory)).items() if name in fed}
        outputs = session.run(None, feeds | (extra or {}))
        for name, got, expected in zip(KEY_AND_VALUE, outputs, self.outputs):
            assert_same_bits(name, got, expected)
        assert_same_arrays(arrays_of(memory), arrays_of(self.expected))
        return outputs


@pytest.fixture
def example() -> Example:
    """A fresh call."""
    return Example()


def the_node() -> NodeProto:
    """The node, whose inputs and outputs have the operator's names."""
    return helper.make_node("KeyValueCache", INPUTS, KEY_AND_VALUE, name="cached", domain=DOMAIN, **STORED.attributes)


def value_infos(types: dict[str, int], shape: list | None = None) -> list[ValueInfoProto]:
    """Declarations of the names, each of its type."""
    return [helper.make_tensor_value_info(name, element_type, shape) for name, element_type in types.items()]


def outputs_named(*names: str) -> list[ValueInfoProto]:
    """Declarations of outputs of T1."""
    return value_infos(dict.fromkeys(names, HALF))


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
    create_session(STORED.model(), options)
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
    memory = copy_of(example.before)
    feeds = {"count": np.array(3), "condition": np.array(True)}
    got = session.run(None, example.inputs | arrays_of(memory) | feeds)
    for name, array, expected in zip(KEY_AND_VALUE, got, example.outputs):
        assert_same_bits(name, array, np.stack([expected] * 3))
    assert_same_arrays(arrays_of(memory), arrays_of(example.expected))


def test_a_function_of_the_model(example: Example) -> None:
    """A node in a function that the model defines."""
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    function = helper.make_function("local", "Cached", INPUTS, KEY_AND_VALUE, [the_node()], opsets)
    call = helper.make_node("Cached", INPUTS, KEY_AND_VALUE, domain="local")
    made = model([call], value_infos(INPUT_TYPES), outputs_named(*KEY_AND_VALUE), functions=[function])
    example.check(create_session(made, quiet_options()))


# Of a float32 node of static batching.
STATIC_TYPES = dict(current_key=FLOAT, current_value=FLOAT, start_pos=TensorProto.INT64, cache=FLOAT)


def test_both_operators_are_in_one_graph() -> None:
    """One name in four domains: each node is what its domain says."""
    both = onnx.load_from_string(node_model(STATIC_TYPES, {}, domain="opmx"))
    dynamic = add_prefix(onnx.load_from_string(node_model(node_types(FLOAT, FLOAT), {})), "dynamic/")
    for field in ("node", "input", "output"):
        getattr(both.graph, field).extend(getattr(dynamic.graph, field))
    both.opset_import.append(dynamic.opset_import[1])

    current = np.ones((1, 1, 2, 8), np.float32)
    inputs = dict(
        current_key=current, current_value=-current, start_pos=np.array([1]), cache=np.zeros((1, 1, 2, 4, 2, 8), "f")
    )
    of_dynamic = dict(current_key=current[0], current_value=-current[0], cache=np.zeros((4, 1, 2, 2, 8), "f"))
    of_dynamic |= step_indices([1], [2], cachestarts=[1])._asdict()
    inputs |= {f"dynamic/{name}": array for name, array in of_dynamic.items()}
    key, _, dynamic_key, _ = run_node(session_of(both.SerializeToString()), inputs)
    assert (key.shape, dynamic_key.shape) == ((1, 2, 2, 8), (3, 2, 8))
    assert inputs["cache"][0, 0, 0, 1].all() and inputs["dynamic/cache"][3, 0, 0].all()


INDEX_SHAPES = dict(seqstarts=["batch_and_end"], kvstarts=["batch_and_end"], cachestarts=["batch"], start_pos=["batch"])
INDEX_SHAPES |= dict(max_seqlen=[], max_kvlen=[])


def inferred(stored: Node, shapes: dict[str, list]) -> dict[str, list]:
    """The shapes of the outputs of a model that declares these, as its session tells them."""
    return shapes_of(node_model(stored.types(), stored.attributes, shapes=shapes))


def shapes_of(model: bytes) -> dict[str, list]:
    """Those of a model's outputs."""
    return {output.name: output.shape for output in create_session(model, quiet_options()).get_outputs()}


def current(*shape: object) -> dict[str, list]:
    """The declared shapes of both current tensors, beside those of the indices."""
    return INDEX_SHAPES | {"current_key": list(shape), "current_value": list(shape)}


@pytest.mark.parametrize("num_repeat", [1, 4])
def test_known_sizes_are_known(num_repeat: int) -> None:
    """Heads are H * num_repeat; the number of tokens has a name of its own, the same in key and in value."""
    shapes = inferred(node(num_repeat=num_repeat), current("tokens", 3, 16))
    assert shapes["key"][1:] == [3 * num_repeat, 16] and shapes["value"] == shapes["key"]
    assert isinstance(shapes["key"][0], str) and shapes["key"][0] not in ("", "tokens")
    heads, head_dim = inferred(node(num_repeat=num_repeat), current("tokens", "heads", "head_dim"))["key"][1:]
    assert (heads == "heads") == (num_repeat == 1) and head_dim == "head_dim", "names pass through"


@pytest.mark.parametrize("cache_layout", range(len(LAYOUT_AXES)))
def test_the_cache_tells_heads_and_their_size(cache_layout: int) -> None:
    """Alone, where the current tensors are declared without a shape; full declarations of every input agree."""
    sizes = {"MaxT": "slots", "L": 1, "2": 2, "H": 5, "Dh": "head_dim"}
    stored = node(num_repeat=3, cache_layout=cache_layout)
    shapes = inferred(stored, {"cache": [sizes[axis] for axis in LAYOUT_AXES[cache_layout]]})
    assert shapes["key"][1:] == [15, "head_dim"] and shapes["value"] == shapes["key"]
    stored = node("float16", "int8", "float32", quant_bit=8, num_repeat=2, cache_layout=cache_layout)
    sizes |= {"H": 3, "Dh": 16}
    cache = [sizes[axis] for axis in LAYOUT_AXES[cache_layout]]
    shapes = inferred(stored, current("tokens", 3, 16) | {"cache": cache, "scale": [*cache[:4], 2]})
    assert shapes["key"][1:] == [6, 16]


@pytest.mark.parametrize("domain", STATIC_DOMAINS)
def test_static_batching(domain: str) -> None:
    """Names of dimensions pass through, heads are repeated, and the length of the outputs has a name of its own."""
    shapes = dict(current_key=["batch", "tokens", 2, 8], cache=["max_b", 1, 2, "max_s", 2, 8])
    types = {name: TensorProto.INT64 if name == "start_pos" else FLOAT for name in STATIC_INPUTS[:4]}
    for batch, length, *rest in shapes_of(node_model(types, dict(num_repeat=4), domain=domain, shapes=shapes)).values():
        assert (batch, rest) == ("batch", [8, 8]) and length not in ("tokens", "max_s")


@pytest.mark.parametrize("operator", ["MultiHeadAttention", "MultiHeadCacheAttention"])
def test_attention(operator: str) -> None:
    """Heads and their size are the attributes'; the number of tokens has the name that `query` gives it."""
    attributes = dict(num_heads=4, head_dim=8, num_kv_heads=2)
    for query in (["tokens", "heads", "head_dim"], [5, 4, 8], None):
        model = node_model(types_for(operator), attributes, operator=operator, shapes={"query": query})
        [[tokens, *rest]] = shapes_of(model).values()
        assert rest == [4, 8] and (tokens == query[0] if query else isinstance(tokens, str) and tokens)

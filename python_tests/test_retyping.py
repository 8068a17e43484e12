"""A float16 node whose neighbors have no float16 kernel.

Some versions of ONNX Runtime change such a node to float32 and put a Cast before every float16 input: the node would
store into a copy of the cache or of the scale, and values that were not rounded to float16. There it is refused when
the session is made; elsewhere it stores what the oracle does.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from compare import assert_same_arrays, assert_same_bits
from graph import IR_VERSION, OPSET
from kvcache import DOMAIN, ELEMENT_TYPES, create_session
from node import INPUTS, bind_inputs, node_types, quiet_options
from oracle_call import oracle_call
from ragged import RaggedCache
from setting import FLOAT, HALF, INT4, INT8, Setting

RUNTIME = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
# These versions leave the node as it is, so it must not be refused.
KEEPS_FLOAT16 = (1, 23) <= RUNTIME < (1, 30)
DOMAINS = (DOMAIN, "pmx.dynamic_batching")
CACHES = [
    Setting(HALF, HALF),
    Setting(HALF, FLOAT),
    Setting(HALF, INT8, HALF, quant_bit=8),
    Setting(HALF, INT8, FLOAT, quant_bit=8),
    Setting(HALF, INT4, HALF, quant_bit=4),
    Setting(HALF, INT4, FLOAT, quant_bit=4),
]
LEVELS = ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"]
# What a neighbor takes beside the tensor, by its operator: none of them has a float16 kernel.
OPERANDS = {"MatMul": "matrix", "Einsum": "matrix", "Add": "addend", "Mul": "factor"}
CASTS = {"ToFloat16": HALF, "ToFloat32": FLOAT}


def node_of(operator: str, name: str, result: str) -> NodeProto:
    """The neighbor that makes `result` of `name`."""
    if operator in CASTS:
        return helper.make_node("Cast", [name], [result], to=CASTS[operator])
    attributes = {"equation": "thd,de->the"} if operator == "Einsum" else {}
    return helper.make_node(operator, [name, OPERANDS.get(operator, "shape")], [result], **attributes)


class Graph:
    """The node between neighbors: operators in a row before each of its first two inputs, and behind both outputs."""

    def __init__(
        self, setting: Setting, before_key: list[str], before_value: list[str], behind: list[str], factor: float = 1.1
    ):
        random = np.random.default_rng(31)
        ragged = RaggedCache(random, [6, 5])
        self.types = node_types(setting.t1, setting.t2, setting.t3)
        self.memory = setting.memory(random, ragged.max_t)
        current = {name: x.astype(np.float16).astype(x.dtype) for name, x in setting.current(random, 5).items()}
        self.inputs = current | ragged.step(random, [0, 1], [3, 2])
        self.constants = {
            "matrix": np.eye(setting.head_dim, dtype=np.float16) * np.float16(factor),
            "addend": np.full(1, factor - 1, np.float16),
            "factor": np.full(1, factor, np.float16),
            "shape": np.array([-1, setting.num_heads, setting.head_dim]),
        }
        self.nodes: list[NodeProto] = []
        key, stored_key = self._row("current_key", self.inputs["current_key"], before_key)
        value, stored_value = self._row("current_value", self.inputs["current_value"], before_value)
        names = [key, value, *(name for name in INPUTS[2:] if name in self.types)]
        self.cached = helper.make_node("KeyValueCache", names, ["key", "value"], "cached", **setting.attributes)
        self.nodes.append(self.cached)

        self.expected = self.memory.copy()
        stored = dict(current_key=stored_key, current_value=stored_value)
        outputs = oracle_call(setting, self.inputs | stored, self.expected)
        rows = [self._row(name, output, behind) for name, output in zip(("key", "value"), outputs)]
        self.outputs = dict(rows) | {"key": outputs[0]}

    def _row(self, name: str, x: np.ndarray, operators: list[str]) -> tuple[str, np.ndarray]:
        """Adds the operators, the first on the tensor `name`: the last one's output, and what it is of `x`."""
        for operator in operators:
            self.nodes.append(node_of(operator, name, f"{name}_{operator}"))
            name = f"{name}_{operator}"
            # The result is exact in float32, so it is rounded once, in whatever type the runtime computes.
            x = x.astype(np.float32)
            if operator == "Add":
                x = x + self.constants["addend"]
            elif operator in OPERANDS:
                x = x * self.constants["factor"]
            x = x.astype(np.float32 if operator == "ToFloat32" else np.float16)
        return name, x

    def model(self, outputs: list[str], *, domain: str = DOMAIN, branch: bool = False) -> bytes:
        """The model; with `branch` all nodes are in the branch of an If."""
        self.cached.domain = domain
        types = {name: ELEMENT_TYPES[self.outputs[name].dtype] for name in outputs}
        nodes, inputs = self.nodes, self.types | {name: ELEMENT_TYPES[x.dtype] for name, x in self.constants.items()}
        if branch:
            nodes, inputs = [in_a_branch(nodes, types)], inputs | {"condition": TensorProto.BOOL}
            types = {f"chosen_{name}": element_type for name, element_type in types.items()}
        graph = helper.make_graph(nodes, "graph", declared(inputs), declared(types))
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(domain, 1)]
        return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets).SerializeToString()

    @property
    def results(self) -> list[str]:
        """What the last neighbors give."""
        return [name for name in self.outputs if name != "key"]

    def check(self, session: onnxruntime.InferenceSession) -> None:
        """A call has the oracle's outputs, and stores in the caller's own memory what the oracle stores."""
        memory = self.memory.copy()
        fed = self.inputs | self.constants | memory.arrays
        binding = session.io_binding()
        for value in session.get_inputs():
            if value.name == "condition":
                binding.bind_cpu_input(value.name, np.array(True))
            else:
                bind_inputs(binding, {value.name: fed[value.name]}, memory.int4_shape)
        names = [output.name for output in session.get_outputs()]
        for name in names:
            binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        for name, actual in zip(names, binding.copy_outputs_to_cpu()):
            assert_same_bits(name, actual, self.outputs[name.removeprefix("chosen_")])
        assert_same_arrays(memory.arrays, self.expected.arrays)


def declared(types: dict[str, int]) -> list[ValueInfoProto]:
    """Declarations of the names, each of its type."""
    return [
        helper.make_tensor_value_info(name, element_type, [] if name == "condition" else None)
        for name, element_type in types.items()
    ]


def in_a_branch(nodes: list[NodeProto], types: dict[str, int]) -> NodeProto:
    """An If whose branch that is taken has these nodes; the other one gives something else of the same types."""
    others = [helper.make_node("Cast", ["current_key"], [f"other_{name}"], to=to) for name, to in types.items()]
    other_types = {f"other_{name}": element_type for name, element_type in types.items()}
    return helper.make_node(
        "If",
        ["condition"],
        [f"chosen_{name}" for name in types],
        then_branch=helper.make_graph(nodes, "then", [], declared(types)),
        else_branch=helper.make_graph(others, "else", [], declared(other_types)),
    )


def check_stored_or_refused(graph: Graph, model: bytes) -> None:
    """Never lost in silence: a session stores rightly, or cannot be made, in words that say what to do."""
    try:
        session = create_session(model, quiet_options())
    except Exception as refusal:
        message = str(refusal)
        assert not KEEPS_FLOAT16, message
        for part in ("'cached'", "float16 node to float32", "Reshape before current_value", "key a graph output"):
            assert part in message
    else:
        graph.check(session)


@pytest.mark.parametrize("branch", [False, True], ids=["graph", "branch"])
@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("setting", CACHES, ids=str)
def test_neighbors_without_a_float16_kernel(setting: Setting, domain: str, branch: bool) -> None:
    """Each operator before the node, with each one behind it."""
    for before, behind in product(OPERANDS, OPERANDS):
        graph = Graph(setting, [before], [before], [behind])
        check_stored_or_refused(graph, graph.model(graph.results, domain=domain, branch=branch))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("branch", [False, True], ids=["graph", "branch"])
@pytest.mark.parametrize("setting", CACHES, ids=str)
@pytest.mark.parametrize("remedy", ["Reshape", "output"])
def test_what_keeps_the_node_float16_everywhere(remedy: str, setting: Setting, branch: bool, level: str) -> None:
    """A Reshape before `current_value`, or `key` as a graph output: no version refuses the node or loses its cache."""
    for operator in OPERANDS:
        row = [operator, "Reshape"] if remedy == "Reshape" else [operator]
        graph = Graph(setting, [operator], row, [operator])
        options = quiet_options()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        outputs = graph.results + (["key"] if remedy == "output" else [])
        graph.check(create_session(graph.model(outputs, branch=branch), options))


@pytest.mark.parametrize("setting", [Setting(FLOAT, FLOAT), Setting(FLOAT, INT8, FLOAT, quant_bit=8)], ids=str)
@pytest.mark.parametrize("operator", OPERANDS)
def test_a_float32_node_among_float16_ones(operator: str, setting: Setting) -> None:
    """A node that is float32 in the model is not refused, though the runtime has changed its neighbors to float32."""
    row = ["ToFloat16", operator, "ToFloat32"]
    # All values are exact in float16, as the runtime leaves out casts beside its own, and with them a rounding.
    graph = Graph(setting, row, row, ["ToFloat16", operator], factor=1.0)
    graph.check(create_session(graph.model(graph.results), quiet_options()))

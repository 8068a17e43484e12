"""Float16 nodes whose neighbors have no float16 kernel.

Some versions of ONNX Runtime insert casts: they change such a node to float32 and put a Cast before every float16
input. The node would store into a copy of the cache or of the scale, and values that were not rounded to float16. There
it is refused when the session is made; elsewhere it stores what the oracle does. A `MultiHeadAttention` writes no
input, and is not refused.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import onnx
import onnxruntime
import pytest
from kvcache_ops import Cache
from onnx import helper

from compare import Arrays, assert_same_arrays, assert_same_bits
from graph import Graph
from kvcache import DOMAIN, create_session
from one_node import (
    DOMAINS,
    FLOAT,
    HALF,
    OPERATORS,
    PACKED_INPUTS,
    ROWS,
    RUNTIME,
    Node,
    arrays_of,
    copy_of,
    node,
    node_model,
    one_call,
    quiet_options,
    random_values,
    run_node,
    session_of,
)

pytestmark = pytest.mark.runtime

# These versions leave the node as it is, so it must not be refused.
KEEPS_FLOAT16 = (1, 23) <= RUNTIME < (1, 30)
CACHES = [
    node("float16"),
    node("float16", "float32"),
    node("float16", quant_bit=8),
    node("float16", "int4", "float32", quant_bit=4, cache_mode=1, page_size=4),
]
NODES = [*CACHES, replace(CACHES[0], group=2), replace(CACHES[3], group=2)]
LEVELS = ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"]
# What a neighbor takes beside the tensor, by its operator: none of them has a float16 kernel. Results are exact in
# float32, so they are rounded once, in whatever type the runtime computes.
FACTOR, ADDEND = np.float16(1.1), np.full(1, 0.1, np.float16)
OPERANDS = {"MatMul": np.eye(16) * FACTOR, "Einsum": np.eye(16) * FACTOR, "Add": ADDEND, "Mul": np.full(1, FACTOR)}
# Those that leave all values: the runtime leaves out casts beside its own, and with them a rounding.
UNITS = {"MatMul": np.eye(16), "Einsum": np.eye(16), "Add": np.zeros(1), "Mul": np.ones(1)}


def one_float16_call(node: Node) -> tuple[Arrays, Cache]:
    """The inputs of a call, and a cache. A product by a matrix makes 0 of -0, so there is none; rows are float16."""
    inputs, memory = one_call(node, [3, 2])
    return {
        name: x if x.dtype == np.int64 else (x + x.dtype.type(0)).astype(np.float16).astype(x.dtype)
        for name, x in inputs.items()
    }, memory


def among(
    node: Node,
    before: str,
    behind: str,
    *,
    operator: str | None = None,
    reshaped: str = "",
    output: bool = False,
    domain: str = DOMAIN,
    unit: bool = False,
) -> bytes:
    """The node with an operator before each of its rows and one behind its first output.

    Remedies: one of its rows is reshaped, or its first output is the graph's. The neighbors of a float32 node are
    float16, too.
    """
    casts = node.spec.dtype == "float32"
    names, results = OPERATORS[operator or node.operator]
    types = node.types(operator=operator)
    graph = Graph()
    inputs = []
    for name in names:
        if name not in types:
            continue
        row = graph.input(name, types[name])
        if name in ROWS:
            row = neighbor(graph, before, graph.node("Cast", row, to=HALF) if casts else row, unit)
            row = graph.node("Cast", row, to=FLOAT) if casts else row
            if name == reshaped:
                row = graph.node("Reshape", row, graph.int64(0, 0, node.spec.head_dim))
        inputs.append(row)
    attributes = node.heads if operator == "MultiHeadAttention" else node.attributes
    made = graph.nodes(operator or node.operator, len(results), *inputs, domain=domain, **attributes)
    for name, result in zip(results, made):
        result = graph.node("Cast", result, to=HALF) if casts else result
        graph.output(f"behind_{name}", neighbor(graph, behind, result, unit), HALF)
    if output:
        graph.output(results[0], made[0], FLOAT if casts else HALF)
    return graph.serialize(domain)


def neighbor(graph: Graph, operator: str, x: str, unit: bool) -> str:
    """A float16 node of the operator."""
    attributes = {"equation": "thd,de->the"} if operator == "Einsum" else {}
    operand = (UNITS if unit else OPERANDS)[operator].astype(np.float16)
    return graph.node(operator, x, graph.constant(operand), **attributes)


def through(operator: str, x: np.ndarray) -> np.ndarray:
    """What a neighbor makes of the array."""
    wide = x.astype(np.float32)
    return (wide + ADDEND if operator == "Add" else wide * FACTOR).astype(np.float16).astype(x.dtype)


def in_a_branch(model: bytes) -> bytes:
    """The same nodes in the branch of an If that is taken; the other one gives something else of the same types."""
    made = onnx.load_from_string(model)
    nodes, outputs = list(made.graph.node), list(made.graph.output)
    types = [output.type.tensor_type.elem_type for output in outputs]
    others = [helper.make_tensor_value_info(f"other_{i}", t, None) for i, t in enumerate(types)]
    casts = [helper.make_node("Cast", ["current_key"], [f"other_{i}"], to=t) for i, t in enumerate(types)]
    branches = dict(
        then_branch=helper.make_graph(nodes, "then", [], outputs),
        else_branch=helper.make_graph(casts, "else", [], others),
    )
    chosen = [helper.make_tensor_value_info(f"chosen_{i}", t, None) for i, t in enumerate(types)]
    for field, values in (
        (
            "node",
            [
                helper.make_node("Equal", ["max_seqlen", "max_seqlen"], ["condition"]),  # nothing folds it
                helper.make_node("If", ["condition"], [value.name for value in chosen], **branches),
            ],
        ),
        ("output", chosen),
    ):
        del getattr(made.graph, field)[:]
        getattr(made.graph, field).extend(values)
    return made.SerializeToString()


def check_stored(
    node: Node, model: bytes, before: str, behind: str, *, unit: bool = False, level: str = LEVELS[-1]
) -> None:
    """A session of the model stores what the node by itself does, and gives that behind the last neighbors."""
    options = quiet_options()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    inputs, memory = one_float16_call(node)
    expected_memory = copy_of(memory)
    rows = {name: x if unit else through(before, x) for name, x in inputs.items() if name in ROWS}
    expected = node.run(inputs | rows, expected_memory)
    got = run_node(create_session(model, options), inputs, memory)
    results = [x if unit else through(behind, x) for x in expected] + [expected[0]]
    for array, result in zip(got, results):
        result = result.astype(array.dtype)
        assert_same_bits("output", array + array.dtype.type(0), result + result.dtype.type(0))
    assert_same_arrays(arrays_of(memory), arrays_of(expected_memory))


@pytest.mark.parametrize("branch", [False, True], ids=["graph", "branch"])
@pytest.mark.parametrize("node", NODES, ids=str)
def test_neighbors_without_a_float16_kernel(node: Node, branch: bool) -> None:
    """Never lost in silence: a session stores rightly, or cannot be made, in words that say what to do."""
    for (before, behind), domain in zip([*product(OPERANDS, OPERANDS)][::3], DOMAINS * 3):
        model = among(node, before, behind, domain=domain)
        model = in_a_branch(model) if branch else model
        try:
            create_session(model, quiet_options())
        except Exception as refusal:
            assert not KEEPS_FLOAT16, str(refusal)
            first = OPERATORS[node.operator][1][0]
            for part in ("float16 node to float32", "Reshape before current_value", f"{first} a graph output"):
                assert part in str(refusal)
        else:
            check_stored(node, model, before, behind)


@pytest.mark.parametrize("remedy", ["current_value", "output"])
@pytest.mark.parametrize("branch", [False, True], ids=["graph", "branch"])
@pytest.mark.parametrize("node", NODES, ids=str)
def test_what_keeps_the_node_float16_everywhere(node: Node, remedy: str, branch: bool) -> None:
    """A Reshape before `current_value`, or the first output as the graph's: no version refuses it or loses a cache."""
    options = dict(output=True) if remedy == "output" else dict(reshaped=remedy)
    for i, (operator, level) in enumerate(product(OPERANDS, LEVELS)):
        if i % 3 == 0 or operator == "MatMul":
            model = among(node, operator, operator, **options)
            check_stored(node, in_a_branch(model) if branch else model, operator, operator, level=level)


@pytest.mark.parametrize("stored", [node(), node(quant_bit=8)], ids=str)
def test_a_float32_node_among_float16_ones(stored: Node) -> None:
    """A node that is float32 in the model is not refused, though the runtime has changed its neighbors to float32."""
    for operator in OPERANDS:
        check_stored(stored, among(stored, operator, operator, unit=True), operator, operator, unit=True)


def test_attention_over_packed_rows_has_the_same_bits_anyway() -> None:
    """Computed in float32 and rounded once, as the float16 node does."""
    attention, random = NODES[-2], np.random.default_rng(42)
    inputs, _ = one_float16_call(attention)
    key, value = (random_values(random, (5, 2, 16), "float16") + np.float16(0) for _ in range(2))
    given = {name: inputs[name] for name in PACKED_INPUTS if name in inputs} | dict(key=key, value=value)
    model = among(attention, "MatMul", "MatMul", operator="MultiHeadAttention", unit=True)
    (got,) = run_node(create_session(model, quiet_options()), given)
    types = attention.types(operator="MultiHeadAttention")
    alone = session_of(node_model(types, attention.heads, operator="MultiHeadAttention"))
    assert_same_bits("product", got, run_node(alone, given)[0] + np.float16(0))

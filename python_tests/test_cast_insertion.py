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
import onnxruntime
import pytest
from kvcache_ops import DOMAIN, Cache

from compare import Arrays, assert_same_arrays, assert_same_bits
from one_node import (
    DOMAINS,
    FLOAT,
    HALF,
    OPERATORS,
    PACKED_INPUTS,
    ROWS,
    TEXT_TYPES,
    Node,
    arrays_of,
    copy_of,
    node,
    node_model,
    one_call,
    random_values,
    text_model,
)
from sessions import RUNTIME, create_session, quiet_options, run_node, session_of

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
    branch: bool = False,
) -> bytes:
    """The node with an operator before each of its rows and one behind each output, or in the branch of an If.

    Remedies: one of its rows is reshaped, or its first output is the graph's. The neighbors of a float32 node are
    float16, too.
    """
    operator, casts, lines = operator or node.operator, node.spec.dtype == "float32", []
    types, results = node.types(operator=operator), OPERATORS[operator][1]
    constants = {name: x.astype(np.float16) for name, x in (UNITS if unit else OPERANDS).items()}
    constants["shape"] = np.array([0, 0, node.spec.head_dim])

    def neighbor(name: str, op: str, *, back: bool) -> str:
        """A float16 node of the operator; `back` to the node's own type."""
        equation = '<equation = "thd,de->the">' if op == "Einsum" else ""
        if casts:
            lines.append(f"{name}_half = Cast <to = {HALF}> ({name})")
        lines.append(f"{name}_near = {op} {equation} ({name}{'_half' if casts else ''}, {op})")
        if casts and back:
            lines.append(f"{name}_single = Cast <to = {FLOAT}> ({name}_near)")
        return f"{name}_{'single' if casts and back else 'near'}"

    inputs = {name: neighbor(name, before, back=True) if name in ROWS else name for name in types}
    if reshaped:
        lines.append(f"reshaped = Reshape ({inputs[reshaped]}, shape)")
        inputs[reshaped] = "reshaped"
    attributes = node.heads if operator == "MultiHeadAttention" else node.attributes
    written = ", ".join(f"{name} = {value}" for name, value in attributes.items())
    lines.append(f"{', '.join(results)} = {domain}.{operator} <{written}> ({', '.join(inputs.values())})")
    outputs = [f"float16[] {neighbor(name, behind, back=False)}" for name in results]
    outputs += [f"{TEXT_TYPES[types[next(iter(types))]]}[] {results[0]}"] if output else []
    declared = ", ".join(f"{TEXT_TYPES[type_]}[] {name}" for name, type_ in types.items())
    nodes, given = "\n".join(lines), ", ".join(outputs)
    if branch:  # which is taken; the condition is no constant, and the other branch gives values of the same types
        names = [value.split()[1] for value in outputs]
        other = [f"{value}_else" for value in outputs]
        to = [HALF if value.startswith("float16") else FLOAT for value in outputs]
        casts_only = "\n".join(f"{name}_else = Cast <to = {t}> (seqstarts)" for name, t in zip(names, to))
        branches = f"then_branch = then () => ({given}) {{ {nodes} }}, "
        branches += f"else_branch = other () => ({', '.join(other)}) {{ {casts_only} }}"
        given = ", ".join(f"{value}_if" for value in outputs)
        chosen = ", ".join(f"{name}_if" for name in names)
        nodes = f"condition = Equal (max_seqlen, max_seqlen)\n{chosen} = If <{branches}> (condition)"
    return text_model(declared, given, nodes, initializers=constants, domain=domain)


def through(operator: str, x: np.ndarray) -> np.ndarray:
    """What a neighbor makes of the array."""
    wide = x.astype(np.float32)
    return (wide + ADDEND if operator == "Add" else wide * FACTOR).astype(np.float16).astype(x.dtype)


def check_stored(
    node: Node, model: bytes, before: str, behind: str, *, unit: bool = False, level: str = LEVELS[-1]
) -> None:
    """A session of the model stores what the node alone does, and gives its outputs after the last neighbors."""
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
    """Nothing is lost silently: a session stores correctly, or is refused in words that say what to do."""
    for (before, behind), domain in zip([*product(OPERANDS, OPERANDS)][::3], DOMAINS * 3):
        model = among(node, before, behind, domain=domain, branch=branch)
        try:
            create_session(model)
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
            model = among(node, operator, operator, branch=branch, **options)
            check_stored(node, model, operator, operator, level=level)


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
    (got,) = run_node(create_session(model), given)
    types = attention.types(operator="MultiHeadAttention")
    alone = session_of(node_model(types, attention.heads, operator="MultiHeadAttention"))
    assert_same_bits("product", got, run_node(alone, given)[0] + np.float16(0))

"""The node in graphs of every kind, on every optimization level, and the shapes that its session infers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from kvcache_ops import DOMAIN

from compare import assert_same_bits
from one_node import (
    INPUTS,
    STATIC_DOMAINS,
    STATIC_INPUTS,
    TEXT_TYPES,
    Example,
    arrays_of,
    copy_of,
    node,
    node_model,
    text_model,
    types_for,
)
from sessions import OPSET, create_session, quiet_options

pytestmark = pytest.mark.runtime

SIZES = dict(quant_bit=8, num_layers=2, cache_mode=1, page_size=3)
STORED = node("float16", "int8", "float16", layer_idx=1, num_repeat=2, **SIZES)
LEVELS = ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"]
# The node and its inputs in ONNX text.
ATTRIBUTES = ", ".join(f"{name} = {value}" for name, value in STORED.attributes.items())
NODE = f"key, value = {DOMAIN}.KeyValueCache <{ATTRIBUTES}> ({', '.join(INPUTS)})"
DECLARED = {name: f"{TEXT_TYPES[element_type]}[] {name}" for name, element_type in STORED.types().items()}
OUTPUTS = "float16[] key, float16[] value"
HEADS = dict(num_heads=4, head_dim=8, num_kv_heads=2)


@pytest.fixture
def example() -> Example:
    """A call of three sequences."""
    return Example(STORED, [5, 1, 2])


def check(
    example: Example, session: onnxruntime.InferenceSession, *, times: int | None = None, **more: np.ndarray
) -> None:
    """Runs the session on a copy of the memory; its outputs are key and value, or `times` of each in one."""
    memory = copy_of(example.before)
    fed = {value.name for value in session.get_inputs()}
    feeds = {name: x for name, x in (example.inputs | arrays_of(memory) | more).items() if name in fed}
    outputs = session.run(None, feeds)
    for output in outputs if times else []:
        assert_same_bits("output", output, np.stack([output[0]] * times))
    example.check([output[0] for output in outputs] if times else outputs, memory)


@pytest.mark.parametrize("format", ["ONNX", "ORT"])
def test_a_model_that_the_runtime_saved(example: Example, format: str, tmp_path: Path) -> None:
    """An optimized model, saved in either format, loads and works."""
    saved = tmp_path / "saved"
    options = quiet_options()
    options.optimized_model_filepath = str(saved)
    options.add_session_config_entry("session.save_model_format", format)
    create_session(STORED.model(), options)
    check(example, create_session(saved.read_bytes()))


@pytest.mark.parametrize("level", LEVELS)
def test_all_read_inputs_as_initializers(example: Example, level: str) -> None:
    """Constants in all places but the in-out ones: the node is not folded away, and stores each time."""
    made = text_model(f"{DECLARED['cache']}, {DECLARED['scale']}", OUTPUTS, NODE, initializers=example.inputs)
    options = quiet_options()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = create_session(made, options)
    for _ in range(2):
        check(example, session)


def test_the_body_of_a_loop(example: Example) -> None:
    """A node in a body stores in every iteration, into the cache of the graph around it. (A cache that is the state of
    a Scan or Loop may be a copy, which the operator cannot see.)"""
    body = f"body (int64 i, bool go_on) => (bool still, {OUTPUTS}) {{ {NODE} still = Identity (go_on) }}"
    inputs = ", ".join([*DECLARED.values(), "int64 count, bool condition"])
    loop = f"keys, values = Loop <body = {body}> (count, condition)"
    session = create_session(text_model(inputs, "float16[] keys, float16[] values", loop))
    check(example, session, times=3, count=np.array(3), condition=np.array(True))


def test_a_function_of_the_model(example: Example) -> None:
    """A node in a function that the model defines."""
    names = ", ".join(INPUTS)
    opsets = f'opset_import: ["": {OPSET}, "{DOMAIN}": 1]'
    function = f'<domain: "local", {opsets}> Cached ({names}) => (key, value) {{ {NODE} }}'
    call = f"key, value = local.Cached ({names})"
    check(example, create_session(text_model(", ".join(DECLARED.values()), OUTPUTS, call, function), quiet_options()))


CURRENT = ["tokens", "heads", "head_dim"]
# Operator, domain, attributes, declared shapes, and what is inferred: `...` is a new name.
SHAPES = [
    ("KeyValueCache", DOMAIN, dict(num_repeat=4), dict(current_value=CURRENT), [..., ..., "head_dim"]),
    ("KeyValueCache", DOMAIN, dict(num_repeat=3, cache_layout=3), dict(cache=[1, 2, 5, "slots", 16]), [..., 15, 16]),
    ("MultiHeadAttention", DOMAIN, HEADS, dict(query=CURRENT), ["tokens", 4, 8]),
    ("MultiHeadCacheAttention", DOMAIN, HEADS, {}, [..., 4, 8]),
    ("KeyValueCache", "opmx", dict(num_repeat=4), dict(current_key=["batch", "tokens", 2, 8]), ["batch", ..., 8, 8]),
    ("KeyValueCache", "pmx", {}, dict(current_key=["batch", *CURRENT]), ["batch", ..., "heads", "head_dim"]),
]


@pytest.mark.parametrize(("operator", "domain", "attributes", "shapes", "inferred"), SHAPES)
def test_shapes(operator: str, domain: str, attributes: dict, shapes: dict[str, list], inferred: list) -> None:
    """The session knows shapes that inputs and attributes decide; an unknown length has a new name. (Rules: Rust.)"""
    types = types_for(operator)
    if domain in STATIC_DOMAINS:
        types = {name: types[name] for name in STATIC_INPUTS[:4]}
    session = create_session(
        node_model(types, attributes, operator=operator, domain=domain, shapes=shapes), quiet_options()
    )
    first, *others = (output.shape for output in session.get_outputs())
    assert others in ([], [first])
    declared = {length for shape in shapes.values() for length in shape}
    named = [got for got, expected in zip(first, inferred, strict=True) if expected is ...]
    assert all(got and isinstance(got, str) and got not in declared for got in named) and len({*named}) == len(named)
    assert [... if got in named else got for got in first] == inferred

"""KeyValueCache of static batching through ONNX Runtime: golden cases, random calls, shapes, and what is written.

Domains `opmx` and `pmx`, in which the operator has other inputs than that of dynamic batching.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, numpy_helper
from onnx.compose import add_prefix
from safetensors.numpy import load_file

from compare import assert_same_arrays, assert_same_bits
from kvcache import ELEMENT_TYPES, NUMPY_TYPES, create_session
from node import (
    RUNTIME,
    STATIC_DOMAINS,
    STATIC_INPUTS,
    call,
    node_model,
    node_types,
    quiet_options,
    run_node,
    session_of,
    types_of,
)
from oracle.call import Types
from oracle.static_batching import STATIC_LAYOUTS, StaticAttributes, StaticInputs, static_cache_shape
from oracle.static_batching import static_key_value_cache as oracle
from oracle_call import pack_int4, unpack_int4
from setting import FLOAT, INT4, LEGAL_TYPES, TYPE_NAMES, random_values
from test_golden import in_signature
from test_refusals import refusal_of

CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "golden/static_cases").glob("*/case.yaml"))
SEEDS = range(4 * len(LEGAL_TYPES))

# Of a float32 node.
NODE_TYPES = dict(current_key=FLOAT, current_value=FLOAT, start_pos=TensorProto.INT64, cache=FLOAT)


def test_there_are_cases() -> None:
    """The folder is found and not empty."""
    assert CASES


def test_the_schema_is_stated_once() -> None:
    """Names, domains and layouts of this suite and of the oracle are those of the YAML."""
    schema = yaml.safe_load((Path(__file__).parents[1] / "schema/static_key_value_cache.yaml").read_text())
    assert [operand["name"] for operand in schema["inputs"]] == list(STATIC_INPUTS)
    assert schema["domains"] == list(STATIC_DOMAINS)
    axes = {layout["code"]: tuple(map(str, layout["axes"])) for layout in schema["cache_layouts"]}
    assert axes == STATIC_LAYOUTS


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_case(folder: Path) -> None:
    """Each step succeeds with the oracle's bytes, or is refused and changes nothing."""
    case = yaml.safe_load((folder / "case.yaml").read_text())
    tensors = load_file(folder / "tensors.safetensors")
    state = {name: tensors[name].copy() for name in ("cache", "scale") if name in tensors}
    int4_shape = tuple(case["int4"]["cache"]) if "int4" in case else None
    any_nan = case.get("compare", {}).get("nan") == "any"
    assert case["steps"], "a case has steps"

    for i, step in enumerate(case["steps"]):
        given = [name for name in STATIC_INPUTS if name not in state and f"{i}.{name}" in tensors]
        inputs = {name: tensors[f"{i}.{name}"].copy() for name in given} | state
        types = types_of(inputs, int4_shape is not None)
        model = node_model(types, case["attributes"], domain=STATIC_DOMAINS[i % 2])
        if "error" in step:
            before = {name: array.copy() for name, array in state.items()}
            with pytest.raises(Exception) as refusal:
                call(session_of(model), inputs, int4_shape)
            for mention in [f"{step['error']}: "] * in_signature("KeyValueCache", inputs) + step["mentions"]:
                assert str(mention) in str(refusal.value)
            assert_same_arrays(state, before)
        else:
            key, value = call(session_of(model), inputs, int4_shape)
            for name, got in dict(key=key, value=value, **state).items():
                assert_same_bits(f"step {i}: {name}", got, tensors[f"{i}.{name}"], any_nan)


class RandomCache:
    """A cache of random sizes, layout and types, with the oracle's copy of it."""

    def __init__(self, random: np.random.Generator, types: tuple):
        t1, t2, t3, quant_bit = types
        self.random, self.element = random, t1
        self.types = Types(TYPE_NAMES[t1], TYPE_NAMES[t2], t3 and TYPE_NAMES[t3])
        quant_group = int(random.choice((2, 4, 6, 8, 16, 32)))
        num_layer = int(random.integers(1, 4))
        self.attributes = dict(
            num_layer=num_layer,
            layer_idx=int(random.integers(num_layer)),
            quant_bit=quant_bit,
            quant_group=quant_group,
            num_repeat=int(random.integers(1, 5)),
            cache_layout=int(random.integers(len(STATIC_LAYOUTS))),
        )
        self.heads = int(random.integers(1, 5)), quant_group * int(random.integers(1, 4))
        self.max_b, self.max_s = (int(random.integers(1, end)) for end in (6, 40))
        outer = (self.attributes["cache_layout"], self.max_b, self.max_s, num_layer, self.heads[0])
        shape = static_cache_shape(*outer, self.heads[1])
        self.int4_shape = shape if t2 == INT4 else None
        if t2 == INT4:
            cache = random.integers(0, 256, prod(shape) // 2, np.uint8)
        else:
            cache = random_values(random, shape, t2)
        self.state = dict(cache=cache)
        if t3 is not None:
            scale_shape = static_cache_shape(*outer, self.heads[1] // quant_group)
            self.state["scale"] = (random.random(scale_shape) + 0.01).astype(NUMPY_TYPES[t3])
        self.expected = {name: array.copy() for name, array in self.state.items()}

    def call(self, batch: int, start_pos: int, seqlen: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """One call, here and by the oracle: outputs and state, ours first."""
        shape = (batch, seqlen, *self.heads)
        current = {name: random_values(self.random, shape, self.element) for name in ("current_key", "current_value")}
        start = np.full([(), (1,)][self.random.integers(2)], start_pos, np.int64)
        inputs = current | dict(start_pos=start) | self.state
        model = node_model(types_of(inputs, self.int4_shape is not None), self.attributes, domain="opmx")
        got = call(session_of(model), inputs, self.int4_shape)
        cache = self.expected["cache"]
        values = cache if self.int4_shape is None else unpack_int4(cache, self.int4_shape)
        attributes = StaticAttributes(**self.attributes)
        made = oracle(
            StaticInputs(**current, start_pos=start), values, self.expected.get("scale"), attributes, self.types
        )
        if self.int4_shape is not None:
            cache[:] = pack_int4(values, cache)
        both = dict(zip(("key", "value"), zip(got, made)))
        return both | {name: (array, self.expected[name]) for name, array in self.state.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_random_calls(seed: int) -> None:
    """Key, value, cache and scale of every call are the oracle's, bit for bit."""
    random = np.random.default_rng(seed)
    types = LEGAL_TYPES[seed % len(LEGAL_TYPES)]
    cache = RandomCache(random, types)
    print(f"seed {seed}: {cache.attributes} {cache.heads} {cache.max_b} {cache.max_s}")
    any_nan = types[3] != 0 or types[0] != types[1]
    start_pos = 0
    for _ in range(4):
        seqlen = int(random.integers(0, cache.max_s - start_pos + 1))
        results = cache.call(int(random.integers(0, cache.max_b + 1)), start_pos, seqlen)
        for name, (got, expected) in results.items():
            assert_same_bits(name, got, expected, any_nan)
        start_pos = int(random.integers(0, start_pos + seqlen + 1))


@pytest.mark.parametrize("domain", STATIC_DOMAINS)
def test_shapes_are_inferred(domain: str) -> None:
    """Names of dimensions pass through, heads are repeated, and the length of the outputs has a name of its own."""
    shapes = dict(current_key=["batch", "tokens", 2, 8], cache=["max_b", 1, 2, "max_s", 2, 8])
    session = create_session(node_model(NODE_TYPES, dict(num_repeat=4), domain=domain, shapes=shapes), quiet_options())
    for output in session.get_outputs():
        batch, length, *rest = output.shape
        assert (batch, rest) == ("batch", [8, 8]) and length not in ("tokens", "batch"), output.shape


def test_both_operators_are_in_one_graph() -> None:
    """One name in four domains: each node is what its domain says."""
    both = onnx.load_from_string(node_model(NODE_TYPES, {}, domain="opmx"))
    dynamic = add_prefix(onnx.load_from_string(node_model(node_types(FLOAT, FLOAT), {})), "dynamic/")
    for field in ("node", "input", "output"):
        getattr(both.graph, field).extend(getattr(dynamic.graph, field))
    both.opset_import.append(dynamic.opset_import[1])

    current = np.ones((1, 1, 2, 8), np.float32)
    index = lambda *numbers: np.array(numbers, np.int64)  # noqa: E731
    inputs = dict(
        current_key=current, current_value=-current, start_pos=index(1), cache=np.zeros((1, 1, 2, 4, 2, 8), "f")
    )
    of_dynamic = dict(current_key=current[0], current_value=-current[0], cache=np.zeros((4, 1, 2, 2, 8), "f"))
    of_dynamic |= dict(seqstarts=index(0, 1), kvstarts=index(0, 3), cachestarts=index(1), start_pos=index(2))
    of_dynamic |= dict(max_seqlen=index(1), max_kvlen=index(3))
    inputs |= {f"dynamic/{name}": array for name, array in of_dynamic.items()}
    key, _, dynamic_key, _ = run_node(session_of(both.SerializeToString()), inputs)
    assert (key.shape, dynamic_key.shape) == ((1, 2, 2, 8), (3, 2, 8))
    assert inputs["cache"][0, 0, 0, 1].all() and inputs["dynamic/cache"][3, 0, 0].all()


@pytest.mark.parametrize("domain", STATIC_DOMAINS)
def test_a_node_that_cannot_work_is_refused_with_the_session(domain: str) -> None:
    """Attributes out of range, illegal types, a scale that is missing, a cache that is the session's own."""
    types = dict(NODE_TYPES)
    for attributes, mentions in (
        (dict(cache_layout=2), ["cache_layout", "2", "0 to 1"]),
        (dict(num_layer=2, layer_idx=2), ["layer_idx", "2"]),
        (dict(num_repeat=1.5), ["num_repeat", "int"]),
        (dict(quant_bit=8), ["illegal_types", "float32", "quant_bit 8"]),
    ):
        message = refusal_of(node_model(types, attributes, domain=domain))
        assert all(mention in message for mention in mentions), message
    message = refusal_of(node_model(types | dict(cache=TensorProto.INT8), dict(quant_bit=8), domain=domain))
    assert "scale_missing" in message
    cache = numpy_helper.from_array(np.zeros((1, 1, 2, 4, 2, 8), np.float32), "cache")
    del types["cache"]
    message = refusal_of(node_model(types, {}, domain=domain, initializers=(cache,)))
    assert "cache is an initializer" in message


@pytest.mark.parametrize("scale", ["left out", "empty name", "no elements"])
def test_a_scale_that_is_not_given(scale: str) -> None:
    """In each of the ways in which graphs have none."""
    if scale == "empty name" and RUNTIME < (1, 24):
        pytest.skip("ONNX Runtime before 1.24 itself crashes on an empty-named last input")
    current = np.ones((1, 1, 2, 8), np.float32)
    inputs = dict(current_key=current, current_value=current, start_pos=np.array(0, np.int64))
    inputs |= dict(cache=np.zeros((1, 1, 2, 4, 2, 8), np.float32))
    inputs |= dict(scale=np.zeros(0, np.float16)) if scale == "no elements" else {}
    model = node_model(types_of(inputs, False), {}, domain="opmx", empty_scale=scale == "empty name")
    key, _ = call(session_of(model), inputs)
    assert_same_bits("key", key, current)


def test_the_callers_memory_is_written_and_nothing_else() -> None:
    """The cache at its own address, also as a view with other memory around it."""
    around = np.full(2 * 1 * 2 * 4 * 2 * 8 + 32, 7, np.float32)
    cache = around[16:-16].reshape(2, 1, 2, 4, 2, 8)
    current = np.ones((1, 1, 2, 8), np.float32)
    inputs = dict(current_key=current, current_value=-current, start_pos=np.array(2, np.int64), cache=cache)
    model = node_model({name: ELEMENT_TYPES[array.dtype] for name, array in inputs.items()}, {}, domain="pmx")
    key, value = call(session_of(model), inputs)
    expected = np.full(cache.shape, 7, np.float32)
    expected[0, 0, 0, 2], expected[0, 0, 1, 2] = 1, -1
    assert_same_bits("cache", cache, expected)
    assert (around[:16] == 7).all() and (around[-16:] == 7).all()
    assert_same_bits("key", key, expected[:1, 0, 0, :3])
    assert_same_bits("value", value, expected[:1, 0, 1, :3])

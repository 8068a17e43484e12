"""KeyValueCache of static batching through ONNX Runtime: random calls, shapes, and what is written.

Domains `opmx` and `pmx`, in which the operator has other inputs than that of dynamic batching.
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.compose import add_prefix

from compare import assert_same_bits
from kvcache import create_session
from node import (
    STATIC_DOMAINS,
    node_model,
    node_types,
    quiet_options,
    run_node,
    session_of,
    types_of,
)
from oracle.static_batching import STATIC_LAYOUTS, StaticAttributes, StaticInputs, static_cache_shape
from oracle.static_batching import static_key_value_cache as oracle
from setting import FLOAT, LEGAL_TYPES, Memory, Setting, random_values
from test_random import each_seed

pytestmark = pytest.mark.runtime

# Of a float32 node.
NODE_TYPES = dict(current_key=FLOAT, current_value=FLOAT, start_pos=TensorProto.INT64, cache=FLOAT)


class RandomCache:
    """A cache of random sizes, layout and types, with the oracle's copy of it."""

    def __init__(self, random: np.random.Generator, types: tuple):
        t1, t2, t3, quant_bit = types
        self.random, self.setting = random, Setting(t1, t2, t3)
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
        shape, is_int4 = static_cache_shape(*outer, self.heads[1]), t2 == TensorProto.INT4
        cache = random.integers(0, 256, prod(shape) // 2, np.uint8) if is_int4 else random_values(random, shape, t2)
        scale = None
        if t3 is not None:
            scale_shape = static_cache_shape(*outer, self.heads[1] // quant_group)
            scale = np.abs(random_values(random, scale_shape, t3)) + np.float16(0.01)
        self.memory = Memory(cache, scale, shape if is_int4 else None)
        self.expected = self.memory.copy()

    def check_call(self, batch: int, start_pos: int, seqlen: int) -> None:
        """One call has the oracle's outputs, and leaves the oracle's cache."""
        shape = (batch, seqlen, *self.heads)
        names = ("current_key", "current_value")
        current = {name: random_values(self.random, shape, self.setting.t1) for name in names}
        start = np.full([(), (1,)][self.random.integers(2)], start_pos, np.int64)
        inputs = current | dict(start_pos=start) | self.memory.arrays
        model = node_model(types_of(inputs, self.memory.int4_shape is not None), self.attributes, domain="opmx")
        got = run_node(session_of(model), inputs, self.memory.int4_shape)
        values = self.expected.values
        operands, attributes = StaticInputs(**current, start_pos=start), StaticAttributes(**self.attributes)
        made = oracle(operands, values, self.expected.scale, attributes, self.setting.oracle_types)
        self.expected.store(values)
        any_nan = self.attributes["quant_bit"] != 0 or self.setting.t1 != self.setting.t2
        for name, array, expected in zip(("key", "value"), got, made):
            assert_same_bits(name, array, expected, any_nan)
        for name, expected in self.expected.arrays.items():
            assert_same_bits(name, self.memory.arrays[name], expected, any_nan)


def test_random_calls() -> None:
    """Key, value, cache and scale of every call are the oracle's, bit for bit."""

    def check(seed: int) -> None:
        random = np.random.default_rng(seed)
        cache = RandomCache(random, LEGAL_TYPES[seed % len(LEGAL_TYPES)])
        start_pos = 0
        for _ in range(4):
            seqlen = int(random.integers(0, cache.max_s - start_pos + 1))
            cache.check_call(int(random.integers(0, cache.max_b + 1)), start_pos, seqlen)
            start_pos = int(random.integers(0, start_pos + seqlen + 1))

    each_seed(range(2 * len(LEGAL_TYPES)), check)


@pytest.mark.parametrize("domain", STATIC_DOMAINS)
def test_shapes_are_inferred(domain: str) -> None:
    """Names of dimensions pass through, heads are repeated, and the length of the outputs has a name of its own."""
    shapes = dict(current_key=["batch", "tokens", 2, 8], cache=["max_b", 1, 2, "max_s", 2, 8])
    session = create_session(node_model(NODE_TYPES, dict(num_repeat=4), domain=domain, shapes=shapes), quiet_options())
    for output in session.get_outputs():
        batch, length, *rest = output.shape
        assert (batch, rest) == ("batch", [8, 8]) and length not in ("tokens", "max_s")


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


def test_the_callers_memory_is_written_and_nothing_else() -> None:
    """The cache at its own address, also as a view with other memory around it."""
    around = np.full(2 * 1 * 2 * 4 * 2 * 8 + 32, 7, np.float32)
    cache = around[16:-16].reshape(2, 1, 2, 4, 2, 8)
    current = np.ones((1, 1, 2, 8), np.float32)
    inputs = dict(current_key=current, current_value=-current, start_pos=np.array(2, np.int64), cache=cache)
    model = node_model(NODE_TYPES, {}, domain="pmx")
    key, value = run_node(session_of(model), inputs)
    expected = np.full(cache.shape, 7, np.float32)
    expected[0, 0, 0, 2], expected[0, 0, 1, 2] = 1, -1
    assert_same_bits("cache", cache, expected)
    assert (around[:16] == 7).all() and (around[-16:] == 7).all()
    assert_same_bits("key", key, expected[:1, 0, 0, :3])
    assert_same_bits("value", value, expected[:1, 0, 1, :3])

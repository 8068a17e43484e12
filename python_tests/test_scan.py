"""The node in the body of a Scan: with the cache of the graph around it, and with one that is the Scan's state."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, ValueInfoProto, helper

from compare import assert_same_arrays, assert_same_bits
from graph import IR_VERSION, OPSET
from kvcache import DOMAIN, create_session
from node import quiet_options
from setting import Memory, Setting

pytestmark = pytest.mark.runtime

STEPS = 4
SETTING = Setting()
ROW = (1, SETTING.num_heads, SETTING.head_dim)
# What changes from step to step: a token, and how many the sequence has.
PER_STEP = {
    "current_key": (TensorProto.FLOAT, ROW),
    "current_value": (TensorProto.FLOAT, ROW),
    "kvstarts": (TensorProto.INT64, (2,)),
    "start_pos": (TensorProto.INT64, (1,)),
}


class Decode:
    """A sequence of one token, two tokens ... and the sums of its keys, one a step."""

    def __init__(self) -> None:
        random = np.random.default_rng(41)
        self.memory: Memory = SETTING.memory(random, STEPS + 1)
        lengths = np.arange(STEPS)
        self.fixed = dict(seqstarts=np.array([0, 1]), cachestarts=np.array([1]), bound=np.array(STEPS))
        self.steps = {
            "current_key": random.integers(-9, 10, (STEPS, *ROW)).astype(np.float32),  # sums are exact
            "current_value": random.integers(-9, 10, (STEPS, *ROW)).astype(np.float32),
            "kvstarts": np.stack([0 * lengths, lengths + 1], axis=1),
            "start_pos": lengths[:, None],
        }
        self.expected = self.memory.copy()
        self.sums = np.zeros(STEPS, np.float32)
        bounds = dict(max_seqlen=self.fixed["bound"], max_kvlen=self.fixed["bound"])
        for t in range(STEPS):
            step = {name: x[t] for name, x in self.steps.items()}
            key, _ = SETTING.oracle(self.fixed | bounds | step, self.expected)
            self.sums[t] = key.sum()


def declared(name: str, element_type: int, shape: tuple[int, ...]) -> ValueInfoProto:
    """A declaration."""
    return helper.make_tensor_value_info(name, element_type, shape)


def scan_model(decode: Decode, cache: str) -> bytes:
    """A Scan over the steps: `cache` is what its node writes, the graph's `cache` or the state `carried`."""
    shape = decode.memory.cache.shape
    names = ["current_key", "current_value", "seqstarts", "kvstarts", "cachestarts", "start_pos", "bound", "bound"]
    nodes = [
        helper.make_node("KeyValueCache", [*names, cache], ["key", "value"], domain=DOMAIN, **SETTING.attributes),
        helper.make_node("ReduceSum", ["key"], ["sum"], keepdims=0),
        helper.make_node("Identity", ["carried"], ["carried_on"]),
    ]
    body = helper.make_graph(
        nodes,
        "step",
        [declared("carried", TensorProto.FLOAT, shape), *(declared(name, *what) for name, what in PER_STEP.items())],
        [declared("carried_on", TensorProto.FLOAT, shape), declared("sum", TensorProto.FLOAT, ())],
    )
    inputs = ["initial", *(f"{name}s" for name in PER_STEP)]
    scan = helper.make_node("Scan", inputs, ["final", "sums"], body=body, num_scan_inputs=len(PER_STEP))
    fixed = [declared(name, TensorProto.INT64, x.shape) for name, x in decode.fixed.items()]
    memory = [declared(name, TensorProto.FLOAT, shape) for name in ("initial", "cache")]
    steps = [declared(f"{name}s", what[0], (STEPS, *what[1])) for name, what in PER_STEP.items()]
    outputs = [declared("final", TensorProto.FLOAT, shape), declared("sums", TensorProto.FLOAT, (STEPS,))]
    graph = helper.make_graph([scan], "graph", fixed + memory + steps, outputs)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets).SerializeToString()


def run(decode: Decode, cache: str) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """The state after the last step, the sums, and the arrays that were given as the Scan's state and as the cache."""
    arrays = {name: decode.memory.cache.copy() for name in ("initial", "cache")}
    feeds = decode.fixed | arrays | {f"{name}s": x for name, x in decode.steps.items()}
    final, sums = create_session(scan_model(decode, cache), quiet_options()).run(None, feeds)
    return final, sums, arrays


def test_the_cache_of_the_graph_around_a_scan() -> None:
    """Every step finds what the steps before it stored, and the caller finds all of it after the call."""
    decode = Decode()
    _, sums, arrays = run(decode, "cache")
    assert_same_bits("sums", sums, decode.sums)
    assert_same_arrays(arrays, {"initial": decode.memory.cache, "cache": decode.expected.cache})


def test_a_cache_that_is_a_scans_state() -> None:
    """Not supported: the runtime may copy the state before the node stores into it.

    Nothing that the runtime tells the operator shows where a cache comes from, so the node cannot be refused, and the
    documentation says so. When this test fails a runtime has become better, and the documentation can be changed.
    """
    decode = Decode()
    final, _, _ = run(decode, "carried")
    with pytest.raises(AssertionError):
        assert_same_bits("final", final, decode.expected.cache)

"""The operator on ONNX Runtime's CUDA provider.

Needs a GPU, onnxruntime-gpu and a library built with the feature `cuda`. Without them the tests are skipped with the
reason; with `KVCACHE_REQUIRE_GPU` set the run ends with exit code 77 instead.
"""

from __future__ import annotations

import os
from typing import Any

import kvcache_ops
import numpy as np
import pytest
from kvcache_ops import DOMAIN, pack_int4, step_indices, unpack_int4
from kvcache_ops.conformance import SUITES, Int4Array
from kvcache_ops.conformance._models import operator
from kvcache_ops.conformance._run import run_suites

from compare import Arrays
from device_call import EMULATED, DeviceArray, device_call, device_session, why_no_gpu
from one_node import FLOAT, STATIC_DOMAINS, node, node_model, types_for, types_of

CHECKS = {
    "KeyValueCache": kvcache_ops.check,
    "MultiHeadAttention": kvcache_ops.check_multi_head_attention,
    "MultiHeadCacheAttention": kvcache_ops.check_multi_head_cache_attention,
}


@pytest.fixture(autouse=True, scope="session")
def gpu() -> None:
    """Skips everything if there is no GPU; ends the run if one is required."""
    if why_no_gpu() and os.environ.get("KVCACHE_REQUIRE_GPU"):
        pytest.exit(f"NOT RUN, nothing of the CUDA provider is tested: {why_no_gpu()}", returncode=77)
    if why_no_gpu():
        pytest.skip(why_no_gpu())


@pytest.mark.parametrize("op_type", ["MultiHeadAttention", "MultiHeadCacheAttention"])
def test_heads_that_are_too_long_are_refused(op_type: str) -> None:
    """The node would fail in every call: refused when the session is made."""
    model = node_model(types_for(op_type), dict(num_heads=2, head_dim=264), operator=op_type)
    with pytest.raises(Exception, match=f"{op_type} node 'cached': .*head_dim is 264, expected at most 256"):
        device_session(model)


def shapes_of(inputs: Arrays, num_repeat: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a call's outputs."""
    if "query" in inputs:
        return {"attn_output": inputs["query"].shape}
    *rows, num_heads, head_dim = inputs["current_key"].shape
    is_static = "kvstarts" not in inputs
    rows = [rows[0], inputs["start_pos"].item() + rows[1]] if is_static else [int(inputs["kvstarts"][-1])]
    return dict.fromkeys(("key", "value"), (*rows, num_heads * num_repeat, head_dim))


def on_device(
    op_type: str, attributes: dict[str, int], inputs: Arrays, cache: Any, scale: Any, outputs: Any = None
) -> tuple[Any, ...]:
    """A call as the conformance kit makes it: outputs, cache and scale; what the CPU refuses is not asked for."""
    if "seqstarts" in inputs:
        memory = {} if cache is None else {"cache": cache, "scale": scale}
        CHECKS[op_type](attributes, **inputs, **{name: packed(array) for name, array in memory.items()})
    names = [tensor.name for tensor in operator(op_type, inputs).inputs]
    inputs = {name: inputs[name] for name in names if name in inputs}
    given = {"cache": cache, "scale": scale}
    state = {
        name: DeviceArray(packed(array), array.shape if isinstance(array, Int4Array) else None)
        for name, array in given.items()
        if array is not None
    }
    host = inputs | {name: packed(array) for name, array in given.items() if array is not None}
    domain = DOMAIN if "seqstarts" in inputs else STATIC_DOMAINS[0]
    types, shapes = types_of(host, isinstance(cache, Int4Array)), shapes_of(inputs, attributes.get("num_repeat", 1))
    if outputs:
        types |= dict(attention_mass=FLOAT)
        shapes |= dict(attention_mass=(attributes["num_heads"], int(inputs["kvstarts"][-1])))
    model = node_model(types, attributes, operator=op_type, domain=domain)
    results = device_call(model, inputs, state, shapes)
    after = {name: array.numpy() for name, array in state.items()}
    if isinstance(cache, Int4Array):
        after["cache"] = unpack_int4(after["cache"])[: cache.size].reshape(cache.shape)
    return (*results.values(), after.get("cache"), after.get("scale"))


def packed(array: Any) -> Any:
    """An array as the operators take it."""
    return pack_int4(array) if isinstance(array, Int4Array) else array


def test_golden_cases() -> None:
    """All operators pass; an emulated device runs a part, since the tests in Rust run the rest."""
    report = run_suites(on_device, SUITES, int4="unpacked", filter="-f16-" if EMULATED else "")
    report.raise_for_failures()
    assert report.passed == len(report.cases) > 400


def test_refusals_of_the_host_and_of_the_device() -> None:
    """What the host knows is refused at once, as on the CPU; what the device finds is told by the next call, which
    fails and does nothing, and the one after it works."""
    stored = node(max_tokens=8)
    state = {"cache": DeviceArray(stored.spec.allocate().cache)}

    def call(start: int, **changes: np.ndarray) -> None:
        """Stores the first token of one sequence."""
        ones = np.ones((1, 2, 16), np.float32)
        inputs = dict(current_key=ones, current_value=ones) | step_indices([1], [0], cachestarts=[start])._asdict()
        device_call(stored.model(), inputs | changes, state, shapes_of(inputs, 1))

    with pytest.raises(Exception, match="starts_not_zero: kvstarts begins with 1"):
        call(3, kvstarts=np.array([1, 1]))
    call(8)  # the cache has slots 0 to 7
    assert not state["cache"].numpy().any(), "a token without a slot is skipped"
    with pytest.raises(Exception, match=r"device_status.*cachestarts.*batch 0, token 0"):
        call(2)
    assert not state["cache"].numpy().any(), "a refused call does nothing"
    call(2)
    assert state["cache"].numpy()[2].all()

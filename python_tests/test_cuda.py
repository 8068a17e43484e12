"""The operator on ONNX Runtime's CUDA provider.

Needs a GPU, onnxruntime-gpu and a library built with the feature `cuda`. Without them the tests are skipped with the
reason; with `KVCACHE_REQUIRE_GPU` set the run ends with exit code 77 instead.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from onnx import TensorProto

from compare import Arrays, assert_same_bits
from device_call import DeviceArray, device_call, device_session, why_no_gpu
from golden_cases import SUITES, GoldenCase, check_all
from kvcache import DOMAIN
from node import OPERATORS, STATIC_DOMAINS, STATIC_INPUTS, node_model, types_of
from ragged import RaggedCache
from setting import FLOAT, LEGAL_TYPES, Setting
from test_random import each_seed, random_current, random_setting


@pytest.fixture(autouse=True, scope="session")
def gpu() -> None:
    """Skips everything if there is no GPU; ends the run if one is required."""
    if why_no_gpu() and os.environ.get("KVCACHE_REQUIRE_GPU"):
        pytest.exit(f"NOT RUN, nothing of the CUDA provider is tested: {why_no_gpu()}", returncode=77)
    if why_no_gpu():
        pytest.skip(why_no_gpu())


@pytest.mark.parametrize("operator", ["MultiHeadAttention", "MultiHeadCacheAttention"])
def test_heads_that_are_too_long_are_refused(operator: str) -> None:
    """The node would fail in every call: refused when the session is made."""
    required = [name for name in OPERATORS[operator][0] if name not in ("scale", "attn_mask")]
    rows = ("query", "key", "value", "current_key", "current_value", "cache")
    types = {name: FLOAT if name in rows else TensorProto.INT64 for name in required}
    with pytest.raises(Exception, match=f"{operator} node 'cached': .*head_dim is 264, expected at most 256"):
        device_session(node_model(types, dict(num_heads=2, head_dim=264), operator=operator))


def shapes_of(inputs: Arrays, num_repeat: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a call's outputs."""
    if "query" in inputs:
        return {"attn_output": inputs["query"].shape}
    *rows, num_heads, head_dim = inputs["current_key"].shape
    is_static = "kvstarts" not in inputs
    rows = [rows[0], inputs["start_pos"].item() + rows[1]] if is_static else [int(inputs["kvstarts"][-1])]
    return dict.fromkeys(("key", "value"), (*rows, num_heads * num_repeat, head_dim))


def on_device(arrays: Arrays, int4_shape: tuple[int, ...] | None) -> dict[str, DeviceArray]:
    """The state in memory of the GPU."""
    return {name: DeviceArray(array, int4_shape if name == "cache" else None) for name, array in arrays.items()}


def run_case(case: GoldenCase) -> None:
    """The oracle's bytes, step by step; attention within its tolerance. Refusals are the CPU's."""
    if not case.is_legal:
        return
    signature, domain = OPERATORS[case.operator][0], DOMAIN
    if not any(name.endswith(".seqstarts") for name in case.tensors):
        signature, domain = STATIC_INPUTS, STATIC_DOMAINS[0]
    host = case.state()
    state = on_device(host, case.int4_shape)
    for i, _ in enumerate(case.steps):
        inputs = case.inputs(i, signature)
        types = types_of(inputs | host, case.int4_shape is not None)
        model = node_model(types, case.attributes, operator=case.operator, domain=domain)
        got = device_call(model, inputs, state, shapes_of(inputs, case.attributes.get("num_repeat", 1)))
        case.check(i, got | {name: array.numpy() for name, array in state.items()})


@pytest.mark.parametrize("suite", SUITES)
def test_golden_cases(suite: str) -> None:
    """Of all operators."""
    check_all(suite, run_case)


def test_random_calls() -> None:
    """The oracle's bytes on a growing ragged batch of each kind."""

    def check(seed: int) -> None:
        random = np.random.default_rng(seed)
        setting = random_setting(random, LEGAL_TYPES[seed % len(LEGAL_TYPES)])
        ragged = RaggedCache(random, [50, 1, 20], setting.page_size if setting.cache_mode else None)
        expected = setting.memory(random, ragged.max_t)
        state = on_device(expected.arrays, expected.int4_shape)
        any_nan = setting.quant_bit != 0 or setting.t1 != setting.t2
        for new in ([7, 1, 0], [1, 0, 17], [33, 0, 1]):
            inputs = random_current(random, setting, sum(new)) | ragged.step(random, [0, 1, 2], new)
            got = device_call(setting.model(), inputs, state, shapes_of(inputs, setting.num_repeat))
            for name, oracle in zip(("key", "value"), setting.oracle(inputs, expected)):
                assert_same_bits(name, got[name], oracle, any_nan)
            for name, array in expected.arrays.items():
                assert_same_bits(name, state[name].numpy(), array, any_nan)

    each_seed(range(2 * len(LEGAL_TYPES)), check)


def one_token(setting: Setting, start: int, **changes: np.ndarray) -> Arrays:
    """A call that stores the first token of one sequence."""
    ones = np.ones((1, setting.num_heads, setting.head_dim), np.float32)
    index = dict(seqstarts=[0, 1], kvstarts=[0, 1], cachestarts=[start], start_pos=[0], max_seqlen=1, max_kvlen=1)
    arrays = {name: np.array(values, np.int64) for name, values in index.items()}
    return dict(current_key=ones, current_value=ones) | arrays | changes


def test_refusals_of_the_host_and_of_the_device() -> None:
    """What the host knows is refused at once, as on the CPU; what the device finds is told by the next call, which
    fails and does nothing, and the one after it works."""
    setting = Setting()
    state = {"cache": DeviceArray(np.zeros((8, 1, 2, setting.num_heads, setting.head_dim), np.float32))}

    def call(start: int, **changes: np.ndarray) -> None:
        inputs = one_token(setting, start, **changes)
        device_call(setting.model(), inputs, state, shapes_of(inputs, 1))

    with pytest.raises(Exception, match="starts_not_zero: kvstarts begins with 1"):
        call(3, kvstarts=np.array([1, 1]))
    call(8)  # the cache has slots 0 to 7
    assert not state["cache"].numpy().any(), "a token without a slot is skipped"
    with pytest.raises(Exception, match=r"device_status.*cachestarts.*batch 0, token 0"):
        call(2)
    assert not state["cache"].numpy().any(), "a refused call does nothing"
    call(2)
    assert state["cache"].numpy()[2].all()

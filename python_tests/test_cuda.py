"""The operator on ONNX Runtime's CUDA provider.

Needs a GPU, onnxruntime-gpu and a library built with the feature `cuda`. Without them the tests are skipped with the
reason; with `KVCACHE_REQUIRE_GPU` set the run ends with exit code 77 instead.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from kvcache_ops import step_indices

from compare import Arrays
from device_call import EMULATED, DeviceArray, device_call, device_session, why_no_gpu
from golden_cases import SUITES, GoldenCase, check_all
from kvcache import DOMAIN
from node import OPERATORS, STATIC_DOMAINS, STATIC_INPUTS, node_model, types_for, types_of, with_mass
from setting import Setting


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
    model = node_model(types_for(operator), dict(num_heads=2, head_dim=264), operator=operator)
    with pytest.raises(Exception, match=f"{operator} node 'cached': .*head_dim is 264, expected at most 256"):
        device_session(model)


def test_the_attentions_mass_is_refused() -> None:
    """By its name: no CUDA kernel gives it."""
    operator = "MultiHeadCacheAttention"
    model = node_model(types_for(operator), dict(num_heads=2, head_dim=8), operator=operator)
    with pytest.raises(Exception, match="attention_mass is an output of the CPU kernel alone"):
        device_session(with_mass(model))


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
    """Of all operators; where the device is emulated a part, since the tests in Rust run the rest."""
    check_all(suite, run_case, every=5 if EMULATED else 1)


def one_token(setting: Setting, start: int, **changes: np.ndarray) -> Arrays:
    """A call that stores the first token of one sequence."""
    ones = np.ones((1, setting.num_heads, setting.head_dim), np.float32)
    return dict(current_key=ones, current_value=ones) | step_indices([1], [0], cachestarts=[start])._asdict() | changes


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

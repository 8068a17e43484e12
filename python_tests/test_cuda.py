"""The operator on ONNX Runtime's CUDA provider.

Needs a GPU, onnxruntime-gpu and a library built with the feature `cuda`. Without them the tests are skipped with the
reason; with `KVCACHE_REQUIRE_GPU` set the run ends with exit code 77 instead.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import yaml
from onnx import TensorProto
from oracle_call import oracle_call
from safetensors.numpy import load_file
from test_attention_golden import CASES as ATTENTION_CASES

from compare import assert_same_bits, assert_within
from device_call import DeviceArray, device_attention, device_call, device_session, why_no_gpu
from kvcache import DOMAIN
from node import INPUTS, OPERATORS, STATIC_DOMAINS, STATIC_INPUTS, node_model, types_of
from ragged import RaggedCache
from setting import FLOAT, LEGAL_TYPES, Setting
from test_golden import CASES
from test_random import random_current, random_setting
from test_static_batching import CASES as STATIC_CASES


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


def legal(folder: Path) -> bool:
    """Whether every step of a golden case succeeds."""
    return not any("error" in step for step in yaml.safe_load((folder / "case.yaml").read_text())["steps"])


@pytest.mark.parametrize("folder", [folder for folder in CASES if legal(folder)], ids=lambda folder: folder.name)
def test_golden_case(folder: Path) -> None:
    """The oracle's bytes, step by step."""
    run_case(folder, DOMAIN, INPUTS)


@pytest.mark.parametrize("folder", [folder for folder in STATIC_CASES if legal(folder)], ids=lambda folder: folder.name)
def test_static_golden_case(folder: Path) -> None:
    """The same in static batching."""
    run_case(folder, STATIC_DOMAINS[0], STATIC_INPUTS)


def run_case(folder: Path, domain: str, signature: tuple[str, ...]) -> None:
    """Runs the steps of a legal case, of the operator that has these inputs in this domain."""
    case = yaml.safe_load((folder / "case.yaml").read_text())
    tensors = load_file(folder / "tensors.safetensors")
    int4_shape = tuple(case["int4"]["cache"]) if "int4" in case else None
    any_nan = case.get("compare", {}).get("nan") == "any"
    host = {name: tensors[name] for name in ("cache", "scale") if name in tensors}
    state = {name: DeviceArray(array, int4_shape if name == "cache" else None) for name, array in host.items()}
    for i, _ in enumerate(case["steps"]):
        given = [name for name in signature if name not in state and f"{i}.{name}" in tensors]
        inputs = {name: tensors[f"{i}.{name}"] for name in given}
        attributes = case.get("attributes", {})
        model = node_model(types_of(inputs | host, int4_shape is not None), attributes, domain=domain)
        key, value = device_call(model, inputs, state, attributes.get("num_repeat", 1))
        got = dict(key=key, value=value) | {name: array.numpy() for name, array in state.items()}
        for name, array in got.items():
            assert_same_bits(f"step {i}: {name}", array, np.asarray(tensors[f"{i}.{name}"]), any_nan)


@pytest.mark.parametrize("folder", [folder for folder in ATTENTION_CASES if legal(folder)], ids=lambda at: at.name)
def test_golden_case_of_attention(folder: Path) -> None:
    """Within the oracle's tolerance, step by step, and the oracle's bytes in the cache."""
    case = yaml.safe_load((folder / "case.yaml").read_text())
    tensors = load_file(folder / "tensors.safetensors")
    int4_shape = tuple(case["int4"]["cache"]) if "int4" in case else None
    host = {name: tensors[name] for name in ("cache", "scale") if name in tensors}
    state = {name: DeviceArray(array, int4_shape if name == "cache" else None) for name, array in host.items()}
    names = [name for name in OPERATORS[case["operator"]][0] if name not in state]
    for i, _ in enumerate(case["steps"]):
        inputs = {name: tensors[f"{i}.{name}"] for name in names if f"{i}.{name}" in tensors}
        types = types_of(inputs | host, int4_shape is not None)
        model = node_model(types, case["attributes"], operator=case["operator"])
        got = device_attention(model, inputs, state)
        expected, tolerance = (tensors[f"{i}.{name}"] for name in ("attn_output", "tolerance"))
        assert_within(f"step {i}: attn_output", got, expected, tolerance)
        for name, array in state.items():
            assert_same_bits(f"step {i}: {name}", array.numpy(), np.asarray(tensors[f"{i}.{name}"]))


@pytest.mark.parametrize("seed", range(4 * len(LEGAL_TYPES)))
def test_random_calls(seed: int) -> None:
    """The oracle's bytes on a growing ragged batch of each kind."""
    random = np.random.default_rng(seed)
    setting = random_setting(random, LEGAL_TYPES[seed % len(LEGAL_TYPES)])
    print(f"seed {seed}: {setting!r}")
    ragged = RaggedCache(random, [50, 1, 20], setting.page_size if setting.cache_mode else None)
    expected = setting.memory(random, ragged.max_t)
    state = {
        name: DeviceArray(array, expected.int4_shape if name == "cache" else None)
        for name, array in expected.arrays.items()
    }
    any_nan = setting.quant_bit != 0 or setting.t1 != setting.t2
    for new in ([7, 1, 0], [1, 0, 17], [33, 0, 1]):
        inputs = random_current(random, setting, sum(new)) | ragged.step(random, [0, 1, 2], new)
        key, value = device_call(setting.model, inputs, state, setting.num_repeat)
        expected_key, expected_value = oracle_call(setting, inputs, expected)
        assert_same_bits("key", key, expected_key, any_nan)
        assert_same_bits("value", value, expected_value, any_nan)
        for name, array in expected.arrays.items():
            assert_same_bits(name, state[name].numpy(), array, any_nan)


def one_token(setting: Setting, start: int) -> dict[str, np.ndarray]:
    """A call that stores the first token of one sequence."""
    ones = np.ones((1, setting.num_heads, setting.head_dim), np.float32)
    index = lambda *numbers: np.array(numbers, np.int64)  # noqa: E731
    return dict(
        current_key=ones,
        current_value=ones,
        seqstarts=index(0, 1),
        kvstarts=index(0, 1),
        cachestarts=index(start),
        start_pos=index(0),
        max_seqlen=np.array(1, np.int64),
        max_kvlen=np.array(1, np.int64),
    )


def test_what_the_host_knows_is_refused_at_once() -> None:
    """As on the CPU, with the name of the rule, and the cache as it was."""
    setting = Setting()
    cache = np.zeros((8, 1, 2, setting.num_heads, setting.head_dim), np.float32)
    state = {"cache": DeviceArray(cache)}
    inputs = one_token(setting, 3) | dict(kvstarts=np.array([1, 1], np.int64))
    with pytest.raises(Exception, match="starts_not_zero: kvstarts begins with 1"):
        device_call(setting.model, inputs, state)
    assert not state["cache"].numpy().any()


def test_what_the_device_finds_is_told_by_the_next_call() -> None:
    """The next call fails and does nothing, the one after it works."""
    setting = Setting(layer_idx=0)
    cache = np.zeros((8, 1, 2, setting.num_heads, setting.head_dim), np.float32)
    state = {"cache": DeviceArray(cache)}
    device_call(setting.model, one_token(setting, 8), state)  # the cache has slots 0 to 7
    assert not state["cache"].numpy().any(), "a token without a slot is skipped"
    with pytest.raises(Exception, match=r"device_status.*cachestarts.*batch 0, token 0"):
        device_call(setting.model, one_token(setting, 2), state)
    assert not state["cache"].numpy().any(), "a refused call does nothing"
    device_call(setting.model, one_token(setting, 2), state)
    assert state["cache"].numpy()[2].all()

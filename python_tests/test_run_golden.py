"""Every golden case through `kvcache_ops.run` and the attention functions: the operators without ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import kvcache_ops
import numpy as np
import pytest
import yaml
from kvcache_ops import KvCacheError
from safetensors.numpy import load_file

from compare import assert_same_bits

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(path.parent for folder in ("cases", "attention_cases") for path in GOLDEN.glob(f"{folder}/*/case.yaml"))

FUNCTIONS = {
    "KeyValueCache": (kvcache_ops.run, kvcache_ops.check),
    "MultiHeadAttention": (kvcache_ops.multi_head_attention, kvcache_ops.check_multi_head_attention),
    "MultiHeadCacheAttention": (kvcache_ops.multi_head_cache_attention, kvcache_ops.check_multi_head_cache_attention),
}
OUTPUTS = {"KeyValueCache": ("key", "value")}


def test_there_are_cases() -> None:
    """Those of each operator are found."""
    assert len(CASES) > 700


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_case(folder: Path) -> None:
    """Each step gives the oracle's bytes, or is refused by its kind, by `check` too, and changes nothing."""
    case = yaml.safe_load((folder / "case.yaml").read_text())
    operator = case.get("operator", "KeyValueCache")
    run, check = FUNCTIONS[operator]
    outputs = OUTPUTS.get(operator, ("attn_output",))
    tensors = load_file(folder / "tensors.safetensors")
    state = {name: tensors[name].copy() for name in ("cache", "scale") if name in tensors}
    if "int4" in case:
        shape = case["int4"]["cache"]
        state["cache"] = state["cache"].reshape(*shape[:-1], shape[-1] // 2)
    any_nan = case.get("compare", {}).get("nan") == "any"

    for i, step in enumerate(case["steps"]):
        of_step = {name.removeprefix(f"{i}."): x.copy() for name, x in tensors.items() if name.startswith(f"{i}.")}
        inputs = {name: x for name, x in of_step.items() if name not in (*outputs, "tolerance")} | state
        before = {name: array.copy() for name, array in state.items()}
        attributes = case.get("attributes", {})
        if "error" in step:
            for function in (check, run):
                with pytest.raises(KvCacheError) as refusal:
                    function(attributes, **inputs)
                assert refusal.value.kind == step["error"]
                for mention in step["mentions"]:
                    assert str(mention) in str(refusal.value)
            expected = before
        else:
            shape = check(attributes, **inputs)
            for name, array in before.items():
                assert_same_bits(f"step {i}, checked: {name}", state[name], array)
            got = run(attributes, **inputs)
            got = dict(zip(outputs, got if isinstance(got, tuple) else (got,)))
            assert all(array.shape == shape for array in got.values())
            expected = {name: tensors[f"{i}.{name}"] for name in state}
            for name, array in got.items():
                assert_as_expected(
                    f"step {i}: {name}", array, tensors[f"{i}.{name}"], tensors.get(f"{i}.tolerance"), any_nan
                )
        for name, array in expected.items():
            assert_same_bits(f"step {i}: {name}", state[name].reshape(array.shape), np.asarray(array), any_nan)


def assert_as_expected(
    name: str, got: np.ndarray, expected: np.ndarray, tolerance: np.ndarray | None, any_nan: bool
) -> None:
    """The same bits, or, of attention, within the case's tolerance of every element."""
    if tolerance is None:
        assert_same_bits(name, got, np.asarray(expected), any_nan)
        return
    finite = np.isfinite(expected)
    difference = np.abs(got[finite].astype(np.float64) - expected[finite])
    assert (difference <= tolerance[finite]).all(), name
    np.testing.assert_array_equal(got[~finite], expected[~finite], name)

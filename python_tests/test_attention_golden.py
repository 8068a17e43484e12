"""Every golden case of the attention operators through ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from safetensors.numpy import load_file

from compare import assert_same_arrays, assert_same_bits, assert_within
from node import OPERATORS, node_model, run_node, session_of, types_of
from test_golden import in_signature

CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "golden/attention_cases").glob("*/case.yaml"))


def test_there_are_cases() -> None:
    """The folder is found and not empty."""
    assert CASES


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_case(folder: Path) -> None:
    """Runs the steps: each is within the oracle's tolerance, with its cache, or is refused and writes nothing."""
    case = yaml.safe_load((folder / "case.yaml").read_text())
    tensors = load_file(folder / "tensors.safetensors")
    state = {name: tensors[name].copy() for name in ("cache", "scale") if name in tensors}
    int4_shape = tuple(case["int4"]["cache"]) if "int4" in case else None
    names = [name for name in OPERATORS[case["operator"]][0] if name not in state]
    assert case["steps"], "a case has steps"

    for i, step in enumerate(case["steps"]):
        inputs = {name: tensors[f"{i}.{name}"].copy() for name in names if f"{i}.{name}" in tensors} | state
        types = types_of(inputs, int4_shape is not None)
        model = node_model(types, case["attributes"], operator=case["operator"])
        if "error" in step:
            before = {name: array.copy() for name, array in state.items()}
            with pytest.raises(Exception) as refusal:
                run_node(session_of(model), inputs, int4_shape)
            for mention in [f"{step['error']}: "] * in_signature(case["operator"], inputs) + step["mentions"]:
                assert str(mention) in str(refusal.value)
            assert_same_arrays(state, before)
        else:
            [attn_output] = run_node(session_of(model), inputs, int4_shape)
            assert attn_output.dtype == inputs["query"].dtype
            expected, tolerance = (tensors[f"{i}.{name}"] for name in ("attn_output", "tolerance"))
            assert_within(f"step {i}: attn_output", attn_output, expected, tolerance)
            for name, got in state.items():
                assert_same_bits(f"step {i}: {name}", got, tensors[f"{i}.{name}"])

"""Every golden case through ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from compare import assert_same_bits
from node import INPUTS, call, node_model, session_of, types_of

CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "golden/cases").glob("*/case.yaml"))

# The types that ONNX Runtime chooses an operator by: what has none of them it refuses itself, and names the input and
# the type as the cases ask, but has no kinds of errors. Other inputs may be of any type, which the operator refuses.
ROWS = {"float32", "float16", "int8"}
SIGNATURE = dict(query=ROWS, current_key=ROWS, cache=ROWS | {"uint8"})  # uint8: packed int4
SIGNATURE |= {name: {"int64"} for name in INPUTS[2:8]} | {"decoding_batches": {"int64"}}


def in_signature(operator: str, inputs: dict[str, np.ndarray]) -> bool:
    """Whether the operator is registered for arrays of these types."""
    chosen_by = {name: x.dtype.name for name, x in inputs.items() if name in SIGNATURE}
    if operator == "MultiHeadCacheAttention":
        del chosen_by["current_key"]  # the first input is query
    return all(name in SIGNATURE[input] for input, name in chosen_by.items())


def test_there_are_cases() -> None:
    """The folder is found and not empty."""
    assert CASES


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_case(folder: Path) -> None:
    """Plays the steps of a case: each succeeds with the oracle's bytes, or is refused and changes nothing."""
    case = yaml.safe_load((folder / "case.yaml").read_text())
    tensors = load_file(folder / "tensors.safetensors")
    state = {name: tensors[name].copy() for name in ("cache", "scale") if name in tensors}
    int4_shape = tuple(case["int4"]["cache"]) if "int4" in case else None
    any_nan = case.get("compare", {}).get("nan") == "any"
    assert case["steps"], "a case has steps"

    for i, step in enumerate(case["steps"]):
        inputs = {
            name: tensors[f"{i}.{name}"].copy() for name in INPUTS if f"{i}.{name}" in tensors and name not in state
        }
        inputs |= state
        model = node_model(types_of(inputs, int4_shape is not None), case.get("attributes", {}))
        if "error" in step:
            before = {name: array.copy() for name, array in state.items()}
            with pytest.raises(Exception) as refusal:
                call(session_of(model), inputs, int4_shape)
            for mention in [f"{step['error']}: "] * in_signature("KeyValueCache", inputs) + step["mentions"]:
                assert str(mention) in str(refusal.value)
            for name, array in before.items():
                assert_same_bits(f"step {i}, refused: {name}", state[name], array)
        else:
            key, value = call(session_of(model), inputs, int4_shape)
            for name, got in dict(key=key, value=value, **state).items():
                assert_same_bits(f"step {i}: {name}", got, np.asarray(tensors[f"{i}.{name}"]), any_nan)

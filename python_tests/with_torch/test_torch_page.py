"""The block of the package's page that needs torch."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx

from torch_steps import run_in_place

PAGE = Path(__file__).resolve().parents[2] / "python/README.md"


def test_the_block_runs_and_what_it_exports_does_too() -> None:
    """As it stands; ONNX Runtime then writes the same cache and gives the same attention."""
    (block,) = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    names: dict = {}
    exec(compile(block, PAGE.name, "exec"), names)
    inputs = {name: tensor.numpy() for name, tensor in names["inputs"].items()}
    cache = np.zeros_like(inputs["cache"])
    model: onnx.ModelProto = names["program"].model_proto
    used = {value.name for value in model.graph.input}
    index = {name: array for name, array in inputs.items() if name != "cache" and name in used}
    (attended,) = run_in_place(model, index, {"cache": cache})
    assert np.array_equal(attended, names["attended"].numpy()) and np.array_equal(cache, inputs["cache"])

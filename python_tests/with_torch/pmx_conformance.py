"""The public PMX implementation of KeyValueCache as the conformance kit calls it.

`PMX_CHECKOUT` names a checkout of the repository openppl-public/ppl.pmx; nothing is downloaded. It can be run as a
command, too: `python -m kvcache_ops conformance pmx_conformance:key_value_cache`.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache as once
from pathlib import Path
from typing import Any

import numpy as np
import torch

FILE = "torch_function/dynamic_batching/KeyValueCache.py"
# It has no int4, and does not check its arguments: calls that are legal, of what it has.
PROFILE = {
    "name": "PMX in torch",
    "outside": "skip",
    "operators": {"KeyValueCache": {"T1": ["float32", "float16"], "T2": ["float32", "float16", "int8"]}},
}


def checkout() -> Path | None:
    """The checkout, if the environment names one that has the file."""
    folder = os.environ.get("PMX_CHECKOUT")
    return Path(folder) if folder and (Path(folder) / FILE).is_file() else None


@once
def function() -> Any:
    """Its class, an autograd function."""
    folder = checkout()
    if folder is None:
        raise FileNotFoundError(f"PMX_CHECKOUT names no checkout with {FILE}")
    spec = importlib.util.spec_from_file_location("pmx_key_value_cache", folder / FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.KeyValueCache


def key_value_cache(
    attributes: dict[str, int], inputs: dict[str, np.ndarray], cache: np.ndarray, scale: np.ndarray | None
) -> Any:
    """A call of it, on tensors that share the arrays' memory."""
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    shared = None if scale is None else torch.from_numpy(scale)
    key, value = function().apply(*tensors.values(), torch.from_numpy(cache), shared, *attributes.values())
    return key, value

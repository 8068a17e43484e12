"""The public PMX implementation of KeyValueCache as the conformance kit calls it.

`PMX_CHECKOUT` names a checkout of the repository openppl-public/ppl.pmx; nothing is downloaded. For the report, in this
folder: `python -m kvcache_ops conformance pmx_conformance:key_value_cache --profile pmx_profile.yaml`.
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
INPUTS = ("current_key", "current_value", "seqstarts", "kvstarts", "cachestarts", "start_pos")
INPUTS += ("max_seqlen", "max_kvlen")
ATTRIBUTES = ("num_layer", "layer_idx", "quant_bit", "quant_group", "num_repeat")
ATTRIBUTES += ("cache_mode", "cache_layout", "page_size")


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
    """A call of it, on tensors that share the arrays' memory: by position, as an autograd function is called."""
    tensors = [torch.from_numpy(inputs[name]) for name in INPUTS]
    state = [None if array is None else torch.from_numpy(array) for array in (cache, scale)]
    key, value = function().apply(*tensors, *state, *(attributes[name] for name in ATTRIBUTES))
    return key, value

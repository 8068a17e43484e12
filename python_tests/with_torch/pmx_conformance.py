"""The public PMX implementation of the operators as the conformance kit calls them.

`PMX_CHECKOUT` names a checkout of the repository openppl-public/ppl.pmx; nothing is downloaded. For a report, in this
folder, after `make .venv-torch/wheel`:

    export PMX_CHECKOUT=~/ppl.pmx
    TYPES="--only T1=float32,float16,int8 --only T2=float32,float16,int8 --only quant_rotation=0"
    VARIANTS="--only head_sink=0 --only scale=0 --only softcap=0 --only local_window_size=-1"
    ../../.venv-torch/bin/python -m kvcache_ops conformance pmx_conformance:key_value_cache $TYPES
    ../../.venv-torch/bin/python -m kvcache_ops conformance pmx_conformance:attend --suite attention $TYPES $VARIANTS

or with `--suite static` and `pmx_conformance:static_key_value_cache`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import cache as once
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDER = "torch_function"
# The inputs and attributes of each operator in the order of its function's arguments, between which cache and scale
# stand (for KeyValueCache), or cache, scale and attn_mask (for attention).
INDICES = ("seqstarts", "kvstarts", "cachestarts", "start_pos")
SIZES = ("max_seqlen", "max_kvlen")
CURRENT = ("current_key", "current_value")
CACHE = ("num_layer", "layer_idx", "quant_bit", "quant_group")
PAGES = ("cache_mode", "cache_layout", "page_size")
HEADS = ("num_heads", "head_dim", "is_causal", "is_alibi", "num_kv_heads")


def checkout() -> Path | None:
    """The folder of its functions, if the environment names a checkout that has it."""
    folder = os.environ.get("PMX_CHECKOUT")
    return Path(folder) / FOLDER if folder and (Path(folder) / FOLDER / "KeyValueCache.py").is_file() else None


@once
def module(name: str, file: str) -> Any:
    """A module or package of its functions, by its name and its file there."""
    folder = checkout()
    if folder is None:
        raise FileNotFoundError(f"PMX_CHECKOUT names no checkout with {FOLDER}/KeyValueCache.py")
    spec = importlib.util.spec_from_file_location(name, folder / file)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded  # where a package's modules look for it
    spec.loader.exec_module(loaded)
    return loaded


def dynamic_batching() -> Any:
    """The functions of dynamic batching."""
    return module("pmx_dynamic_batching", "dynamic_batching/__init__.py")


def tensors(*arrays: np.ndarray | None) -> list[torch.Tensor | None]:
    """Tensors that share the arrays' memory."""
    return [None if array is None else torch.from_numpy(array) for array in arrays]


def key_value_cache(
    attributes: dict[str, int], inputs: dict[str, np.ndarray], cache: np.ndarray, scale: np.ndarray | None
) -> Any:
    """A call of KeyValueCache."""
    names = (*CACHE, "num_repeat", *PAGES)
    return dynamic_batching().key_value_cache(
        *tensors(*(inputs[name] for name in (*CURRENT, *INDICES, *SIZES)), cache, scale),
        *(attributes[name] for name in names),
    )


def static_key_value_cache(
    attributes: dict[str, int], inputs: dict[str, np.ndarray], cache: np.ndarray, scale: np.ndarray | None
) -> Any:
    """A call of static batching's KeyValueCache, whose start_pos is a tensor of one element and never a scalar."""
    names = (*CACHE, "num_repeat", "cache_layout")
    start_pos = inputs["start_pos"].reshape(1)  # which it iterates over
    return module("pmx_key_value_cache", "KeyValueCache.py").key_value_cache(
        *tensors(*(inputs[name] for name in CURRENT), start_pos, cache, scale),
        *(attributes[name] for name in names),
    )


def attend(
    op_type: str,
    attributes: dict[str, int],
    inputs: dict[str, np.ndarray],
    cache: np.ndarray | None,
    scale: np.ndarray | None,
) -> Any:
    """A call of one of the attention operators."""
    functions, mask = dynamic_batching(), inputs.get("attn_mask")
    heads = [attributes[name] for name in HEADS]
    if op_type == "MultiHeadAttention":
        names = ("query", "key", "value", *INDICES[:2], "decoding_batches", *SIZES)
        return functions.multi_head_attention(*tensors(*(inputs[name] for name in names), mask), *heads)
    names = ("query", *CURRENT, *INDICES, "decoding_batches", *SIZES)
    return functions.multi_head_cache_attention(
        *tensors(*(inputs[name] for name in names), cache, scale, mask),
        *heads,
        *(attributes[name] for name in (*CACHE, *PAGES)),
    )

"""Steps of ragged batches as torch tensors, on a cache that numpy arrays share."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import torch
from kvcache_ops import Cache, CacheSpec
from torch import Tensor

from one_node import RaggedCache
from sessions import create_session, run_node

NUM_HEADS = 4
TYPES = {"float32": torch.float32, "float16": torch.float16}
CAPACITIES = [30, 22, 26]
STEPS = ([0, 1], [5, 3]), ([0, 1, 2], [1, 1, 9]), ([2], [4]), ([1, 0, 2], [6, 1, 1])


def spec_of(dtype: str, quant_bit: int, page_size: int | None, cache_layout: int) -> CacheSpec:
    """A cache of three layers with room for the sequences of `steps`, pages or runs."""
    return CacheSpec(
        max_tokens=160,
        num_kv_heads=2,
        head_dim=16,
        dtype=dtype,
        num_layers=3,
        cache_layout=cache_layout,
        quant_bit=quant_bit,
        quant_group=4,
        scale_dtype="float16" if quant_bit else None,
        cache_mode=int(page_size is not None),
        page_size=page_size or 128,
    )


def steps(spec: CacheSpec, seed: int = 3) -> list[dict[str, np.ndarray]]:
    """The inputs of four steps but for the cache: random queries, keys and values, and the indices."""
    random = np.random.default_rng(seed)
    ragged = RaggedCache(random, CAPACITIES, spec.page_size if spec.cache_mode else None)
    assert ragged.max_t <= spec.max_tokens

    def step(members: list[int], seqlens: list[int]) -> dict[str, np.ndarray]:
        heads = dict(query=NUM_HEADS, current_key=spec.num_kv_heads, current_value=spec.num_kv_heads)
        shapes = {name: (sum(seqlens), count, spec.head_dim) for name, count in heads.items()}
        tensors = {name: random.standard_normal(shape).astype(spec.dtype) for name, shape in shapes.items()}
        return tensors | ragged.step(random, members, seqlens) | {"decoding_batches": np.array(0)}

    return [step(*sizes) for sizes in STEPS]


def torch_cache(spec: CacheSpec) -> tuple[Tensor, Tensor | None]:
    """A cache of zeros in torch's own memory; an int4 one of bytes."""
    cache, scale = (None if array is None else torch.from_numpy(array) for array in spec.allocate())
    return torch.zeros_like(cache), None if scale is None else torch.zeros_like(scale)


def as_tensors(step: dict[str, np.ndarray], *without: str) -> dict[str, Tensor]:
    """A step's inputs, without some of them."""
    return {name: torch.from_numpy(np.array(array)) for name, array in step.items() if name not in without}


def as_arrays(step: dict[str, np.ndarray], memory: Cache, *without: str) -> dict[str, Any]:
    """The same for `kvcache_ops.run`, with its cache."""
    cache, scale = memory
    return {name: array for name, array in step.items() if name not in without} | dict(cache=cache, scale=scale)


def run_in_place(model: onnx.ModelProto, inputs: dict[str, np.ndarray], memory: Cache | None) -> list[np.ndarray]:
    """The outputs of the model in ONNX Runtime; the memory is written."""
    return run_node(create_session(model.SerializeToString()), inputs, memory)

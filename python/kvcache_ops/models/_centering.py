"""The mean key of each layer and head, which a model with a quantized cache subtracts before it stores keys.

All scores of a query change by its product with the mean, so that attention stays the same, and what is left of a key
is smaller, so that its codes are finer. The mean is taken in a run of the model itself, after RoPE: over positions as
far apart as those of a conversation, since a mean over near ones has channels that have turned round in a longer one.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper, save

from kvcache_ops._optional import load as load_package
from kvcache_ops.models._layer_groups import LayerGroups
from kvcache_ops.ops._cache_spec import CacheSpec
from kvcache_ops.ops._indices import step_indices
from kvcache_ops.ops._registration import register

MEAN = ".key_mean"
"""The end of the names of the means, constants of the graph; what stands before it is the key's name."""
TOKENS = 256
POSITIONS = 2048
"""The tokens are spread over so many positions, also where the context is shorter: sessions fit to any context."""


def set_means(model: ModelProto, folder: Path, spec: CacheSpec, groups: LayerGroups, vocab_size: int) -> str:
    """Sets the means, zeros until then, to the means of the keys of random tokens; the weights are in `folder`.

    Returns the SHA-256 of the means.
    """
    tokens = np.random.default_rng(0).integers(0, vocab_size, TOKENS)
    positions = np.arange(TOKENS) * (POSITIONS // TOKENS)
    means = [tensor for tensor in model.graph.initializer if tensor.name.endswith(MEAN)]
    keys = [tensor.name.removesuffix(MEAN) for tensor in means]
    with_keys = ModelProto()
    with_keys.CopyFrom(model)
    with_keys.graph.output.extend(helper.make_tensor_value_info(key, TensorProto.FLOAT, None) for key in keys)
    save(with_keys, path := folder / "with_keys.onnx")
    runtime = load_package("onnxruntime", "centered keys")
    options = runtime.SessionOptions()
    register(options)
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    path.unlink()
    pages = -(-len(tokens) // spec.page_size)
    if spec.cache_mode == 1:
        indices = step_indices([len(tokens)], [0], pages=[range(pages)], page_size=spec.page_size)
    else:
        indices = step_indices([len(tokens)], [0], cachestarts=[0])
    feeds: dict[str, Any] = {"token_ids": tokens, "positions": positions, "logit_rows": np.zeros(1, int)}
    feeds |= {"attn_mask": np.empty((0, 1), np.float32), **indices.attention()}
    for group in range(len(groups.windows)):
        names = groups.inputs(group)
        memory = replace(groups.spec(group, spec), max_tokens=pages * spec.page_size).allocate().ortvalues()
        feeds |= {names["cachestarts"]: indices.cachestarts} | {names[name]: value for name, value in memory.items()}
    inputs = {value.name for value in session.get_inputs()}
    found = session.run(keys, {name: value for name, value in feeds.items() if name in inputs})
    digest = sha256()
    for tensor, values in zip(means, found):
        mean = values.mean(axis=0, dtype=np.float64).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(mean, tensor.name))
        digest.update(mean.tobytes())
    return digest.hexdigest()

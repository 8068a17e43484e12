"""The trained model of austen/ for ONNX Runtime: its graph for any cache format, its tokenizer, the held-back text.

The graph is what `torch.onnx.export` made of a torch module (austen/export.py). A cache format is not built into it:
it is two attributes of the operator's nodes and the types of two graph inputs.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp
from pathlib import Path

import numpy as np
import onnx
import sentencepiece
from onnx import TensorProto

from decoder import Decoder
from engine import Engine
from kvcache import DOMAIN, CacheFormat

FOLDER = Path(__file__).parent / "austen"
TRAINED = Decoder(
    num_layer=4, num_heads=4, num_kv_heads=2, head_dim=32, ffn_dim=352, vocab_size=1024, max_positions=512
)
PAGE_SIZE = 16
CACHE_LAYOUT = 3


def _quantized(cache_type: int, quant_bit: int, quant_group: int) -> CacheFormat:
    """A format with float16 scales."""
    return CacheFormat(TensorProto.FLOAT, cache_type, TensorProto.FLOAT16, quant_bit, quant_group)


# The model computes in float32; its keys and values are kept as one of these.
KEPT_AS = {
    "float32": CacheFormat(TensorProto.FLOAT, TensorProto.FLOAT),
    "float16": CacheFormat(TensorProto.FLOAT, TensorProto.FLOAT16),
    "int8, groups of 8": _quantized(TensorProto.INT8, 8, 8),
    "int8, groups of 32": _quantized(TensorProto.INT8, 8, 32),
    "int4, groups of 8": _quantized(TensorProto.INT4, 4, 8),
    "int4, groups of 16": _quantized(TensorProto.INT4, 4, 16),
    "int4, groups of 32": _quantized(TensorProto.INT4, 4, 32),
}


@lru_cache(maxsize=1)
def tokenizer() -> sentencepiece.SentencePieceProcessor:
    """Between text and token ids."""
    return sentencepiece.SentencePieceProcessor(model_file=str(FOLDER / "tokenizer.model"))


def held_back_text() -> str:
    """What the model has never seen: the last chapter of each novel."""
    return (FOLDER / "held_back.txt").read_text(encoding="utf-8")


def trained_model(format: CacheFormat, *, fused: bool = False) -> bytes:
    """The exported graph with its weights, for a cache of this format.

    `fused` takes the graph whose attention is one operator; in the other one, standard operators attend to what
    `KeyValueCache` returns.
    """
    model = onnx.load(FOLDER / ("decoder_fused.onnx" if fused else "decoder.onnx"))
    for node in model.graph.node:
        if node.domain != DOMAIN:
            continue
        for attribute in node.attribute:
            if attribute.name in ("quant_bit", "quant_group"):
                attribute.i = getattr(format, attribute.name)
        if format.scale_type is None:
            node.input.remove("scale")  # the last one
    inputs = {value.name: value for value in model.graph.input}
    inputs["cache"].type.tensor_type.elem_type = format.cache_type
    if format.scale_type is None:
        model.graph.input.remove(inputs["scale"])
    else:
        scale = inputs["scale"].type.tensor_type
        scale.elem_type = format.scale_type
        scale.shape.dim[-1].dim_value = TRAINED.head_dim // format.quant_group
    return model.SerializeToString()


def trained_engine(format: CacheFormat, *, max_t: int, fused: bool = False, threads: int = 0) -> Engine:
    """The model with a cache of `max_t` slots."""
    return Engine(
        TRAINED,
        format,
        max_t=max_t,
        page_size=PAGE_SIZE,
        cache_layout=CACHE_LAYOUT,
        threads=threads,
        model=trained_model(format, fused=fused),
    )


def perplexity(engine: Engine, tokens: list[int], window: int) -> float:
    """Of each token but the first, predicted from those before it in its window of that many tokens.

    A window is one step: every one of its tokens attends to keys and values that have been through the cache.
    """
    total = 0.0
    for first in range(0, len(tokens) - 1, window):
        chunk = tokens[first : first + window + 1]
        seq = engine.manager.create()
        logits = engine.decode({seq: chunk[:-1]})[seq]
        engine.manager.free(seq)
        total -= log_probabilities(logits)[np.arange(len(logits)), chunk[1:]].sum()
    return exp(total / (len(tokens) - 1))


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """The logarithm of the softmax along the last axis, in float64."""
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))

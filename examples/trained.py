"""The trained model of austen/ for ONNX Runtime: its graph for any cache format, its tokenizer, the held-out text.

`torch.onnx.export` wrote the graph from a torch module (see austen/NOTICE). The cache format is not built in: it is two
attributes of the operator's nodes and the types of two graph inputs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import sentencepiece
from kvcache_ops import CacheSpec
from kvcache_ops.manager import Append, HostMemory, Manager, Rope

from kvcache import DOMAIN, TYPE_NAMES, create_session

FOLDER = Path(__file__).parent / "austen"
LAYERS, KV_HEADS, HEAD_DIM, VOCABULARY, CONTEXT = 4, 2, 32, 1024, 512
PAGE_SIZE = 16
TYPES = {name: element_type for element_type, name in TYPE_NAMES.items()}


def spec_of(**format: Any) -> CacheSpec:
    """A cache of one slot, whose scales are float16 where it is quantized."""
    scale = {"scale_dtype": "float16"} if "quant_bit" in format else {}
    paging = dict(cache_layout=3, cache_mode=1, page_size=PAGE_SIZE)
    return CacheSpec(1, KV_HEADS, HEAD_DIM, "float32", LAYERS, **paging, **scale, **format)


# The model computes in float32; its keys and values are kept as one of these.
KEPT_AS = {
    "float32": spec_of(),
    "float16": spec_of(cache_dtype="float16"),
    **{f"int8, groups of {group}": spec_of(quant_bit=8, quant_group=group) for group in (8, 32)},
    **{f"int4, groups of {group}": spec_of(quant_bit=4, quant_group=group) for group in (8, 16, 32)},
}


@lru_cache(maxsize=1)
def tokenizer() -> sentencepiece.SentencePieceProcessor:
    """Between text and token ids."""
    return sentencepiece.SentencePieceProcessor(model_file=str(FOLDER / "tokenizer.model"))


def held_back_text() -> str:
    """What the model has never seen: the last chapter of each novel."""
    return (FOLDER / "held_back.txt").read_text(encoding="utf-8")


def trained_model(spec: CacheSpec, *, fused: bool = False) -> bytes:
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
                attribute.i = getattr(spec, attribute.name)
        if spec.scale_dtype is None:
            node.input.remove("scale")  # the last one
    inputs = {value.name: value for value in model.graph.input}
    inputs["cache"].type.tensor_type.elem_type = TYPES[spec.cache_dtype]
    if spec.scale_dtype is None:
        model.graph.input.remove(inputs["scale"])
    else:
        scale = inputs["scale"].type.tensor_type
        scale.elem_type = TYPES[spec.scale_dtype]
        scale.shape.dim[-1].dim_value = HEAD_DIM // spec.quant_group
    return model.SerializeToString()


class TrainedModel:
    """The model over a cache of `max_t` slots in pages, bound in place, and the manager of that cache.

    threads: those inside an operator; 0 takes all cores.
    """

    def __init__(self, spec: CacheSpec, *, max_t: int, fused: bool = False, threads: int = 0):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = create_session(trained_model(spec, fused=fused), options)
        spec = replace(spec, max_tokens=max_t)
        self.cache, self.manager = spec.allocate(), Manager(spec, rope=Rope(HEAD_DIM))
        self._memory = HostMemory(spec, *self.cache)
        self._inputs = [x.name for x in self._session.get_inputs() if x.name not in ("cache", "scale")]
        self._binding = self._session.io_binding()
        self.cache.bind(self._binding)

    def decode(self, tokens: dict[int, list[int]]) -> dict[int, np.ndarray]:
        """One step that appends tokens to sequences; the logits of those that had to be computed, by sequence."""
        seqs = list(tokens)
        with self.manager.begin_step([Append(seq, tokens=new) for seq, new in tokens.items()], self._memory) as step:
            for name in self._inputs:
                self._binding.bind_cpu_input(name, getattr(step, name))
            self._binding.bind_output("logits", "cpu")  # again, or it would keep the shape of the last step
            self._session.run_with_iobinding(self._binding)
            logits = self._binding.copy_outputs_to_cpu()[0]
            # A step puts entries of one token first, and leaves out what is cached.
            ends = zip(step.order, step.seqstarts, step.seqstarts[1:])
            return {seqs[append]: logits[first:end] for append, first, end in ends}


def perplexity(model: TrainedModel, tokens: list[int], window: int) -> float:
    """Of each token but the first, predicted from those before it in its window of that many tokens.

    A window is one step: every one of its tokens attends to keys and values that have been through the cache.
    """
    total = 0.0
    for first in range(0, len(tokens) - 1, window):
        chunk = tokens[first : first + window + 1]
        seq = model.manager.create()
        logits = model.decode({seq: chunk[:-1]})[seq]
        model.manager.free(seq)
        logits = logits.astype(np.float64)
        total += (np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(logits)), chunk[1:]]).sum()
    return exp(total / (len(tokens) - 1))

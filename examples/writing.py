"""A small trained model writes, with caches of several formats; `make run` runs this where it has no network.

The model was trained on Jane Austen's novels without the last chapter of each (austen/README.md). It continues a few
beginnings in one batch, and then predicts the held-out chapters with each cache format: the perplexity shows what a
format costs in quality. The exit status is 1 if one differs from docs/quality.csv.
"""

from __future__ import annotations

import argparse
import csv
import sys
import textwrap
from math import exp
from pathlib import Path
from typing import Any

import kvcache_ops
import numpy as np
import onnx
import onnxruntime
import sentencepiece
from kvcache_ops import CacheSpec
from kvcache_ops.manager import Append, HostMemory, Manager, Rope
from onnx import TensorProto

FOLDER = Path(__file__).parent / "austen"
RECORD = Path(__file__).resolve().parents[1] / "docs/quality.csv"
LAYERS, KV_HEADS, HEAD_DIM, CONTEXT = 4, 2, 32, 512
FLOAT, HALF, INT8, INT4 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.INT4
TYPES = {"float32": FLOAT, "float16": HALF, "int8": INT8, "int4": INT4}
NEW_TOKENS = 72  # after each beginning
TEMPERATURE = 0.6
TOLERANCE = 2e-3  # of a recorded perplexity; formats of neighboring quality are further apart
BEGINNINGS = (
    "It is a truth universally acknowledged, that",
    "Emma was sorry to",
    "The ball was",
    "Captain Wentworth had",
    "Mrs. Bennet was delighted with",
    '"My dear Fanny," said Edmund,',
    "Catherine opened the door, and",
    "Elinor, who had not heard the letter,",
    "Mr. Knightley looked at her with",
    "The rain",
    '"I have not the pleasure of understanding you," said',
    "As soon as they were gone, Elizabeth walked",
)


def spec_of(**format: Any) -> CacheSpec:
    """A cache in pages for all beginnings, whose scales are float16 where it is quantized."""
    scale = {"scale_dtype": "float16"} if "quant_bit" in format else {}
    paging = dict(cache_layout=3, cache_mode=1, page_size=16)
    return CacheSpec(len(BEGINNINGS) * CONTEXT, KV_HEADS, HEAD_DIM, "float32", LAYERS, **paging, **scale, **format)


# The model computes in float32; its keys and values are stored as one of these.
FORMATS = {
    "float32": spec_of(),
    "float16": spec_of(cache_dtype="float16"),
    **{f"int8, groups of {group}": spec_of(quant_bit=8, quant_group=group) for group in (8, 32)},
    **{f"int4, groups of {group}": spec_of(quant_bit=4, quant_group=group) for group in (8, 16, 32)},
}
TOKENIZER = sentencepiece.SentencePieceProcessor(model_file=str(FOLDER / "tokenizer.model"))


def held_out_text() -> str:
    """What the model has never seen: the last chapter of each novel."""
    return (FOLDER / "held_out.txt").read_text(encoding="utf-8")


def with_cache(spec: CacheSpec) -> bytes:
    """The graph that torch exported, with its weights, for a cache of this format.

    The export has an int8 cache; a format is two attributes of the operator's nodes and the types of two graph inputs.
    """
    model = onnx.load(FOLDER / "decoder_fused.onnx")
    inputs = {value.name: value for value in model.graph.input}
    for node in model.graph.node:
        if node.domain == kvcache_ops.DOMAIN:
            for attribute in node.attribute:
                if attribute.name in ("quant_bit", "quant_group"):
                    attribute.i = getattr(spec, attribute.name)
            if spec.scale_dtype is None:
                node.input.remove("scale")  # the last one
    inputs["cache"].type.tensor_type.elem_type = TYPES[spec.cache_dtype]
    if spec.scale_dtype is None:
        model.graph.input.remove(inputs["scale"])
    else:
        inputs["scale"].type.tensor_type.elem_type = TYPES[spec.scale_dtype]
        inputs["scale"].type.tensor_type.shape.dim[-1].dim_value = HEAD_DIM // spec.quant_group
    return model.SerializeToString()


class Model:
    """The model over a cache of this format, which its session has bound, and the manager of that cache."""

    def __init__(self, spec: CacheSpec) -> None:
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        kvcache_ops.register(options)
        self._session = onnxruntime.InferenceSession(with_cache(spec), options, providers=["CPUExecutionProvider"])
        cache = spec.allocate()
        self.manager, self._memory = Manager(spec, rope=Rope(HEAD_DIM)), HostMemory(spec, *cache)
        self._inputs = [x.name for x in self._session.get_inputs() if x.name not in ("cache", "scale")]
        self._binding = self._session.io_binding()
        cache.bind(self._binding)

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

    def log_probabilities(self, tokens: list[int]) -> np.ndarray:
        """The logarithms of the probabilities of all next tokens behind each token, (tokens, vocabulary).

        Computed in one step: each token attends to keys and values that have been through the cache.
        """
        seq = self.manager.create()
        logits = self.decode({seq: tokens})[seq].astype(np.float64)
        self.manager.free(seq)
        return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)

    def perplexity(self, tokens: list[int]) -> float:
        """The perplexity of all tokens but the first, each predicted from those before it in its window."""
        windows = [tokens[first : first + CONTEXT + 1] for first in range(0, len(tokens) - 1, CONTEXT)]
        loss = sum(-self.log_probabilities(x[:-1])[np.arange(len(x) - 1), x[1:]].sum() for x in windows)
        return exp(loss / (len(tokens) - 1))

    def write(self) -> list[list[int]]:
        """Continues all beginnings in one batch; each follows a line's end, as a paragraph of the novels does.

        A token is the one of the largest sum of its logit and a number of Gumbel's distribution: a draw by probability.
        """
        random = [np.random.default_rng(i) for i in range(len(BEGINNINGS))]
        texts = {self.manager.create(): TOKENIZER.encode("\n" + beginning) for beginning in BEGINNINGS}
        new = {seq: list(tokens) for seq, tokens in texts.items()}
        for _ in range(NEW_TOKENS):
            for (seq, logits), draw in zip(sorted(self.decode(new).items()), random):
                new[seq] = [int((logits[-1] / TEMPERATURE + draw.gumbel(size=logits.shape[1])).argmax())]
                texts[seq] += new[seq]
        for seq in texts:
            self.manager.free(seq)
        return list(texts.values())


def recorded() -> dict[str, tuple[int, float]]:
    """What docs/quality.csv says, by format: bytes for a token, and the perplexity."""
    with RECORD.open(newline="", encoding="utf-8") as file:
        return {name: (int(nbytes), float(measured)) for name, nbytes, measured in list(csv.reader(file))[1:]}


def main() -> int:
    """Prints what is written with the first format, then the perplexity of each; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS), help="cache formats")
    formats, right = parser.parse_args().formats, True
    print(f"kvcache_ops {kvcache_ops.__version__}, onnxruntime {onnxruntime.__version__}")
    for tokens in Model(FORMATS[formats[0]]).write():
        print()
        for paragraph in TOKENIZER.decode(tokens).strip("\n").split("\n"):
            print(textwrap.fill(paragraph, 100, initial_indent="    ", subsequent_indent="    "))
    print(f"\n{'cache':20}  bytes/token  perplexity")
    for name in formats:
        model, nbytes = Model(FORMATS[name]), FORMATS[name].bytes_per_token
        found = model.perplexity(TOKENIZER.encode(held_out_text()))
        line, (expected_bytes, expected) = f"{name:20}  {nbytes:11}  {found:10.3f}", recorded()[name]
        if not abs(found / expected - 1) <= TOLERANCE or nbytes != expected_bytes:
            right = False
            line += f"  WRONG: expected {expected_bytes} bytes, perplexity {expected:.3f}"
        print(line, flush=True)
    print("every perplexity is what docs/quality.csv says" if right else "wrong: see WRONG above")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

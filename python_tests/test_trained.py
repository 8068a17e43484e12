"""The trained model: what torch has exported, in ONNX Runtime over the operator's cache, against numpy."""

from __future__ import annotations

import sys
from itertools import product

import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import load_file

import writing
from kvcache import find_library
from numpy_gguf import NumpyGguf
from trained import FOLDER, KEPT_AS, LAYERS, VOCABULARY, TrainedModel, held_back_text, perplexity, tokenizer
from writing import recorded

GRAPHS = ["decoder.onnx", "decoder_fused.onnx"]
WINDOW = 256


class NumpyModel(NumpyGguf):
    """The model in numpy, from its file of weights."""

    def __init__(self) -> None:
        parts = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
        ours = ("attention_norm", "query", "key", "value", "attention_out", "ffn_norm", "gate", "up", "down")
        names = {"embedding.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}
        for layer, (part, name) in product(range(LAYERS), zip(parts, ours)):
            names[f"layers.{layer}.{name}.weight"] = f"blk.{layer}.{part}.weight"
        found = load_file(FOLDER / "weights.safetensors")
        self.weights = {names[name]: weight.astype(np.float64) for name, weight in found.items()}
        self.family, self.layers, self.epsilon = "qwen2", LAYERS, 1e-5  # whose pairs are half a head apart
        self.heads, self.kv_heads, self.head_dim, self.window, self.magnitude = 4, 2, 32, None, 1
        self.inv_freq = 10000.0 ** (-np.arange(16) / 16)


@pytest.fixture(scope="module")
def model() -> NumpyModel:
    """The model in numpy."""
    return NumpyModel()


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    """The beginning of the held-out text: enough to tell formats apart."""
    return tokenizer().encode(held_back_text())[: 2 * WINDOW]


@pytest.fixture(scope="module")
def truth(model: NumpyModel, tokens: list[int]) -> float:
    """The perplexity that numpy finds, all in float64."""
    losses = []
    for first in range(0, len(tokens) - 1, WINDOW):
        chunk = tokens[first : first + WINDOW + 1]
        logits = model.logits(chunk[:-1])
        losses.append(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(logits)), chunk[1:]])
    return float(np.exp(np.concatenate(losses).mean()))


def test_fewer_bits_and_larger_groups_cost_quality(tokens: list[int], truth: float) -> None:
    """Exported by torch, run by ONNX Runtime over pages: float32 is numpy's; float16 and int8 cost next to nothing,
    int4 the more the larger its groups are, and no format much."""
    worse = {}
    for name, format in KEPT_AS.items():
        worse[name] = perplexity(TrainedModel(format, max_t=1024, fused=True), tokens, WINDOW) / truth - 1
    assert abs(worse["float32"]) < 1e-5 and abs(worse["int8, groups of 32"]) < 2e-3
    assert abs(worse["float16"]) < 2e-4 and abs(worse["int8, groups of 8"]) < 1e-3
    assert 1e-3 < worse["int4, groups of 8"] < worse["int4, groups of 16"] < worse["int4, groups of 32"] < 0.05


@pytest.mark.parametrize("file", GRAPHS)
def test_onnx_runtime_opens_the_graph_from_its_file(file: str) -> None:
    """No rewriting, no feeding of weights: a path is enough, and the int8 cache of the export is written in place."""
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(find_library()))
    session = onnxruntime.InferenceSession(str(FOLDER / file), options, providers=["CPUExecutionProvider"])
    cache, scale = np.zeros((4, 2, 2, 64, 32), np.int8), np.zeros((4, 2, 2, 64, 1), np.float16)
    feeds = dict(token_ids=[5, 6, 7], positions=[0, 1, 0], seqstarts=[0, 2, 3], kvstarts=[0, 2, 3])
    feeds |= dict(cachestarts=[[16], [32]], start_pos=[0, 0], max_seqlen=2, max_kvlen=2)
    arrays = {name: np.array(value, np.int64) for name, value in feeds.items()}
    (logits,) = session.run(["logits"], arrays | dict(cache=cache, scale=scale))
    assert logits.shape == (3, VOCABULARY) and np.isfinite(logits).all()
    written = np.flatnonzero(cache.any(axis=(0, 1, 2, 4)))
    assert written.tolist() == [16, 17, 32]


def test_the_example_holds_itself_against_the_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints what was written and what was measured; a record that says otherwise ends it with 1. What is measured
    is given here, for it takes many seconds."""
    name = "int8, groups of 32"
    monkeypatch.setattr(sys, "argv", ["writing.py", "--formats", name])
    monkeypatch.setattr(writing, "NEW_TOKENS", 6)
    for factor, status in ((1, 0), (1.01, 1)):
        perplexity = recorded()[name][1] * factor
        monkeypatch.setattr(writing, "perplexity", lambda *_, perplexity=perplexity: perplexity)
        assert writing.main() == status
        said = capsys.readouterr().out
        assert said.count("WRONG: expected") == status and "It is a truth universally acknowledged, that" in said

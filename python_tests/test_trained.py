"""The trained model of the examples: what torch has exported, in ONNX Runtime over the operator's cache."""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime
import pytest

import writing
from kvcache import find_library
from trained import FOLDER, KEPT_AS, VOCABULARY, TrainedModel, held_back_text, tokenizer
from writing import recorded

WINDOW = 256


def log_probabilities(name: str, tokens: list[int], fused: bool = True) -> np.ndarray:
    """Of every next token, with a cache of this format, in windows of an empty cache each."""
    model, found = TrainedModel(KEPT_AS[name], max_t=1024, fused=fused), []
    for first in range(0, len(tokens), WINDOW):
        seq = model.manager.create()
        logits = model.decode({seq: tokens[first : first + WINDOW]})[seq].astype(np.float64)
        found.append(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
    return np.concatenate(found)


def test_fewer_bits_and_larger_groups_cost_quality() -> None:
    """Over pages: float16 and int8 cost next to nothing, int4 the more the larger its groups are; both graphs agree.

    The cost is the mean divergence (Kullback-Leibler, in nat) from the float32 cache, which ranks formats on few
    tokens, as perplexity does not.
    """
    tokens = tokenizer().encode(held_back_text())[: 2 * WINDOW]
    exact = log_probabilities("float32", tokens)
    assert np.abs(log_probabilities("float32", tokens, fused=False) - exact).max() < 1e-4
    cost = {name: (np.exp(exact) * (exact - log_probabilities(name, tokens))).sum(axis=1).mean() for name in KEPT_AS}
    assert cost["float16"] < 1e-6 and cost["int8, groups of 8"] < cost["int8, groups of 32"] < 2e-4
    assert 1e-3 < cost["int4, groups of 8"] < cost["int4, groups of 16"] < cost["int4, groups of 32"] < 0.05


@pytest.mark.parametrize("file", ["decoder.onnx", "decoder_fused.onnx"])
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

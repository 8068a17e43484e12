"""The trained model of the examples: what torch has exported, in ONNX Runtime over the operator's cache."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

import writing
from sessions import create_session
from writing import FOLDER, FORMATS, TOKENIZER, Model, held_out_text, recorded


def test_fewer_bits_and_larger_groups_cost_quality() -> None:
    """Over pages: float16 and int8 cost next to nothing, int4 the more the larger its groups are.

    The cost is the mean divergence (Kullback-Leibler, in nat) from the float32 cache, which ranks formats on few
    tokens, as perplexity does not.
    """
    tokens = TOKENIZER.encode(held_out_text())[:256]
    found = {name: Model(replace(spec, max_tokens=256)).log_probabilities(tokens) for name, spec in FORMATS.items()}
    exact = found["float32"]
    cost = {name: (np.exp(exact) * (exact - others)).sum(axis=1).mean() for name, others in found.items()}
    assert cost["float16"] < 1e-6 and cost["int8, groups of 8"] < cost["int8, groups of 32"] < 2e-4
    assert 1e-3 < cost["int4, groups of 8"] < cost["int4, groups of 16"] < cost["int4, groups of 32"] < 0.05


def test_onnx_runtime_opens_the_graphs_from_their_files() -> None:
    """No rewriting, no feeding of weights: a path is enough. The int8 cache of the exports is written in place, and
    attention by standard operators gives what MultiHeadCacheAttention does."""
    feeds = dict(token_ids=[5, 6, 7], positions=[0, 1, 0], seqstarts=[0, 2, 3], kvstarts=[0, 2, 3])
    feeds |= dict(cachestarts=[[16], [32]], start_pos=[0, 0], max_seqlen=2, max_kvlen=2)
    arrays, logits = {name: np.array(value, np.int64) for name, value in feeds.items()}, []
    for file in ("decoder.onnx", "decoder_fused.onnx"):
        session = create_session(FOLDER / file)
        cache, scale = np.zeros((4, 2, 2, 64, 32), np.int8), np.zeros((4, 2, 2, 64, 1), np.float16)
        logits += session.run(["logits"], arrays | dict(cache=cache, scale=scale))
        assert np.flatnonzero(cache.any(axis=(0, 1, 2, 4))).tolist() == [16, 17, 32]
    assert logits[0].shape == (3, 1024) and logits[0].std() > 0.5
    np.testing.assert_allclose(*logits, rtol=0, atol=0.03)  # a code that falls the other way: 0.01 was measured


def test_the_example_holds_itself_against_the_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints what was written and what was measured; a record that says otherwise ends it with 1. What is measured
    is given here, for it takes many seconds."""
    name = "int8, groups of 32"
    monkeypatch.setattr(sys, "argv", ["writing.py", "--formats", name])
    monkeypatch.setattr(writing, "NEW_TOKENS", 6)
    for factor, status in ((1, 0), (1.01, 1)):
        monkeypatch.setattr(Model, "perplexity", lambda *_, factor=factor: recorded()[name][1] * factor)
        assert writing.main() == status
        said = capsys.readouterr().out
        assert said.count("WRONG: expected") == status and "It is a truth universally acknowledged, that" in said

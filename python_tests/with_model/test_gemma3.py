"""Gemma 3 of 270 million parameters, in Q4_K_M, against numpy and against what llama.cpp makes of the same file.

Its windows of 512 tokens, in 15 of 18 layers, end within the texts here.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from kvcache_ops import models

from numpy_gguf import NumpyGguf
from tiny_models import Run

SOURCE = Path(os.environ["KVCACHE_GEMMA3"])
LLAMA_CPP = json.loads((Path(__file__).parent / "llama_cpp_gemma3.json").read_text(encoding="utf-8"))
LONG = Path(__file__).parents[2] / "examples/austen/held_out.txt"
TOKENS = 800


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The model as it is served, with a float16 cache."""
    return Run(models.build(SOURCE, tmp_path_factory.mktemp("gemma3"), cache="float16"), 2048)


def prompt_of(run: Run, continuation: dict[str, object]) -> list[int]:
    """The tokens of a prompt, which is a text, or so many tokens of a novel."""
    text = continuation["prompt"] or LONG.read_text(encoding="utf-8")
    return run.model.tokenizer.encode(str(text)).ids[: continuation["length"]]


def test_tokens_of_llama_cpp(run: Run) -> None:
    """SentencePiece's, with spaces and newlines in a row, bytes and control tokens."""
    assert run.model.tokenizer.encode(LLAMA_CPP["text"]).ids == LLAMA_CPP["tokens"]


def test_logits_of_800_tokens(tmp_path: Path) -> None:
    """Nothing is lost of the weights: what is left is the order of float32 sums, over 18 layers."""
    exact = Run(models.build(SOURCE, tmp_path / "model", products="MatMulNBits", cache="float32"), 1024)
    tokens = exact.model.tokenizer.encode(LONG.read_text(encoding="utf-8")).ids[:TOKENS]
    expected = NumpyGguf(SOURCE, np.float32).logits(tokens, slice(9, None, 20))
    seq, got = exact.manager.create(), []
    for first in range(0, TOKENS, 200):
        got.append(exact.step({seq: tokens[first : first + 200]}, rows=list(range(9, 200, 20))))
    got = np.concatenate(got)
    assert np.abs(got - expected).max() < 0.0005
    assert np.array_equal(got.argmax(1), expected.argmax(1))


def test_greedy_tokens_of_llama_cpp(run: Run) -> None:
    """200 behind each prompt; where its token is not ours, ours is better by less than rounding activations does."""
    same, count = 0, 0
    for continuation in LLAMA_CPP["continuations"]:
        prompt, theirs = prompt_of(run, continuation), continuation["tokens"]
        assert len(prompt) == continuation["length"]
        seq = run.manager.create()
        first = len(prompt) - 1
        rows = run.step({seq: prompt + theirs}, rows=list(range(first, first + len(theirs))))
        run.manager.free(seq)
        gaps = rows.max(1) - rows[np.arange(len(theirs)), theirs]
        assert gaps.max() < 1.0
        same, count = same + int((gaps == 0).sum()), count + len(theirs)
    assert same / count > 0.95

"""A real model, SmolLM2-135M-Instruct in Q4_1, against numpy and against what llama.cpp makes of the same file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from kvcache_ops import models
from kvcache_ops.models._build import open_checkpoint

from numpy_gguf import NumpyGguf
from tiny_models import Run

SOURCE = Path(os.environ["KVCACHE_SMOLLM2"])
LLAMA_CPP = json.loads((Path(__file__).parent / "llama_cpp.json").read_text())
LONG = Path(__file__).parents[2] / "docs/manager.md"
TOKENS = 2000


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    """The beginning of a page of this repository."""
    tokenizer = open_checkpoint(SOURCE).tokenizer
    return tokenizer.encode(LONG.read_text(encoding="utf-8")).ids[:TOKENS]


@pytest.fixture(scope="module")
def expected(tokens: list[int]) -> np.ndarray:
    """The logits of every tenth token, in numpy."""
    return NumpyGguf(SOURCE, np.float32).logits(tokens, slice(9, None, 10))


def built(tmp_path: Path, **options: object) -> Run:
    """The model with room for the page."""
    return Run(models.build(SOURCE, tmp_path / "model", **options), TOKENS + 256)


def logits(run: Run, tokens: list[int]) -> np.ndarray:
    """The logits of every tenth token, the page in chunks of 500."""
    seq = run.manager.create()
    chunks = [tokens[first : first + 500] for first in range(0, len(tokens), 500)]
    return np.concatenate([run.step({seq: chunk}, rows=list(range(9, len(chunk), 10))) for chunk in chunks])


def test_logits_of_2000_tokens(tmp_path: Path, tokens: list[int], expected: np.ndarray) -> None:
    """Nothing is lost of the weights: what is left is the order of float32 sums, over 30 layers."""
    got = logits(built(tmp_path, products="MatMulNBits", cache="float32"), tokens)
    assert np.abs(got - expected).max() < 0.0005
    assert np.array_equal(got.argmax(1), expected.argmax(1))


@pytest.mark.parametrize(("cache", "bound"), [("float16", 0.3), ("int8", 0.35), ("int4", 2.0)])
def test_rounded_activations_and_caches(
    tmp_path: Path, tokens: list[int], expected: np.ndarray, cache: str, bound: float
) -> None:
    """The root mean square of what rounding does to a logit; logits have a standard deviation of 6."""
    got = logits(built(tmp_path, cache=cache), tokens)
    assert np.sqrt(np.square(got - expected).mean()) < bound


def test_greedy_tokens_of_llama_cpp(tmp_path: Path) -> None:
    """Where its token is not ours, ours is better by less than rounding activations to 8 bits does to a logit."""
    run = built(tmp_path, cache="float16")
    same, count = 0, 0
    for continuation in LLAMA_CPP["continuations"]:
        prompt, theirs = run.model.tokenizer.encode(continuation["prompt"]).ids, continuation["tokens"]
        seq = run.manager.create()
        rows = run.step({seq: prompt + theirs})[len(prompt) - 1 : -1]
        run.manager.free(seq)
        gaps = rows.max(1) - rows[np.arange(len(theirs)), theirs]
        assert gaps.max() < 0.5
        same, count = same + int((gaps == 0).sum()), count + len(theirs)
    assert same / count > 0.95


def test_tokens_of_llama_cpp(tmp_path: Path) -> None:
    """A text is cut and merged as it does it."""
    tokenizer = built(tmp_path).model.tokenizer
    assert tokenizer.encode(LLAMA_CPP["text"]).ids == LLAMA_CPP["tokens"]
    assert tokenizer.decode(LLAMA_CPP["tokens"]) == LLAMA_CPP["text"]


def test_perplexity_by_cache() -> None:
    """An int8 cache costs less than the hundredth part, an int4 one less than the fifth."""
    text = LONG.read_text(encoding="utf-8")[:8_000]
    built = {cache: models.open_model(SOURCE, cache=cache) for cache in ("float16", "int8", "int4")}
    found = {cache: models.perplexity(model, text, threads=1).value for cache, model in built.items()}
    assert 5 < found["float16"] < 40
    assert abs(found["int8"] / found["float16"] - 1) < 0.01
    assert 0 < found["int4"] / found["float16"] - 1 < 0.2

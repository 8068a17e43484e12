"""Drawing from vocabularies of many tokens: as it is defined, and without sorting them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from kvcache_ops.text._sampling import Sampler, Sampling

OPTIONS: list[dict[str, float]] = [
    {},
    {"temperature": 0.6},
    {"top_p": 0.9},
    {"top_p": 0.0},
    {"top_k": 40},
    {"top_k": 3000},
    {"min_p": 0.02},
    {"top_k": 2000, "top_p": 0.7, "min_p": 0.001},
    {"top_p": 0.999, "temperature": 2.0},
    {"top_k": 10**6, "top_p": 0.5, "repetition_penalty": 1.3, "presence_penalty": 0.5},
]


def vocabulary(kind: str, size: int, random: np.random.Generator) -> np.ndarray:
    """Logits of models that are sure, of such that are not, with ties, and behind a grammar."""
    logits = random.standard_normal(size) * {"sure": 3, "flat": 0.1}.get(kind, 1)
    if kind == "ties":
        logits = np.round(logits)
    if kind == "masked":
        logits[random.random(size) < 0.9] = -np.inf
        logits[0] = 0
    return logits.astype(np.float32)


def kept(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> tuple[np.ndarray, ...]:
    """The tokens that may be drawn, in the order of their sums, and these: all of it sorted, as `Sampler` says."""
    weights = np.exp((logits - logits.max()) / np.float32(temperature))
    cut = 0 < top_k < len(logits) or top_p < 1
    order = np.argsort(-weights, kind="stable") if cut else np.arange(len(weights))
    order = order[: top_k or None]
    sums = np.cumsum(weights[order], dtype=np.float64)
    order = order[: 1 + int(np.searchsorted(sums, top_p * sums[-1]))] if cut else order
    order = order[weights[order] >= np.float32(min_p)]
    return order, np.cumsum(weights[order], dtype=np.float64)


@pytest.mark.parametrize("kind", ["sure", "flat", "ties", "masked"])
@pytest.mark.parametrize("size", [1, 257, 40_000])
def test_draws_are_those_of_the_definition(kind: str, size: int) -> None:
    """A seed draws the tokens of the definition, also with penalties for earlier tokens."""
    random = np.random.default_rng(7)
    for seed, options in enumerate(OPTIONS):
        prompt = [int(token) for token in random.integers(0, size, 20)]
        logits = vocabulary(kind, size, random)
        before = logits.copy()
        given = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | options
        sampler, numbers = Sampler(Sampling(seed=seed, **given), prompt), np.random.default_rng(seed)
        often, once = given.pop("repetition_penalty", 1), given.pop("presence_penalty", 0)
        drawn: list[int] = []
        for _ in range(6):
            lower, seen = logits.copy(), np.unique([*prompt, *drawn])
            factor = np.float32(often)
            lower[seen] = np.where(lower[seen] > 0, lower[seen] / factor, lower[seen] * factor)
            lower[np.unique(drawn).astype(int)] -= np.float32(once)
            order, sums = kept(lower, **given)
            expected = int(order[np.searchsorted(sums, numbers.random() * sums[-1], side="right")])
            drawn.append(sampler(logits))
            assert drawn[-1] == expected, (kind, size, options)
        assert np.array_equal(logits, before)


def test_penalties() -> None:
    """What each takes from the logits of tokens that were there before."""
    logits, prompt = np.array([3, 2.75, -1, 2.5], np.float32), [0, 2]
    presence, frequency = (
        Sampler(Sampling(presence_penalty=0.375), prompt),
        Sampler(Sampling(frequency_penalty=0.3), prompt),
    )
    assert [presence(logits) for _ in range(5)] == [0, 1, 0, 0, 0]
    assert [frequency(logits) for _ in range(5)] == [0, 1, 0, 3, 1]
    repetition = Sampler(Sampling(repetition_penalty=2.0), prompt)
    assert [repetition(logits) for _ in range(3)] == [1, 3, 0] and logits[0] == 3
    assert Sampler(Sampling(repetition_penalty=2.0), prompt)(np.array([-2, -5, -1.5, -3.5], np.float32)) == 2


def test_no_temperature() -> None:
    """The likeliest token is drawn, also where a temperature is too small to divide by."""
    for temperature in (0, 1e-60, 1e-40, 1e-37):
        assert Sampler(Sampling(temperature=temperature))(np.log(np.array([1, 4, 3, 2], np.float32))) == 1


@pytest.mark.parametrize("kind", ["sure", "flat"])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_large_vocabulary_is_neither_sorted_nor_copied(
    kind: str, options: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draw sorts at most a twentieth of 152 thousand tokens, and allocates less than their logits take."""
    size, sort, partition = 152_000, np.argsort, np.partition
    logits, lengths = vocabulary(kind, size, np.random.default_rng(3)), list[int]()

    def counted(function: object) -> object:
        return lambda array, *more, **named: (lengths.append(len(array)), function(array, *more, **named))[1]

    sampler = Sampler(Sampling(seed=1, **{"temperature": 1.0} | options), list(range(100)))
    sampler(logits)
    monkeypatch.setattr(np, "argsort", counted(sort))
    monkeypatch.setattr(np, "partition", counted(partition))
    tracemalloc.start()
    try:
        for _ in range(3):
            lengths.clear()
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            sampler(logits)
            assert tracemalloc.get_traced_memory()[1] - before < logits.nbytes
            assert sum(lengths) < size // 20
    finally:
        tracemalloc.stop()

"""Choosing the next token from logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcache_ops._errors import KvCacheError

_NEGLIGIBLE = 30.0  # a token whose weight is less than e^-30 of the likeliest one's is never drawn


@dataclass(frozen=True)
class Sampling:
    """How an answer is drawn, and when it ends.

    max_new_tokens: at most so many tokens. temperature: 0 always takes the likeliest token, whatever the next three are.
    top_k: only the k likeliest tokens, 0 for all. top_p: only the likeliest ones, of this probability together. min_p:
    only tokens of at least this part of the likeliest one's probability. seed: equal ones draw equally; None is a new
    one each time. stop: texts that end the answer and are not in it.

    Raises KvCacheError "sampling_range".
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ranges: list[tuple[str, float, float]] = [
            ("max_new_tokens", 1, np.inf),
            ("temperature", 0, np.inf),
            ("top_k", 0, np.inf),
            ("top_p", 0, 1),
            ("min_p", 0, 1),
        ]
        for name, low, high in ranges:
            got = getattr(self, name)
            if isinstance(got, bool) or not isinstance(got, int | float | np.number) or not low <= got <= high:
                raise KvCacheError(f"{name} is {got!r}, expected a number of {low} to {high}", "sampling_range")
        if isinstance(self.stop, str) or not all(isinstance(text, str) and text for text in self.stop):
            raise KvCacheError(f"stop is {self.stop!r}, expected texts that are not empty", "sampling_range")


class Sampler:
    """Draws the tokens of one answer."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling, self._random = sampling, np.random.default_rng(sampling.seed)

    def __call__(self, logits: NDArray[np.float32]) -> int:
        """A token, from the logits (vocabulary) of what may follow.

        Raises KvCacheError "logits_not_finite" where the largest is none.
        """
        best = int(logits.argmax())  # of NaNs, the first
        largest = float(logits[best])
        if not np.isfinite(largest):
            raise KvCacheError(f"logits have {largest} at token {best}, expected finite numbers", "logits_not_finite")
        sampling = self._sampling
        if sampling.temperature == 0:
            return best
        tokens: NDArray[Any] = np.flatnonzero(logits > largest - _NEGLIGIBLE * sampling.temperature)
        weights = np.exp((logits[tokens].astype(np.float64) - largest) / sampling.temperature)
        order = np.argsort(-weights, kind="stable")[: sampling.top_k or None]
        tokens, weights = tokens[order], weights[order]
        weights /= weights.sum()
        enough = 1 + int(np.searchsorted(np.cumsum(weights), sampling.top_p))
        kept = min(enough, int((weights >= sampling.min_p * weights[0]).sum()))
        weights = weights[:kept] / weights[:kept].sum()
        return int(self._random.choice(tokens[:kept], p=weights))

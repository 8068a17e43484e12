"""Choosing the next token from logits."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcache_ops._errors import KvCacheError

_SMALLEST, _LARGEST = np.finfo(np.float32).tiny, np.finfo(np.float32).max
_MOST_STOPS = 256  # each is looked for at every token
_BOUNDS = (1e-3, 1e-6, 0.0)  # of weights, where the likeliest token's is 1


@dataclass(frozen=True)
class Sampling:
    """How an answer is drawn, and when it ends.

    max_new_tokens: at most so many tokens. temperature: 0 always takes the likeliest token, and the next three do not
    matter. top_k: only the k likeliest tokens, 0 for all. top_p: only the likeliest ones, of this probability together.
    min_p: only tokens of at least this part of the likeliest one's probability. seed: equal ones draw equally; None is
    a new one each time. stop: texts that end the answer and are not in it. logprobs: how many of the likeliest tokens
    `Request.logprobs` has beside each one that was drawn; None for no logprobs.

    Raises KvCacheError "sampling_range".
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None

    def __post_init__(self) -> None:
        ranges: list[tuple[str, Any, float, float]] = [
            ("max_new_tokens", Integral, 1, np.inf),
            ("temperature", Real, 0, float(_LARGEST)),
            ("top_k", Integral, 0, np.inf),
            ("top_p", Real, 0, 1),
            ("min_p", Real, 0, 1),
        ]
        for name in ("seed", "logprobs"):
            if getattr(self, name) is not None:
                ranges.append((name, Integral, 0, np.inf))
        for name, kind, low, high in ranges:
            got = getattr(self, name)
            if isinstance(got, bool) or not isinstance(got, kind) or not low <= got <= high:
                number = "a whole number" if kind is Integral else "a number"
                raise KvCacheError(f"{name} is {got!r}, expected {number} of {low} to {high}", "sampling_range")
        if not isinstance(self.stop, list | tuple) or not all(isinstance(text, str) and text for text in self.stop):
            message = f"stop is {self.stop!r}, expected a tuple of texts, none of them empty"
            raise KvCacheError(message, "sampling_range")
        if len(self.stop) > _MOST_STOPS:
            raise KvCacheError(f"stop has {len(self.stop)} texts, expected at most {_MOST_STOPS}", "sampling_range")


@dataclass(frozen=True)
class TokenLogprobs:
    """The natural logarithm of a token's probability, before temperature and what else `Sampling` changes.

    `top`: the likeliest tokens with theirs, the likeliest first. `offset`: the token's first character in the answer.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    offset: int

    @classmethod
    def of(cls, logits: NDArray[np.float32], token: int, count: int, offset: int) -> TokenLogprobs:
        """The logprobs of a token, from the logits (vocabulary) that it was drawn from."""
        wide = logits.astype(np.float64)
        logs = wide - wide.max()
        logs -= np.log(np.exp(logs).sum())
        top = np.argpartition(-logs, min(count, len(logs) - 1))[:count]
        top = top[np.lexsort((top, -logs[top]))]
        return cls(token, float(logs[token]), tuple((int(t), float(logs[t])) for t in top), offset)


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
        if sampling.temperature < _SMALLEST:
            return best
        with np.errstate(over="ignore"):  # to -inf, whose weight is 0
            weights = np.exp((logits - logits[best]) / np.float32(sampling.temperature))
        tokens = self._likeliest(weights)
        tokens = tokens[weights[tokens] >= sampling.min_p]
        sums = np.cumsum(weights[tokens], dtype=np.float64)
        place = int(np.searchsorted(sums, self._random.random() * sums[-1], side="right"))
        return int(tokens[min(place, len(tokens) - 1)])

    def _likeliest(self, weights: NDArray[np.float32]) -> NDArray[np.intp]:
        """The tokens that top_k and top_p leave. Only those above a bound are sorted, which falls until they do."""
        top_k, top_p = min(self._sampling.top_k or len(weights), len(weights)), self._sampling.top_p
        if top_k == len(weights) and top_p == 1:
            return np.arange(top_k)
        for least in _BOUNDS:
            best = np.flatnonzero(weights >= least)
            best = best[np.argsort(-weights[best], kind="stable")][:top_k]
            sums = np.cumsum(weights[best], dtype=np.float64)
            whole = sums[-1] if len(best) == top_k else weights.sum(dtype=np.float64)
            enough = 1 + int(np.searchsorted(sums, top_p * whole))
            if len(best) == top_k or (top_k == len(weights) and enough <= len(best)):
                break
        return best[:enough]

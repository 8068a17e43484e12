"""Choosing the next token from logits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcache_ops._errors import KvCacheError
from kvcache_ops._grammar import Grammar

_SMALLEST, _LARGEST = np.finfo(np.float32).tiny, np.finfo(np.float32).max
_MOST_STOPS = 256  # each is looked for at every token
_LEAST = np.finfo(np.float32).smallest_subnormal
_BOUNDS = (1e-3, 1e-6, 0.0)  # of weights, where the likeliest token's is 1


@dataclass(frozen=True)
class Sampling:
    """How an answer is drawn, and when it ends.

    max_new_tokens: at most this many tokens. temperature: 0 always takes the likeliest token, and the next three do not
    matter. top_k: only the k likeliest tokens, 0 for all. top_p: only the likeliest tokens that together have this
    probability. min_p: only tokens of at least this share of the highest probability. seed: equal seeds draw equally;
    None is a new one each time. stop: texts that end the answer and are not in it. logprobs: how many of the likeliest
    tokens `Request.logprobs` adds to each drawn one; None for no logprobs. prompt_logprobs: the same for the prompt's
    tokens, in `Request.prompt_logprobs`; only with it may max_new_tokens be 0, and the prompt is not looked up in the
    cache. presence_penalty, frequency_penalty: subtracted from a token's logit if the answer has it, and for each
    occurrence. repetition_penalty: divides a token's logit, or multiplies it if it is negative, if the prompt or the
    answer has the token. grammar: of `Engine.json_grammar`; the answer follows it, or is cut off by max_new_tokens or a
    stop.

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
    prompt_logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        ranges: list[tuple[str, Any, float, float]] = [
            ("max_new_tokens", Integral, 1 if self.prompt_logprobs is None else 0, np.inf),
            ("temperature", Real, 0, float(_LARGEST)),
            ("top_k", Integral, 0, np.inf),
            ("top_p", Real, 0, 1),
            ("min_p", Real, 0, 1),
            ("presence_penalty", Real, -2, 2),
            ("frequency_penalty", Real, -2, 2),
            ("repetition_penalty", Real, 0.01, 100),
        ]
        for name in ("seed", "logprobs", "prompt_logprobs"):
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
        if not isinstance(self.grammar, Grammar | None):
            raise KvCacheError(f"grammar is {self.grammar!r}, expected a Grammar or None", "sampling_range")
        if len(self.stop) > _MOST_STOPS:
            raise KvCacheError(f"stop has {len(self.stop)} texts, expected at most {_MOST_STOPS}", "sampling_range")


@dataclass(frozen=True)
class TokenLogprobs:
    """The natural logarithm of a token's probability, before temperature and what else `Sampling` changes.

    `top`: the likeliest tokens with theirs, the likeliest first. `offset`: the token's first character in the answer,
    or in the prompt, whose first token has no probability.
    """

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    offset: int

    @classmethod
    def of(cls, logits: NDArray[np.float32], token: int, count: int, offset: int) -> TokenLogprobs:
        """The logprobs of a token, from the logits (vocabulary) that it was drawn from.

        Raises KvCacheError "logits_not_finite" where the largest is none.
        """
        _check(logits)
        wide = logits.astype(np.float64)
        logs = wide - wide.max()
        logs -= np.log(np.exp(logs).sum())
        top = np.argpartition(-logs, min(count, len(logs) - 1))[:count]
        top = top[np.lexsort((top, -logs[top]))]
        return cls(token, float(logs[token]), tuple((int(t), float(logs[t])) for t in top), offset)


def _check(logits: NDArray[np.float32]) -> int:
    """The likeliest token."""
    best = int(logits.argmax())  # of NaNs, the first
    largest = float(logits[best])
    if not np.isfinite(largest):
        raise KvCacheError(f"logits have {largest} at token {best}, expected finite numbers", "logits_not_finite")
    return best


class Sampler:
    """Draws the tokens of one answer."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int] = ()) -> None:
        self._sampling, self._random = sampling, np.random.default_rng(sampling.seed)
        once, often = sampling.presence_penalty, sampling.frequency_penalty
        self._penalizes = (once, often, sampling.repetition_penalty) != (0, 0, 1)
        self._seen, self._drawn = set(prompt if self._penalizes else ()), Counter[int]()

    def __call__(self, logits: NDArray[np.float32]) -> int:
        """A token, from the logits (vocabulary) of what may follow.

        Raises KvCacheError "logits_not_finite" where the largest is none.
        """
        token = self._draw(self._penalized(logits) if self._penalizes else logits)
        if self._penalizes:
            self._seen.add(token)
            self._drawn[token] += 1
        return token

    def _penalized(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits, lower for tokens that occurred before."""
        sampling, logits = self._sampling, logits.copy()
        seen, drawn = np.array(sorted(self._seen), np.intp), np.array(sorted(self._drawn), np.intp)
        factor = np.float32(sampling.repetition_penalty)
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / factor, logits[seen] * factor)
        times = np.array([self._drawn[int(token)] for token in drawn], np.float32)
        logits[drawn] -= np.float32(sampling.presence_penalty) + np.float32(sampling.frequency_penalty) * times
        return logits

    def _draw(self, logits: NDArray[np.float32]) -> int:
        best = _check(logits)
        sampling = self._sampling
        if sampling.temperature < _SMALLEST:
            return best
        with np.errstate(over="ignore"):  # to -inf, whose weight is 0
            weights = np.exp((logits - logits[best]) / np.float32(sampling.temperature))
        tokens = self._likeliest(weights)
        tokens = tokens[weights[tokens] >= max(sampling.min_p, _LEAST)]
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

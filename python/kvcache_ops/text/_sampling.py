"""Choosing the next token from logits."""

from __future__ import annotations

import sys
from collections.abc import Sequence, Set
from dataclasses import dataclass
from numbers import Integral, Real
from threading import local
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kvcache_ops._errors import KvCacheError
from kvcache_ops.text._grammar import Grammar

_SMALLEST, _LARGEST = np.finfo(np.float32).tiny, np.finfo(np.float32).max
_MOST_STOPS, _MOST_STOP_TEXT = 256, 4096  # each is looked for at every token, also its beginnings
_LIKELY = 1e-3  # of weights, where the likeliest token's is 1: of most models, few are above it
_BLOCK = 256  # weights of a block, which is searched only where its largest, or its sum, says so
_UPPER = int(sys.byteorder == "little")  # which half of a float32 has its sign and exponent
_WIDE = 1 << 12  # logits that are made float64 at once
_PART = 1 << 14  # weights whose histogram stays in the processor's cache


@dataclass(frozen=True)
class Sampling:
    """How an answer is drawn, and when it ends.

    max_new_tokens: at most this many tokens. temperature: 0 always takes the likeliest token, and the next three do not
    matter. top_k: only the k likeliest tokens, 0 for all. top_p: only the likeliest tokens that together have this
    probability. min_p: only tokens of at least this share of the highest probability. seed: equal seeds draw equally,
    from what `Sampler` says; None is a new one each time. stop: texts that end the answer and are not in it. logprobs:
    how many of the likeliest tokens `Request.logprobs` adds to each drawn one; None for no logprobs. prompt_logprobs:
    the same for the prompt's tokens, in `Request.prompt_logprobs`; only with it may max_new_tokens be 0, and the prompt
    is not looked up in the cache. presence_penalty, frequency_penalty: subtracted from a token's logit if the answer
    has it, and for each occurrence. repetition_penalty: divides a token's logit, or multiplies it if it is negative, if
    the prompt or the answer has the token. grammar: of `Engine.json_grammar` or `lark_grammar`; the answer follows it,
    or is cut off by max_new_tokens or a stop. shown_tokens: special tokens whose text is in the answer's;
    others have none there.

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
    shown_tokens: Set[int] = frozenset()

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
        shown = self.shown_tokens
        if not isinstance(shown, Set) or not all(isinstance(token, Integral) for token in shown):
            raise KvCacheError(f"shown_tokens is {shown!r}, expected a set of tokens", "sampling_range")
        if len(self.stop) > _MOST_STOPS:
            raise KvCacheError(f"stop has {len(self.stop)} texts, expected at most {_MOST_STOPS}", "sampling_range")
        if (length := sum(map(len, self.stop))) > _MOST_STOP_TEXT:
            message = f"stop has {length} characters, expected at most {_MOST_STOP_TEXT}"
            raise KvCacheError(message, "sampling_range")


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
        best = _check(logits)
        largest = float(logits[best])
        parts = (logits[begin : begin + _WIDE].astype(np.float64) for begin in range(0, len(logits), _WIDE))
        shift = largest + float(np.log(sum(np.exp(part - largest).sum() for part in parts)))
        top = tuple((int(t), float(logits[t]) - shift) for t in _largest(logits, count))
        return cls(token, float(logits[token]) - shift, top, offset)


class _Scratch(local):
    """Arrays of the vocabulary for each thread: allocating them costs more than computing in them."""

    def __init__(self) -> None:
        self.logits, self.bins = np.empty(0, np.float32), np.empty(0, np.uint16)

    def sized(self, size: int) -> _Scratch:
        """With arrays of that size, of anything."""
        if len(self.logits) != size:
            self.logits, self.bins = np.empty(size, np.float32), np.empty(size, np.uint16)
        return self


_SCRATCH = _Scratch()


def scratch(size: int) -> NDArray[np.float32]:
    """This thread's array for logits that are changed before a token is drawn."""
    return _SCRATCH.sized(size).logits


def _largest(logits: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """The tokens of the largest logits, the largest first, equal ones in order."""
    starts = np.arange(0, len(logits), _BLOCK)
    if not 0 < count < len(starts):
        return np.argsort(-logits, kind="stable")[:count]
    # As many blocks have one that is as large.
    least = np.partition(np.maximum.reduceat(logits, starts), -count)[-count]
    found = np.flatnonzero(logits >= least)
    return found[np.argsort(-logits[found], kind="stable")][:count]


def _check(logits: NDArray[np.float32]) -> int:
    """The likeliest token."""
    best = int(logits.argmax())  # of NaNs, the first
    largest = float(logits[best])
    if not np.isfinite(largest):
        raise KvCacheError(f"logits have {largest} at token {best}, expected finite numbers", "logits_not_finite")
    return best


class Sampler:
    """Draws the tokens of one answer.

    A token's weight is exp((its logit - the largest) / temperature), in float32. top_k, top_p and min_p leave tokens,
    the likeliest first, equal ones in their order; where top_k and top_p leave all, they are in their order. The
    weights are summed in that order, in float64; the first token whose sum exceeds a random number of 0 to 1 (PCG64 of
    the seed) times the last sum is drawn. A token takes one number.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int] = ()) -> None:
        self._sampling, self._random = sampling, np.random.default_rng(sampling.seed)
        once, often = sampling.presence_penalty, sampling.frequency_penalty
        self._penalizes = (once, often, sampling.repetition_penalty) != (0, 0, 1)
        self._seen = np.unique(np.array(prompt if self._penalizes else (), np.intp))  # of the prompt and the answer
        self._drawn, self._times = np.empty(0, np.intp), np.empty(0, np.float32)  # of the answer
        self._places: dict[int, int] = {}  # in these two

    def __call__(self, logits: NDArray[np.float32]) -> int:
        """Draws a token from the logits (vocabulary).

        Raises KvCacheError "logits_not_finite" where the largest is none.
        """
        if not self._penalizes:
            return self._draw(logits)
        token = self._draw(self._penalized(logits))
        place = self._places.setdefault(token, len(self._drawn))
        if place == len(self._drawn):
            self._drawn, self._times = np.append(self._drawn, token), np.append(self._times, np.float32(0))
            if token not in self._seen:
                self._seen = np.append(self._seen, token)
        self._times[place] += 1
        return token

    def _penalized(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits, lower for tokens that occurred before."""
        sampling, given, logits = self._sampling, logits, scratch(len(logits))
        np.copyto(logits, given)
        factor, seen = np.float32(sampling.repetition_penalty), logits[self._seen]
        logits[self._seen] = np.where(seen > 0, seen / factor, seen * factor)
        once, often = np.float32(sampling.presence_penalty), np.float32(sampling.frequency_penalty)
        logits[self._drawn] -= once + often * self._times
        return logits

    def _draw(self, logits: NDArray[np.float32]) -> int:
        best = _check(logits)
        sampling = self._sampling
        if sampling.temperature < _SMALLEST:
            return best
        with np.errstate(over="ignore"):  # to -inf, whose weight is 0
            weights = np.subtract(logits, logits[best], out=scratch(len(logits)))
            weights /= np.float32(sampling.temperature)
            np.exp(weights, out=weights)
        top_k, top_p = min(sampling.top_k or len(weights), len(weights)), sampling.top_p
        if top_k == len(weights) and top_p == 1:
            return self._of_all(weights)
        whole = weights.sum(dtype=np.float64) if top_k == len(weights) else 0.0
        tokens, likely = self._likeliest(weights, top_k, top_p * whole)
        ranked = _Ranked(likely)
        kept = ranked.of_count(min(top_k, len(likely)))
        kept = min(kept, ranked.of_sum(top_p * (whole or ranked.sum(kept)), "left"))
        if sampling.min_p:
            kept = min(kept, ranked.of_weight(sampling.min_p))
        total = ranked.sum(kept)
        drawn = min(self._random.random() * total, np.nextafter(total, 0))
        place = ranked.last(ranked.of_sum(drawn, "right"))
        return place if tokens is None else int(tokens[place])

    def _likeliest(
        self, weights: NDArray[np.float32], top_k: int, total: float
    ) -> tuple[NDArray[np.intp] | None, NDArray[np.float32]]:
        """Tokens, among them all that top_k, or a sum of weights, needs, and their weights; None for all tokens."""
        if top_k < len(weights) // _BLOCK:
            tokens = _largest(weights, top_k)
            return tokens, weights[tokens]
        above = weights >= _LIKELY
        if np.count_nonzero(above) < len(weights) // 8:
            tokens = np.flatnonzero(above)
            likely = weights[tokens]
            if len(tokens) >= top_k or (top_k == len(weights) and likely.sum(dtype=np.float64) >= total):
                return tokens, likely
        return None, weights

    def _of_all(self, weights: NDArray[np.float32]) -> int:
        """Of the tokens that min_p leaves. Sums of blocks say in which one the drawn token is."""
        if self._sampling.min_p:
            weights *= weights >= np.float32(self._sampling.min_p)
        rest = len(weights) - len(weights) % _BLOCK
        blocks = weights[:rest].reshape(-1, _BLOCK).sum(axis=1, dtype=np.float64)
        blocks = np.cumsum(np.append(blocks, weights[rest:].sum(dtype=np.float64)))
        drawn = min(self._random.random() * blocks[-1], np.nextafter(blocks[-1], 0))
        block = int(np.searchsorted(blocks, drawn, side="right"))
        begin, before = block * _BLOCK, blocks[block - 1] if block else 0.0
        sums = np.cumsum(weights[begin : begin + _BLOCK], dtype=np.float64)
        last = int(np.searchsorted(sums, sums[-1]))  # the last that has a weight, where rounding passes it
        return begin + min(int(np.searchsorted(sums, drawn - before, side="right")), last)


class _Ranked:
    """Weights of 0 to 1 by their ranks, the largest first, equal ones in order.

    A histogram by their upper 16 bits has the sums of bins; only bins that are asked for are sorted. A cut, (bin,
    count), is all bins before that one, and so many of its weights.
    """

    def __init__(self, weights: NDArray[np.float32]) -> None:
        upper = weights.view(np.uint16)[_UPPER::2]
        self._bins = _SCRATCH.bins[: len(upper)]
        self._lowest = upper.min()
        np.subtract(upper, self._lowest, out=self._bins)
        self._weights, self._known = weights, dict[int, NDArray[np.intp]]()
        self._first = int(self._bins.max())
        # Of all bins before each one, the one of the largest weights first, and of all.
        self._sums = self._before(weights)
        self._size = len(self._sums) - 1

    def _before(self, weights: NDArray[np.float32] | None) -> NDArray[Any]:
        found = np.zeros(self._first + 2, np.intp if weights is None else np.float64)
        for begin in range(0, len(self._bins), _PART):
            part = slice(begin, begin + _PART)
            found[1:] += np.bincount(self._bins[part], None if weights is None else weights[part], len(found) - 1)[::-1]
        return np.cumsum(found, out=found)

    def of_count(self, count: int) -> tuple[int, int]:
        """The cut of the `count` largest weights."""
        if count == len(self._weights):
            return self._size, 0
        counts = self._before(None)
        i = int(np.searchsorted(counts, count)) - 1
        return i, count - int(counts[i])

    def of_sum(self, total: float, side: Literal["left", "right"]) -> tuple[int, int]:
        """The least cut whose sum is a total, or more than that for "right"; at most all but the smallest bins."""
        i = min(max(int(np.searchsorted(self._sums, total, side=side)) - 1, 0), self._size - 1)
        sums = self._sums[i] + np.cumsum(self._weights[self._sorted(i)], dtype=np.float64)
        return i, min(int(np.searchsorted(sums, total, side=side)) + 1, len(sums))

    def of_weight(self, least: float) -> tuple[int, int]:
        """The cut of all weights of at least `least`."""
        i = self._first + int(self._lowest) - int(np.array([least], np.float32).view(np.uint16)[_UPPER])
        if i >= self._size:
            return self._size, 0
        return i, int(np.count_nonzero(self._weights[self._sorted(i)] >= np.float32(least)))

    def sum(self, cut: tuple[int, int]) -> float:
        """The sum of a cut's weights."""
        i, count = cut
        if not count:
            return float(self._sums[i])
        return float(self._sums[i] + np.cumsum(self._weights[self._sorted(i)[:count]], dtype=np.float64)[-1])

    def last(self, cut: tuple[int, int]) -> int:
        """The place of the smallest weight of a cut that has one in its bin."""
        return int(self._sorted(cut[0])[cut[1] - 1])

    def _sorted(self, i: int) -> NDArray[np.intp]:
        """The places of the weights in a bin."""
        if i not in self._known:
            found = np.flatnonzero(self._bins == self._first - i)
            self._known[i] = found[np.argsort(-self._weights[found], kind="stable")]
        return self._known[i]

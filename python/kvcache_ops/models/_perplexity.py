"""How well a model with its cache predicts a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, sqrt

import numpy as np
from numpy.typing import NDArray

from kvcache_ops._errors import KvCacheError
from kvcache_ops.manager import Append
from kvcache_ops.models._grouped_manager import StepInputs
from kvcache_ops.models._model import Model, session_options

_CHUNK = 128  # tokens of a step, whose logits are in memory at once


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean of -log p over `tokens` tokens in `windows`; `error` is one standard error, as if independent."""

    value: float
    error: float
    tokens: int
    windows: int

    def __str__(self) -> str:
        return f"{self.value:.4f} +/- {self.error:.4f}"


def perplexity(
    model: Model,
    text: str,
    *,
    context: int = 512,
    threads: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Perplexity:
    """The perplexity of a text in windows of `context` tokens, each with an empty cache of the model's format.

    Tokens with more than half a window before them are scored, as llama.cpp's program does; what follows the last
    whole window is left out. threads: ONNX Runtime's, 0 for all processors. progress: called with how many
    tokens are computed, and of how many.

    Raises KvCacheError: "context_range", "text_too_short" for less than a window, "logits_not_finite".
    """
    if not 4 <= context <= model.config.context_length:
        message = f"context is {context}, expected 4 to {model.config.context_length}, the model's"
        raise KvCacheError(message, "context_range")
    first = model.tokenizer.encode("").ids  # what begins every prompt
    tokens = model.tokenizer.encode(text, add_special_tokens=False).ids
    length = context - len(first)
    windows = [first + tokens[at : at + length] for at in range(0, len(tokens) - length + 1, length)]
    if not windows:
        message = f"the text has {len(tokens)} tokens, expected at least {length}, a window"
        raise KvCacheError(message, "text_too_short")
    page = model.cache.page_size
    caches = model.caches((context + page - 1) // page * page, prefix_sharing=False)
    session, manager = model.session(session_options(threads)), caches.manager
    inputs, memory = StepInputs(session), caches.ortvalues()
    losses: list[NDArray[np.float64]] = []
    for i, window in enumerate(windows):
        sequence = manager.create()
        for at in range(0, context, _CHUNK):
            chunk = window[at : at + _CHUNK]
            rows = [row for row in range(len(chunk)) if context // 2 <= at + row < context - 1]
            with manager.begin_step([Append(sequence, tokens=chunk)], caches.memory) as step:
                [logits] = session.run(None, inputs(step, rows) | memory)
            losses.append(losses_of(logits, [window[at + row + 1] for row in rows]))
            if progress is not None:
                progress(i * context + at + len(chunk), len(windows) * context)
        manager.free(sequence)
    scored = np.concatenate(losses)
    value = exp(scored.mean())
    return Perplexity(value, value * float(scored.std(ddof=1)) / sqrt(len(scored)), len(scored), len(windows))


def losses_of(logits: NDArray[np.float32], following: list[int]) -> NDArray[np.float64]:
    """-log p of the tokens that follow, (R), from logits (R, vocabulary)."""
    largest = logits.max(axis=1, initial=-np.inf)
    if not np.isfinite(largest).all():
        raise KvCacheError(f"logits have {largest.min()}, expected finite numbers", "logits_not_finite")
    sums = np.exp(logits - largest[:, None]).sum(axis=1, dtype=np.float64)
    losses: NDArray[np.float64] = np.log(sums) + largest - logits[np.arange(len(following)), following]
    return losses

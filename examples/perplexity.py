"""How well the trained model predicts text that it has never seen, its keys and values kept in a cache."""

from __future__ import annotations

from math import exp

import numpy as np

from engine import Engine


def perplexity(engine: Engine, tokens: list[int], window: int) -> float:
    """Of each token but the first, predicted from those before it in its window of that many tokens.

    A window is one step: every one of its tokens attends to keys and values that have been through the cache.
    """
    total = 0.0
    for first in range(0, len(tokens) - 1, window):
        chunk = tokens[first : first + window + 1]
        seq = engine.manager.create()
        logits = engine.decode({seq: chunk[:-1]})[seq]
        engine.manager.free(seq)
        total -= log_probabilities(logits)[np.arange(len(logits)), chunk[1:]].sum()
    return exp(total / (len(tokens) - 1))


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """The logarithm of the softmax along the last axis, in float64."""
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))

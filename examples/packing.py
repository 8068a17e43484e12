"""Which of a step's packed rows are whose: a step puts entries of one token first and leaves out what is cached."""

from __future__ import annotations

import numpy as np
from kvcache_ops.manager import Step


def logits_by_append(step: Step, lengths: list[int], logits: np.ndarray) -> list[np.ndarray]:
    """The logits of each append's computed tokens, in the order of the appends; `lengths`: how many tokens each had."""
    first, rows = 0, [logits[:0]] * len(lengths)
    for append, cached in zip(step.order, step.cached):
        end = first + lengths[append] - cached
        rows[append] = logits[first:end]
        first = end
    return rows

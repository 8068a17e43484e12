"""The decoder without a cache, and how far the logits of one with a cache may be from it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnxruntime

from decoder import Decoder, build_decoder
from engine import session_options
from key_values import RecomputedKeyValues
from kvcache import CacheFormat

# The largest difference that a logit may have from full recomputation. The logits have a standard deviation of 1; a
# page of another request's tokens would move some of them by 1 or 2. float32 and float16 give attention every bit of
# what was stored, so what is left is matrix products of other shapes that sum in another order, and the few numbers
# that this tips over a rounding border of float16. Where the library's own attention has float16, so have queries and
# results, which are not rounded here. int8 rounds a key or value by up to 1/254 of the largest in its group, int4 by up
# to 1/14.
BOUNDS = {"float32": 5e-5, "float16": 5e-3, "int8": 0.1, "int4": 1.5}


class Recomputation:
    """A decoder whose calls hold whole sequences."""

    def __init__(self, decoder: Decoder, format: CacheFormat, *, key_form: str = "roped", threads: int = 0):
        model = build_decoder(decoder, RecomputedKeyValues(decoder, format, key_form=key_form))
        self._session = onnxruntime.InferenceSession(
            model, session_options(threads), providers=["CPUExecutionProvider"]
        )

    def logits(self, tokens: list[int]) -> np.ndarray:
        """The logits of every token of one whole sequence."""
        feeds = dict(token_ids=tokens, positions=range(len(tokens)), seqstarts=[0, len(tokens)])
        return self._session.run(["logits"], {name: np.array(values, np.int64) for name, values in feeds.items()})[0]

    def compare(self, sequences: Iterable[tuple[list[int], list[tuple[int, np.ndarray]]]]) -> tuple[float, float]:
        """The largest difference of a logit, and the share of tokens after which the likeliest next one is the same.

        A sequence is its tokens and its logits, in blocks with their first rows. A NaN stays, and is within no bound.
        """
        differences, same = [], []
        for tokens, blocks in sequences:
            truth = self.logits(tokens)
            for first, rows in blocks:
                expected = truth[first : first + len(rows)]
                differences.append(np.abs(rows - expected).max())
                same.extend(rows.argmax(1) == expected.argmax(1))
        return float(np.max(differences)), float(np.mean(same))

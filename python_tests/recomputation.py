"""The decoder without a cache, and how far the logits of one with a cache are from it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnxruntime

from decoder import Decoder, build_decoder
from engine import session_options
from key_values import RecomputedKeyValues
from kvcache import CacheFormat


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

    def difference(self, sequences: Iterable[tuple[list[int], list[tuple[int, np.ndarray]]]]) -> float:
        """The largest difference of a logit; NaN if there is one.

        A sequence is its tokens and its logits, in blocks with their first rows.
        """
        differences = []
        for tokens, blocks in sequences:
            truth = self.logits(tokens)
            differences += [np.abs(rows - truth[first : first + len(rows)]).max() for first, rows in blocks]
        return float(np.max(differences))

"""The decoder in ONNX Runtime: one session, one cache bound in place, one run for each step."""

from __future__ import annotations

import numpy as np
import onnxruntime

from decoder import CachedKeyValues, Decoder, RecomputedKeyValues, build_decoder
from kvcache import Cache, CacheFormat, bind, create_session
from scheduler import Batch


def session_options(threads: int = 0) -> onnxruntime.SessionOptions:
    """Options with that many threads for the work inside an operator; 0 takes all cores."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return options


class Engine:
    """A decoder with a paged cache of `max_t` slots for all of its layers."""

    def __init__(
        self,
        decoder: Decoder,
        format: CacheFormat,
        *,
        max_t: int,
        page_size: int,
        cache_layout: int = 0,
        threads: int = 0,
    ):
        source = CachedKeyValues(decoder, format, cache_mode=1, cache_layout=cache_layout, page_size=page_size)
        self._session = create_session(build_decoder(decoder, source), session_options(threads))
        self.cache = Cache(
            format,
            num_layer=decoder.num_layer,
            num_heads=decoder.num_kv_heads,
            head_dim=decoder.head_dim,
            max_t=max_t,
            cache_layout=cache_layout,
        )
        self._binding = self._session.io_binding()
        self.cache.bind(self._binding)

    def step(self, batch: Batch) -> np.ndarray:
        """Runs a batch through the decoder, which stores its keys and values; the logits of its tokens."""
        for name, array in vars(batch).items():
            bind(self._binding, name, array)
        self._binding.bind_output("logits", "cpu")  # anew, or it would keep the shape of the last step
        self._session.run_with_iobinding(self._binding)
        return self._binding.copy_outputs_to_cpu()[0]


class Recomputation:
    """The same decoder without a cache: what its logits are compared with."""

    def __init__(self, decoder: Decoder, format: CacheFormat, threads: int = 0):
        model = build_decoder(decoder, RecomputedKeyValues(decoder, format))
        self._session = onnxruntime.InferenceSession(
            model, session_options(threads), providers=["CPUExecutionProvider"]
        )

    def logits(self, tokens: list[int]) -> np.ndarray:
        """The logits of every token of one whole sequence."""
        feeds = {"token_ids": np.array(tokens, np.int64), "seqstarts": np.array([0, len(tokens)], np.int64)}
        return self._session.run(["logits"], feeds)[0]

"""End to end: a decoder on the operator's cache decodes ragged batches that requests join and leave.

Its logits are compared with those of the decoder without a cache, which recomputes every whole sequence in one call,
with matrix products of other shapes that may sum in another order: equal up to that without quantization, within a
stated bound with it.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from kvcache_ops.manager import Step

from decoder import Decoder
from engine import Engine
from kvcache import FORMATS, LAYOUT_AXES
from recomputation import Recomputation
from scheduler import Request, Scheduler

DECODER = Decoder(num_layer=3, num_heads=4, num_kv_heads=2, head_dim=32, ffn_dim=96, max_positions=256)
MODES = ("paged", "runs", "cells")
TEXT = "It was a bright cold day in April, and the clocks were striking thirteen. "

# Largest difference of a logit from recomputation; logits have a standard deviation of 1. Without quantization what is
# left is the order of summation, and with float16 the few keys and values that it tips over a rounding border.
BOUNDS = {"float32": 2e-5, "float16": 5e-3, "int8": 0.1, "int4": 0.8}


def requests(count: int = 6) -> list[Request]:
    """Requests that arrive at different steps and live for different times; some begin alike."""
    prompts = [TEXT[: 21 + 8 * i] if i % 2 else TEXT[i : 10 + 4 * i] for i in range(count)]
    return [
        Request(str(i), list(prompt.encode()), max_new_tokens=6 + 3 * (i % 4), arrives=2 * i)
        for i, prompt in enumerate(prompts)
    ]


def serve(engine: Engine, to_serve: list[Request], max_batch: int = 4, run=None) -> list[int]:
    """Decodes all requests; how many ran in each step."""
    batches = []
    for batch in Scheduler(engine.manager, engine.memory, max_batch).serve(to_serve, run or engine.run):
        batches.append(batch)
        engine.manager.check()
    assert all(request.finished for request in to_serve) and engine.manager.stats()["used"] == 0
    return batches


def worst_difference(served: list[Request], name: str, **options: str) -> float:
    """The largest difference of a logit from full recomputation, over all tokens; NaN if there is one."""
    return Recomputation(DECODER, FORMATS[name], **options).difference(request.answer for request in served)


@pytest.mark.parametrize(
    ("name", "mode", "page_size", "max_t"),
    [
        ("float32", "cells", 1, 192),
        ("float16", "runs", 1, 220),
        ("int8", "paged", 3, 144),
        ("int4", "paged", 3, 144),
    ],
)
def test_logits_are_those_of_full_recomputation(name: str, mode: str, page_size: int, max_t: int) -> None:
    """The cache runs short, pages are shared, freed and used again; every logit stays within its bound."""
    key_form = "raw" if name == "int4" else "roped"
    places = dict(max_t=max_t, mode=mode, page_size=page_size, cache_layout=page_size % len(LAYOUT_AXES))
    engine = Engine(DECODER, FORMATS[name], **places, key_form=key_form)
    served = requests()
    batches = serve(engine, served)
    assert len(set(batches)) > 2, "requests join and leave"
    stats = engine.manager.stats()
    assert stats["prefix_hits"] == sum(request.found for request in served)
    assert (stats["prefix_hits"] > 0) == (mode == "paged"), "a prefix is shared"
    assert worst_difference(served, name, key_form=key_form) <= BOUNDS[name]


@pytest.mark.parametrize("mode", MODES)
def test_a_window_is_a_full_cache_with_a_mask(mode: str) -> None:
    """Rows that a window has passed are gone, and no logit misses them; without a window the logits are others."""
    window = dict(window=12, sink=3)
    policies = [dict(window, slack=2), dict(window, slack=150), {}]  # the second one removes nothing here
    places = dict(max_t=160, mode=mode, page_size=4, given_mask=True, threads=1)
    engines = [Engine(DECODER, FORMATS["float32"], **places, **policy) for policy in policies]
    seqs = [engine.manager.create() for engine in engines]
    tokens = list((TEXT + TEXT).encode())[:100]
    chunks = [tokens[:30], *([token] for token in tokens[30:60]), tokens[60:75], *([token] for token in tokens[75:])]
    windowed, masked, full = (
        np.concatenate([engine.decode({seq: chunk})[seq] for chunk in chunks]) for engine, seq in zip(engines, seqs)
    )
    rows = [engine.manager.seq_len(seq) for engine, seq in zip(engines, seqs)]
    page_size = 4 if mode == "paged" else 1
    assert rows[0] <= 12 + 2 + 3 + 2 * (page_size - 1) and rows[1:] == [100, 100]
    assert np.abs(windowed - masked).max() <= BOUNDS["float32"]
    assert np.abs(masked - full).max() > 1000 * BOUNDS["float32"]


@pytest.mark.parametrize("name", ["float32", "int4"])
def test_one_wrong_page_is_far_beyond_the_bound(name: str) -> None:
    """The bounds mean something: a sequence that reads one page of another breaks them."""
    engine = Engine(DECODER, FORMATS[name], max_t=240, page_size=16)

    def run(step: Step) -> np.ndarray:
        if step.start_pos[0] == 0:  # from the next step on it only reads its first page
            return engine.run(step)
        tensors = SimpleNamespace(**{name: getattr(step, name) for name in engine.inputs})
        tensors.cachestarts = step.cachestarts.copy()
        tensors.cachestarts[0, 0] = step.cachestarts[1, 0]
        return engine.run(tensors)

    served = [Request(str(i), list(TEXT[10 * i :][:20].encode()), max_new_tokens=12) for i in range(2)]
    serve(engine, served, max_batch=2, run=run)
    assert worst_difference(served, name) > 1.5 * BOUNDS[name]

"""End to end: a decoder on the operator's cache decodes ragged batches that requests join and leave.

Its logits are compared with those of two others. The decoder whose cache is emulated by standard operators runs the
same steps; all else in it is the same, so the logits must match bit for bit, for every format. The decoder without a
cache recomputes every whole sequence in one call, with matrix products of other shapes that may sum in another order:
equal up to that without quantization, within a stated bound with it.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from compare import assert_same_bits
from decoder import CachedKeyValues, Decoder, build_decoder
from emulated_cache import EmulatedKeyValues
from engine import Engine, Recomputation
from kvcache import FORMATS, LAYOUT_AXES, Cache, CacheFormat, bind, create_session
from node import quiet_options
from scheduler import Batch, PagePool, Request, Scheduler
from setting import FLOAT, HALF, INT4, INT8

DECODER = Decoder(num_layer=4, num_heads=4, num_kv_heads=2, head_dim=32, ffn_dim=192, max_positions=256)
EXAMPLES = Path(__file__).parents[1] / "examples"
TEXT = "It was a bright cold day in April, and the clocks were striking thirteen. "

ALL_FORMATS = FORMATS | {
    "float32 in float16": CacheFormat(FLOAT, HALF),
    "float16 in float32": CacheFormat(HALF, FLOAT),
    "float32 in int8": CacheFormat(FLOAT, INT8, HALF, quant_bit=8, quant_group=16),
    "float32 in int4": CacheFormat(FLOAT, INT4, FLOAT, quant_bit=4, quant_group=32),
}

# Largest difference of a logit from recomputation; logits have a standard deviation of 1. Without quantization what is
# left is the order of summation, and with float16 the few keys and values that it tips over a rounding border.
BOUNDS = {"float32": 2e-5, "float16": 1e-3, "int8": 0.1, "int4": 0.8}


def requests(count: int = 7) -> list[Request]:
    """Requests that arrive at different steps and live for different times; some begin alike."""
    prompts = [TEXT[: 21 + 8 * i] if i % 2 else TEXT[i : 10 + 4 * i] for i in range(count)]
    return [
        Request(str(i), list(prompt.encode()), max_new_tokens=6 + 3 * (i % 4), arrives=2 * i)
        for i, prompt in enumerate(prompts)
    ]


def serve(step, scheduler: Scheduler, to_serve: list[Request]) -> list[int]:
    """Decodes all requests, each batch by `step`; returns how many ran in each step."""
    for request in to_serve:
        scheduler.submit(request)
    batches = []
    while scheduler.waiting or scheduler.running:
        scheduler.join(len(batches))
        batch = scheduler.batch()
        scheduler.advance(batch, step(batch))
        batches.append(len(batch.start_pos))
    return batches


def worst_difference(served: list[Request], recomputation: Recomputation) -> float:
    """The largest difference of a logit from full recomputation, over all tokens; NaN if there is one."""
    differences = [
        np.abs(np.concatenate(r.logits) - recomputation.logits(r.tokens[:-1])[r.shared :]).max() for r in served
    ]
    return float(np.max(differences))


class SideBySide:
    """The decoder on the operator's cache and the one on the emulated cache, run on the same batches and compared."""

    def __init__(self, format: CacheFormat, *, max_t: int, page_size: int, cache_mode: int, cache_layout: int):
        attributes = dict(cache_mode=cache_mode, cache_layout=cache_layout, page_size=page_size)
        self._paged, self._page_size = cache_mode == 1, page_size
        options = quiet_options()
        self._cached = create_session(
            build_decoder(DECODER, CachedKeyValues(DECODER, format, **attributes), expose=True), options
        )
        self._emulated = onnxruntime.InferenceSession(
            build_decoder(DECODER, EmulatedKeyValues(DECODER, format, max_t), expose=True),
            quiet_options(),
            providers=["CPUExecutionProvider"],
        )
        heads, head_dim = DECODER.num_kv_heads, DECODER.head_dim
        sizes = dict(num_layer=DECODER.num_layer, num_heads=heads, head_dim=head_dim, max_t=max_t)
        self._cache = Cache(format, **sizes, cache_layout=cache_layout)
        self._state = {
            f"{name}_{layer}": np.zeros((max_t, heads, head_dim), np.float32)
            for name in ("keys", "values")
            for layer in range(DECODER.num_layer)
        }

    def step(self, batch: Batch) -> np.ndarray:
        """Runs both; every key and value that attention reads, and every logit, has the same bits in both."""
        inputs = vars(batch) if self._paged else vars(batch) | dict(cachestarts=batch.cachestarts[:, 0].copy())
        binding = self._cached.io_binding()
        self._cache.bind(binding)
        for name, array in inputs.items():
            bind(binding, name, array)
        names = [output.name for output in self._cached.get_outputs()]
        for name in names:
            binding.bind_output(name, "cpu")
        self._cached.run_with_iobinding(binding)
        got = dict(zip(names, binding.copy_outputs_to_cpu()))

        feeds = {name: inputs[name] for name in ("token_ids", "seqstarts", "kvstarts", "start_pos")}
        expected_names = [output.name for output in self._emulated.get_outputs()]
        outputs = self._emulated.run(expected_names, feeds | self._slots(batch) | self._state)
        expected = dict(zip(expected_names, outputs))
        self._state = {name: expected[f"{name}_after"] for name in self._state}
        for name in names:
            assert_same_bits(name, got[name], expected[name])
        return got["logits"]

    def _slots(self, batch: Batch) -> dict[str, np.ndarray]:
        """The slots that a batch stores to and loads from, token by token."""
        stored, loaded = [], []
        for b, start_pos in enumerate(batch.start_pos):
            kvlen = batch.kvstarts[b + 1] - batch.kvstarts[b]
            slots = [batch.cachestarts[b, t // self._page_size] + t % self._page_size for t in range(kvlen)]
            stored += slots[start_pos:]
            loaded += slots
        return dict(stored_slots=np.array(stored, np.int64), loaded_slots=np.array(loaded, np.int64))


@pytest.mark.parametrize("cache_mode", [0, 1], ids=["offset", "paged"])
@pytest.mark.parametrize("name", ALL_FORMATS)
def test_attention_and_logits_have_the_bits_of_an_emulated_cache(name: str, cache_mode: int) -> None:
    """For every format, and all layouts over the formats: what the operator gives to attention is exact."""
    cache_layout = (list(ALL_FORMATS).index(name) + cache_mode) % len(LAYOUT_AXES)
    # Offset mode has one run of slots for each request: a page as long as the longest of them.
    page_size, pages = (5, 80) if cache_mode else (100, 7)
    both = SideBySide(
        ALL_FORMATS[name],
        max_t=page_size * pages,
        page_size=page_size,
        cache_mode=cache_mode,
        cache_layout=cache_layout,
    )
    batches = serve(both.step, Scheduler(PagePool(pages), page_size, max_batch=4), requests())
    assert max(batches) == 4 and min(batches) < 4, "requests join and leave"


@pytest.mark.parametrize(("page_size", "pages"), [(3, 48), (16, 12)])
@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_those_of_full_recomputation(name: str, page_size: int, pages: int) -> None:
    """Pages run short, are shared, freed and used again; every logit stays within its bound."""
    engine = Engine(
        DECODER, FORMATS[name], max_t=page_size * pages, page_size=page_size, cache_layout=page_size % len(LAYOUT_AXES)
    )
    pool, served = PagePool(pages), requests()
    batches = serve(engine.step, Scheduler(pool, page_size, max_batch=4), served)
    assert len(set(batches)) > 2, "requests join and leave"
    assert sum(request.shared for request in served) > 0, "a prefix is shared"
    assert pool.free == pages and pool.allocations > pages, "pages are freed and used again"
    assert worst_difference(served, Recomputation(DECODER, FORMATS[name])) <= BOUNDS[name]


@pytest.mark.parametrize("name", FORMATS)
def test_one_wrong_page_is_far_beyond_the_bound(name: str) -> None:
    """The bounds mean something: a sequence that reads one page of another breaks them."""
    engine = Engine(DECODER, FORMATS[name], max_t=240, page_size=16)

    def step(batch: Batch) -> np.ndarray:
        cachestarts = batch.cachestarts.copy()
        if batch.start_pos[0] > 0:  # it has stored its first page and only reads it from here on
            cachestarts[0, 0] = cachestarts[1, 0]
        return engine.step(replace(batch, cachestarts=cachestarts))

    served = [Request(str(i), list(TEXT[10 * i :][:20].encode()), max_new_tokens=12) for i in range(2)]
    serve(step, Scheduler(PagePool(15), 16, max_batch=2), served)
    assert worst_difference(served, Recomputation(DECODER, FORMATS[name])) > 2 * BOUNDS[name]


def test_the_example_checks_itself() -> None:
    """The command that `make run` calls ends with 0, and with 1 if a difference is beyond its bound."""
    command = [sys.executable, "continuous_batching.py", "--requests", "3", "--new-tokens", "4", "--formats"]
    good = subprocess.run([*command, *FORMATS], cwd=EXAMPLES, capture_output=True, text=True, timeout=300)
    assert good.returncode == 0, good.stdout + good.stderr
    for name in FORMATS:
        assert f"\n{name} " in good.stdout
    bad = subprocess.run(
        [*command, "int8", "--bound", "1e-6"], cwd=EXAMPLES, capture_output=True, text=True, timeout=300
    )
    assert bad.returncode == 1 and "BEYOND THE BOUND" in bad.stdout

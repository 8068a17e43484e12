"""End to end: a decoder on the operator's cache decodes ragged batches that requests join and leave.

Its logits are compared with those of two others. The decoder whose cache is emulated by standard operators runs the
same steps and the same edits; all else in it is the same, so the logits must match bit for bit, for every format and
mode. The decoder without a cache recomputes every whole sequence in one call, with matrix products of other shapes that
may sum in another order: equal up to that without quantization, within a stated bound with it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from kvcache_ops.manager import Step
from sample import every
from side_by_side import SideBySide

from compare import assert_same_bits
from decoder import Decoder
from engine import Engine
from kvcache import FORMATS, LAYOUT_AXES, CacheFormat
from recomputation import Recomputation
from scheduler import Request, Scheduler, Turn
from setting import FLOAT, HALF, INT4, INT8

DECODER = Decoder(num_layer=4, num_heads=4, num_kv_heads=2, head_dim=32, ffn_dim=192, max_positions=256)
MODES = ("paged", "runs", "cells")
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


def serve(engine: Engine, to_serve: list[Request], max_batch: int = 4, run=None) -> list[Turn]:
    """Decodes all requests; what came of each step."""
    scheduler = Scheduler(engine.manager, engine.memory, max_batch)
    for request in to_serve:
        scheduler.submit(request)
    turns = []
    while scheduler.waiting or scheduler.running:
        turns.append(scheduler.step(len(turns), run or engine.run))
        engine.manager.check()
    return turns


def worst_difference(served: list[Request], recomputation: Recomputation) -> float:
    """The largest difference of a logit from full recomputation, over all tokens; NaN if there is one."""
    return float(np.max([recomputation.difference(request.tokens[:-1], request.logits) for request in served]))


class Conversation:
    """Sequences of `SideBySide` that continue with their likeliest tokens."""

    def __init__(self, both: SideBySide):
        self.both = both
        self.next: dict[int, list[int]] = {}  # the tokens that a sequence has not stored yet

    def join(self, prompt: str) -> int:
        """A new sequence."""
        seq = self.both.create()
        self.next[seq] = list(prompt.encode())
        return seq

    def fork(self, seq: int, token: int) -> int:
        """A second one of the same rows, which goes on with another token."""
        new = self.both.fork(seq)
        self.next[new] = [token]
        return new

    def leave(self, seq: int) -> None:
        """A sequence is gone."""
        self.both.free(seq)
        del self.next[seq]

    def steps(self, count: int) -> None:
        """All go on by so many steps."""
        for _ in range(count):
            logits = self.both.step(self.next)
            self.next = {seq: [int(logits[seq].argmax())] for seq in self.next}

    def edit(self, name: str, seq: int, *arguments: int) -> None:
        """An edit of a sequence in both; they say the same of it."""
        real = dict(remove="seq_rm", add="seq_add", divide="seq_div", context_shift="context_shift")[name]
        got = getattr(self.both.manager, real)(seq, *arguments)
        assert got == getattr(self.both.naive, name)(seq, *arguments)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ALL_FORMATS)
def test_attention_and_logits_have_the_bits_of_an_emulated_cache(name: str, mode: str, tmp_path: Path) -> None:
    """Sequences join, leave, fork, are cut back, shifted, defragmented, saved and reloaded; every bit is as it must be.

    All layouts and both forms of keys are spread over formats and modes.
    """
    variant = list(ALL_FORMATS).index(name) + MODES.index(mode)
    both = SideBySide(
        DECODER,
        ALL_FORMATS[name],
        max_t=320,
        mode=mode,
        page_size=5,
        cache_layout=variant % len(LAYOUT_AXES),
        key_form="raw" if variant % 5 == 4 else "roped",
    )
    talk = Conversation(both)
    a = talk.join(TEXT[:20])
    talk.steps(1)
    b = talk.join(TEXT[:14] + "clear")
    talk.steps(2)
    c = talk.join(TEXT[30:52])
    talk.steps(2)
    d = talk.fork(a, ord("x"))
    talk.steps(3)
    talk.edit("remove", b, both.naive.next_position(b) - 3, -1)  # a draft of three tokens is rejected
    talk.steps(1)
    talk.edit("context_shift", c, both.naive.next_position(c) + 1, 1, 2, None)
    talk.steps(2)
    talk.edit("remove", d, 3, 6)
    talk.steps(1)
    talk.leave(b)
    both.manager.defrag()
    talk.edit("add", d, 8, -1, 3)
    e = talk.fork(d, ord("y"))
    talk.steps(2)
    talk.edit("divide", e, 0, 9, 2)
    talk.edit("remove", c, 5, 7)
    talk.edit("add", c, 7, -1, -2)
    talk.edit("add", c, 9, -1, 1)  # two edits, one turn of the keys
    assert both.manager.pending(c).any() == (variant % 5 != 4)
    new = both.reload(tmp_path / "session.kv", page_size=7, cache_layout=(variant + 1) % len(LAYOUT_AXES), max_t=400)
    talk.next = {new[seq]: tokens for seq, tokens in talk.next.items()}
    talk.steps(2)
    talk.join(TEXT[:20] + "dark")
    talk.steps(1)
    talk.edit("context_shift", new[a], both.naive.next_position(new[a]) + 1, 1, 0, 7)
    talk.steps(3)
    assert (both.cached > 0) == (mode == "paged")
    both.manager.check()


@pytest.mark.parametrize(
    ("mode", "page_size", "max_t"), [("paged", 3, 144), ("paged", 16, 192), ("runs", 1, 220), ("cells", 1, 192)]
)
@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_those_of_full_recomputation(name: str, mode: str, page_size: int, max_t: int) -> None:
    """The cache runs short, pages are shared, freed and used again; every logit stays within its bound."""
    key_form = "raw" if name == "int4" else "roped"
    engine = Engine(
        DECODER,
        FORMATS[name],
        max_t=max_t,
        mode=mode,
        page_size=page_size,
        cache_layout=page_size % len(LAYOUT_AXES),
        key_form=key_form,
    )
    served = requests()
    turns = serve(engine, served)
    assert len({turn.batch for turn in turns}) > 2, "requests join and leave"
    stats = engine.manager.stats()
    assert stats["used"] == 0 and stats["prefix_hits"] == sum(request.found for request in served)
    assert (stats["prefix_hits"] > 0) == (mode == "paged"), "a prefix is shared"
    recomputation = Recomputation(DECODER, FORMATS[name], key_form=key_form)
    assert worst_difference(served, recomputation) <= BOUNDS[name]


@pytest.mark.parametrize(("mode", "page_size"), [("paged", 3), ("paged", 16), ("runs", 1)])
@pytest.mark.parametrize("name", FORMATS)
def test_the_librarys_attention_gives_these_logits_too(name: str, mode: str, page_size: int) -> None:
    """By one node for each layer or by two: the same bits, as near to full recomputation as float16 queries are."""
    logits = []
    for attention in ("fused", "packed"):
        engine = Engine(
            DECODER,
            FORMATS[name],
            max_t=192,
            mode=mode,
            page_size=page_size,
            cache_layout=page_size % len(LAYOUT_AXES),
            attention=attention,
        )
        served = requests()
        serve(engine, served)
        bound = max(BOUNDS[name], 2e-5 if name == "float32" else 5e-3)
        assert worst_difference(served, Recomputation(DECODER, FORMATS[name])) <= bound
        logits.append([rows for request in served for _, rows in request.logits])
    for fused, packed in zip(*logits, strict=True):
        assert_same_bits("logits", fused, packed)


def test_attention_that_the_library_does_not_have() -> None:
    """Cells, raw keys and a given mask need the standard operators: refused in words."""
    for option in (dict(mode="cells"), dict(key_form="raw"), dict(given_mask=True)):
        with pytest.raises(ValueError, match="expected standard attention"):
            Engine(DECODER, FORMATS["float32"], max_t=32, attention="fused", **option)


@pytest.mark.parametrize("mode", MODES)
def test_who_finds_no_room_waits_and_computes_little_again(mode: str) -> None:
    """The youngest is preempted where the cache is full, comes back when another has left, and ends with its answer."""
    engine = Engine(DECODER, FORMATS["float32"], max_t=96, mode=mode, page_size=4)
    served = [Request(str(i), list(TEXT[7 * i :][:20].encode()), max_new_tokens=20, arrives=i) for i in range(4)]
    turns = serve(engine, served)
    assert any(turn.preempted for turn in turns), "the cache is full"
    assert all(request.finished for request in served) and engine.manager.stats()["used"] == 0
    assert (engine.manager.stats()["prefix_hits"] > 0) == (mode == "paged")
    assert worst_difference(served, Recomputation(DECODER, FORMATS["float32"])) <= BOUNDS["float32"]


def test_a_decoder_of_two_layers_is_its_uncached_self() -> None:
    """Whole prompts in one step have the very bits; token by token they agree up to the order of sums."""
    decoder = Decoder(num_layer=2, num_heads=4, num_kv_heads=2, head_dim=32, ffn_dim=96, max_positions=64)
    tokens = list(TEXT[:40].encode())
    truth = Recomputation(decoder, FORMATS["float32"], threads=1).logits(tokens)
    for mode in MODES:
        engine = Engine(decoder, FORMATS["float32"], max_t=160, mode=mode, page_size=8, threads=1)
        whole, slow = engine.manager.create(), engine.manager.create()
        at_once = engine.decode({whole: tokens})[whole]
        if mode == "cells":  # there the padding of the view is summed as well
            assert np.abs(at_once - truth).max() <= BOUNDS["float32"]
        else:
            assert_same_bits(mode, at_once, truth)
        shared = int(engine.manager.stats()["prefix_hits"])
        slowly = [engine.decode({slow: [token]})[slow] for token in tokens]
        assert np.abs(np.concatenate(slowly) - truth).max() <= BOUNDS["float32"]
        assert shared == engine.manager.stats()["prefix_hits"], "one token is always computed"


@pytest.mark.parametrize("mode", MODES)
def test_a_window_is_a_full_cache_with_a_mask(mode: str) -> None:
    """Rows that a window has passed are gone, and no logit misses them; without a window the logits are others."""
    window = dict(window=12, sink=3)
    policies = [dict(window, slack=2), dict(window, slack=150), {}]  # the second one removes nothing here
    engines = [
        Engine(DECODER, FORMATS["float32"], max_t=160, mode=mode, page_size=4, given_mask=True, threads=1, **policy)
        for policy in policies
    ]
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


@pytest.mark.parametrize("name", FORMATS)
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
    assert worst_difference(served, Recomputation(DECODER, FORMATS[name])) > 2 * BOUNDS[name]


def test_the_example_checks_itself() -> None:
    """The command that `make run` calls ends with 0, and with 1 if a difference is beyond its bound."""
    command = [sys.executable, "continuous_batching.py", "--requests", "3", "--new-tokens", "4", "--formats"]
    formats = list(FORMATS)[:: every(3)]
    good = subprocess.run([*command, *formats], cwd=EXAMPLES, capture_output=True, text=True, timeout=300)
    assert good.returncode == 0, good.stdout + good.stderr
    for name in formats:
        assert good.stdout.count(f"\n{name} ") == 3, "fused, packed and standard"
    cells = subprocess.run(
        [*command, "float16", "--mode", "cells"], cwd=EXAMPLES, capture_output=True, text=True, timeout=300
    )
    assert cells.returncode == 0, cells.stdout + cells.stderr
    bad = subprocess.run(
        [*command, "int8", "--bound", "1e-6"], cwd=EXAMPLES, capture_output=True, text=True, timeout=300
    )
    assert bad.returncode == 1 and "BEYOND THE BOUND" in bad.stdout


@pytest.mark.parametrize("name", ["forking", "context_shift", "preemption", "resuming"])
def test_the_smaller_examples_check_themselves(name: str) -> None:
    """Each ends with 1 where what it shows is not so."""
    ran = subprocess.run([sys.executable, f"{name}.py"], cwd=EXAMPLES, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr

"""seqstarts, kvstarts, start_pos and the two maxima: each rule broken in the first and in the last sequence, with
small values and with those where an unchecked sum would wrap. Each step of a case breaks its rule in another way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .bits import I64_MAX, I64_MIN
from .case import Case, Sequence, begin, indices
from .table import Row, refusals, with_entry

# start_pos, seqlen, place: kvlens 4, 3, 4; tokens 2, 3, 1.
BATCH = (Sequence(2, 2, 8), Sequence(0, 3, 0), Sequence(3, 1, 4))
PAGED = (Sequence(2, 2, (8,)), Sequence(0, 3, (0,)), Sequence(3, 1, (4,)))


def cases() -> Iterator[Case]:
    offset, paged = [*_starts(), *_lengths()], [*_lengths(), *_maxima()]
    for mode, batch, bits, types, rows in (
        (0, BATCH, 0, "f32 f32", offset),
        (1, PAGED, 8, "f16 int8 f16", paged),
    ):
        given = dict(types=types, num_heads=1, quant_bit=bits, cache_mode=mode, page_size=4)
        table = [(f"{name}-mode{mode}", about, rules, given, *calls) for name, about, rules, *calls in rows]
        yield from refusals(begin, batch, table)


def _starts() -> Iterator[Row]:
    """seqstarts [0, 2, 5, 6] and kvstarts [0, 4, 7, 11] made wrong."""
    decreases = {
        "seqstarts": [[0, -1, 5, 6], [0, 5, 4, 6], [0, 2, 7, 6], [0, 2, I64_MIN, 6], [0, I64_MAX, 5, 6]],
        "kvstarts": [[0, -3, 7, 11], [0, 4, 3, 11], [0, 4, 12, 11], [0, 4, 7, I64_MIN], [0, 4, I64_MAX, 11]],
    }
    for name, wrong in decreases.items():
        about = f"{name} begins at another number than 0: above, below, and at the least of all."
        calls = [("starts_not_zero", f"{name}, {x}", {name: with_entry(0, x)}) for x in (1, -1, I64_MIN)]
        yield f"{name}-not-zero", about, "starts.rising", *calls
        about = f"{name} decreases: at the first batch, in the middle, at the last, and by more than int64 holds."
        at = [next(b for b in range(3) if values[b + 1] < values[b]) for values in wrong]
        mentions = [f"{name}, batch {b}, {values[b + 1]}" for b, values in zip(at, wrong)]
        calls = [("starts_decrease", said, {name: values}) for said, values in zip(mentions, wrong)]
        yield f"{name}-decrease", about, "starts.rising", *calls
    about = "seqstarts ends elsewhere than at the 6 tokens of current_key; 2^32 + 6 is not cut to 6."
    ends = (5, 7, 2**32 + 6, I64_MAX)
    calls = [("starts_total", f"seqstarts, {end}", dict(seqstarts=with_entry(3, end))) for end in ends]
    yield "seqstarts-total", about, "starts.total", *calls


def _lengths() -> Iterator[Row]:
    """start_pos [2, 0, 3] and kvlens [4, 3, 4] made wrong."""
    about = "start_pos below 0 at each batch, and so far below that adding seqlen to it helps nothing."
    wrong = ((0, -1), (1, -1), (2, -1), (0, I64_MIN), (2, I64_MIN))
    calls = [("start_pos_negative", f"start_pos, batch {b}, {x}", dict(start_pos=with_entry(b, x))) for b, x in wrong]
    yield "start-pos-negative", about, "starts.start-pos", *calls
    about = "start_pos and seqlen do not add up to kvlen: too little, too much, and where the sum would overflow."
    wrong = ((0, 1), (1, 1), (2, 4), (1, 2**32), (0, I64_MAX), (2, I64_MAX))
    calls = [(f"start_pos, batch {b}, {(4, 3, 4)[b]}", dict(start_pos=with_entry(b, x))) for b, x in wrong]
    calls += [
        ("start_pos, batch 2, 5", dict(kvstarts=with_entry(3, 12), max_kvlen=indices(5))),
        (f"start_pos, batch 2, {I64_MAX - 7}", dict(kvstarts=with_entry(3, I64_MAX), max_kvlen=indices(I64_MAX))),
    ]
    yield "kvlen-mismatch", about, "starts.kvlen", *(("kvlen_mismatch", *call) for call in calls)


def _maxima() -> Iterator[Row]:
    """max_seqlen 3 and max_kvlen 4 made smaller."""
    for name, true in (("max_seqlen", 3), ("max_kvlen", 4)):
        about = f"{name} is smaller than the longest sequence, {true}: by one, 0, negative, and the least of all."
        wrong = (indices(true - 1), indices([true - 1]), indices(0), indices([-1]), indices(I64_MIN))
        calls = [("max_too_small", f"{name}, {x.reshape(-1)[0]}, {true}", {name: x}) for x in wrong]
        yield f"{name}-too-small", about, f"bounds.{name}".replace("_", "-"), *calls


def empty_batches() -> Iterator[Case]:
    """What can be wrong with B = 0."""
    one = np.zeros((1, 2, 8), np.float32)
    token = dict(current_key=one, current_value=one)
    # fmt: off
    yield from refusals(begin, (), (
        ("batch-of-none-starts", "B = 0 with seqstarts [1] or kvstarts [4]: even then both begin, and end, at 0.",
         "starts.rising", dict(max_t=3),
         ("starts_not_zero", "seqstarts, 1", dict(seqstarts=[1]) | token),
         ("starts_not_zero", "kvstarts, 4", dict(kvstarts=[4]))),
        ("batch-of-none-with-token", "B = 0 with a token in current_key that no sequence owns.",
         "starts.total", dict(max_t=3), ("starts_total", "seqstarts, 1", token)),
        ("batch-of-none-negative-bound", "B = 0 with a negative bound: smaller than the maximum of nothing, 0.",
         "bounds.max-seqlen bounds.max-kvlen", dict(max_t=3),
         ("max_too_small", "max_seqlen, -1", dict(max_seqlen=[-1])),
         ("max_too_small", "max_kvlen, -1", dict(max_kvlen=indices(-1)))),
    ))
    # fmt: on


def state_untouched() -> Iterator[Case]:
    """A refused call between two that succeed changes nothing of what the second finds."""
    for bits, types in ((0, "f16 f32"), (8, "f32 int8 f16"), (4, "f16 int4 f32")):
        for mode in (0, 1) if bits == 4 else (bits // 8,):
            places = (1, 6) if mode == 0 else ((1, 7), (4,))
            name = f"refuse-between-steps-mode{mode}-{types.replace(' ', '-')}"
            about = "Prefill, three refused steps, then the decode step that finds the cache as the prefill left it."
            given = dict(quant_bit=bits, cache_mode=mode, page_size=3, cache_layout=bits // 4 + 1)
            case = begin(name, about, types, proves="refusal-leaves-memory", **given)
            case.call(Sequence(0, 3, places[0]), Sequence(0, 2, places[1]))
            batch = (Sequence(3, 1, places[0]), Sequence(2, 1, places[1]))
            case.refuse("kvlen_mismatch", ["start_pos", "batch 1", 3], *batch, start_pos=[3, 3])
            case.refuse("max_too_small", ["max_kvlen", 3, 4], *batch, max_kvlen=indices(3))
            beyond = [1, 11] if mode == 0 else [[1, 7], [11, -1]]
            error = "cache_range" if mode == 0 else "page_range"
            case.refuse(error, ["cachestarts", "batch 1", 11], *batch, cachestarts=beyond)
            yield case.call(*batch)

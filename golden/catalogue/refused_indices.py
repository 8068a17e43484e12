"""seqstarts, kvstarts, start_pos and the two maxima: each rule broken in the first and in the last sequence, with
small values and with those where an unchecked sum would wrap. Each step of a case breaks its rule in another way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .bits import I64_MAX, I64_MIN
from .case import Case, Sequence, begin, indices

MAX_T = 12
# start_pos, seqlen, place: kvlens 4, 3, 4; tokens 2, 3, 1.
BATCH = (Sequence(2, 2, 8), Sequence(0, 3, 0), Sequence(3, 1, 4))
PAGED = (Sequence(2, 2, (8,)), Sequence(0, 3, (0,)), Sequence(3, 1, (4,)))


def cases() -> Iterator[Case]:
    for mode, batch, bits, types in ((0, BATCH, 0, "f32 f32"), (1, PAGED, 8, "f16 int8 f16")):
        for name, about, rule, error, steps in (*_starts(), *_lengths()) if mode == 0 else (*_lengths(), *_maxima()):
            given = dict(num_heads=1, max_t=MAX_T, quant_bit=bits, cache_mode=mode, page_size=4)
            case = begin(f"refuse-{name}-mode{mode}".replace("_", "-"), about, types, proves=rule, **given)
            for mentions, changes in steps:
                case.refuse(error, mentions, *batch, **changes)
            yield case


# A rule: the case's name and about, the rule's id, the error kind, and for each step the mentions and the inputs that
# break it.
Rule = tuple[str, str, str, str, list[tuple[list[object], dict[str, np.ndarray]]]]


def _starts() -> Iterator[Rule]:
    """seqstarts [0, 2, 5, 6] and kvstarts [0, 4, 7, 11] made wrong."""
    for name, (_, *rest) in (("seqstarts", [0, 2, 5, 6]), ("kvstarts", [0, 4, 7, 11])):
        about = f"{name} begins at another number than 0: above, below, and at the least of all."
        steps = [([name, first], {name: indices([first, *rest])}) for first in (1, -1, I64_MIN)]
        yield f"{name}-not-zero", about, "starts.rising", "starts_not_zero", steps

    decreases = {
        "seqstarts": (
            (0, [0, -1, 5, 6]),
            (1, [0, 5, 4, 6]),
            (2, [0, 2, 7, 6]),
            (1, [0, 2, I64_MIN, 6]),
            (1, [0, I64_MAX, 5, 6]),
        ),
        "kvstarts": (
            (0, [0, -3, 7, 11]),
            (1, [0, 4, 3, 11]),
            (2, [0, 4, 12, 11]),
            (2, [0, 4, 7, I64_MIN]),
            (2, [0, 4, I64_MAX, 11]),
        ),
    }
    for name, wrong in decreases.items():
        about = f"{name} decreases: at the first batch, in the middle, at the last, and by more than int64 holds."
        steps = [([name, f"batch {b}", values[b + 1]], {name: indices(values)}) for b, values in wrong]
        yield f"{name}-decrease", about, "starts.rising", "starts_decrease", steps

    about = "seqstarts ends elsewhere than at the 6 tokens of current_key; 2^32 + 6 is not cut to 6."
    steps = [(["seqstarts", end], dict(seqstarts=indices([0, 2, 5, end]))) for end in (5, 7, 2**32 + 6, I64_MAX)]
    yield "seqstarts-total", about, "starts.total", "starts_total", steps


def _lengths() -> Iterator[Rule]:
    """start_pos [2, 0, 3] and kvlens [4, 3, 4] made wrong."""

    def with_start_pos(b: int, found: int) -> dict[str, np.ndarray]:
        start_pos = [2, 0, 3]
        start_pos[b] = found
        return dict(start_pos=indices(start_pos))

    about = "start_pos below 0 at each batch, and so far below that adding seqlen to it helps nothing."
    wrong = ((0, -1), (1, -1), (2, -1), (0, I64_MIN), (2, I64_MIN))
    steps = [(["start_pos", f"batch {b}", found], with_start_pos(b, found)) for b, found in wrong]
    yield "start-pos-negative", about, "starts.start-pos", "start_pos_negative", steps

    about = "start_pos and seqlen do not add up to kvlen: too little, too much, and where the sum would overflow."
    wrong = ((0, 1), (1, 1), (2, 4), (1, 2**32), (0, I64_MAX), (2, I64_MAX))
    steps = [(["start_pos", f"batch {b}", (4, 3, 4)[b]], with_start_pos(b, found)) for b, found in wrong]
    steps.append((["start_pos", "batch 2", 5], dict(kvstarts=indices([0, 4, 7, 12]), max_kvlen=indices(5))))
    changes = dict(kvstarts=indices([0, 4, 7, I64_MAX]), max_kvlen=indices(I64_MAX))
    steps.append((["start_pos", "batch 2", I64_MAX - 7], changes))
    yield "kvlen-mismatch", about, "starts.kvlen", "kvlen_mismatch", steps


def _maxima() -> Iterator[Rule]:
    """max_seqlen 3 and max_kvlen 4 made smaller."""
    for name, true in (("max_seqlen", 3), ("max_kvlen", 4)):
        about = f"{name} is smaller than the longest sequence, {true}: by one, 0, negative, and the least of all."
        steps = []
        for shape, found in (((), true - 1), ((1,), true - 1), ((), 0), ((1,), -1), ((), I64_MIN)):
            steps.append(([name, found, true], {name: indices([found]).reshape(shape)}))
        yield f"{name}-too-small", about, f"bounds.{name}".replace("_", "-"), "max_too_small", steps


def empty_batches() -> Iterator[Case]:
    """What can be wrong with B = 0."""
    one = np.zeros((1, 2, 8), np.float32)
    about = "B = 0 with seqstarts [1] or kvstarts [4]: even then both begin, and end, at 0."
    case = begin("refuse-batch-of-none-starts", about, "f32 f32", proves="starts.rising", max_t=3)
    case.refuse("starts_not_zero", ["seqstarts", 1], seqstarts=indices([1]), current_key=one, current_value=one)
    yield case.refuse("starts_not_zero", ["kvstarts", 4], kvstarts=indices([4]))

    about = "B = 0 with a token in current_key that no sequence owns."
    case = begin("refuse-batch-of-none-with-token", about, "f32 f32", proves="starts.total", max_t=3)
    yield case.refuse("starts_total", ["seqstarts", 1], current_key=one, current_value=one)

    about = "B = 0 with a negative bound: smaller than the maximum of nothing, 0."
    case = begin(
        "refuse-batch-of-none-negative-bound", about, "f32 f32", proves="bounds.max-seqlen bounds.max-kvlen", max_t=3
    )
    case.refuse("max_too_small", ["max_seqlen", -1], max_seqlen=indices([-1]))
    yield case.refuse("max_too_small", ["max_kvlen", -1], max_kvlen=indices(-1))


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
            case.refuse("kvlen_mismatch", ["start_pos", "batch 1", 3], *batch, start_pos=indices([3, 3]))
            case.refuse("max_too_small", ["max_kvlen", 3, 4], *batch, max_kvlen=indices(3))
            beyond = indices([1, 11]) if mode == 0 else indices([[1, 7], [11, -1]])
            error = "cache_range" if mode == 0 else "page_range"
            case.refuse(error, ["cachestarts", "batch 1", 11], *batch, cachestarts=beyond)
            yield case.call(*batch)

"""The limit of a case: a loop that reads and writes as many bytes as the case, in the same ratio, and nothing else.

The library has it in three orders; the fastest is the limit. It writes with non-temporal stores in a cold case, plainly
in a warm one, and is measured on as many threads as the contenders, in the same rounds.
"""

from __future__ import annotations

from itertools import product
from math import ceil

import numpy as np
from onnx import TensorProto

from cases import Case, Traffic
from measure import Contender
from native import LINE, REMAINS, Measured, Moved, Native, WrongAnswer, sum_of
from tensors import ROTATION, Arena

# By name, the number of pages that are taken in turn.
ORDERS = {"limit, in sequence": 1, "limit, 4 pages in turn": 4, "limit, 8 pages in turn": 8}


def limits(native: Native, case: Case, arena: Arena) -> list[Contender]:
    """The loops of every phase that moves enough; raises `WrongAnswer` unless each moves what it should."""
    # The largest first: a region that grows is another one.
    phases = sorted(case.limited.items(), key=lambda item: -item[1].bytes)
    return [contender for phase, traffic in phases for contender in limits_of(native, case, phase, traffic, arena)]


def limits_of(native: Native, case: Case, phase: str, traffic: Traffic, arena: Arena) -> list[Contender]:
    """The loops of one phase."""
    reads, writes = lines(traffic)
    size = reads * LINE
    # A cold loop reads another part of its source each time, so that nothing of it is in cache.
    parts = 1 + ceil(ROTATION / size) if case.cold else 1
    source = arena.random("limit source", TensorProto.INT8, (parts * size,)).view(np.uint8)
    target = arena.bytes("limit target", writes * LINE)
    expected = Moved(size, target.nbytes, sum_of(source[:size]))

    def contender(name: str, threads: int) -> Contender:
        def sample(turn: int, iterations: int) -> Measured:
            part = source[turn % parts * size :][:size]
            return native.limit(threads, ORDERS[name], case.cold, part, target, iterations)[0]

        return Contender(name, phase, threads, sample, cold=case.cold)

    for pages, threads in product(ORDERS.values(), native.teams):
        check(native, pages, case.cold, threads, source[:size], target, expected)
    return [contender(name, threads) for name, threads in product(ORDERS, native.teams)]


def lines(traffic: Traffic) -> tuple[int, int]:
    """Whole cache lines that are read and written, at least one."""
    return max(1, traffic.read // LINE), max(1, traffic.written // LINE)


def check(
    native: Native, pages: int, stream: bool, threads: int, source: np.ndarray, target: np.ndarray, expected: Moved
) -> None:
    """Raises `WrongAnswer` unless one iteration moves exactly what it should."""
    _, got = native.limit(threads, pages, stream, source, target, 1)
    if got != expected:
        raise WrongAnswer(f"limit, {pages} pages in turn on {threads} threads: expected {expected}, got {got}")


def check_limits(native: Native, arena: Arena) -> None:
    """Raises `WrongAnswer` unless each order reads and writes every line, for ratios and sizes that come out uneven."""
    sizes = [(8191, 8191), (8191, 2047), (613, 9001), (9001, 613), (1, 77), (77, 1), (4096, 4096)]
    for (reads, writes), pages, threads, stream in product(sizes, ORDERS.values(), native.teams, (True, False)):
        source = arena.random("limit source", TensorProto.INT8, (reads * LINE,)).view(np.uint8)
        target = arena.bytes("limit target", writes * LINE)
        expected = Moved(source.nbytes, target.nbytes, sum_of(source))
        written = []
        for remains in REMAINS:
            target[:] = remains
            check(native, pages, stream, threads, source, target, expected)
            written.append(target.copy())
        if not np.array_equal(*written):
            raise WrongAnswer(f"limit, {pages} pages in turn on {threads} threads: not all is written")
        if reads == writes and not np.array_equal(source, target):
            raise WrongAnswer(f"limit, {pages} pages in turn on {threads} threads: an even ratio is not a copy")

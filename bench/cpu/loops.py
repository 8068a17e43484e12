"""The limit of a case: a loop that reads and writes as many bytes, in the same ratio, and does nothing else.

It writes with non-temporal stores where the case is out of cache. The library has it in three orders; the fastest
counts.
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
PAGES = {"in sequence": 1, "4 pages in turn": 4, "8 pages in turn": 8}


def limits(native: Native, case: Case, threads: int, arena: Arena) -> list[Contender]:
    """The loops of every phase that moves enough, all orders of the first phase before those of the second."""
    arena.bytes("limit source", max(ROTATION + 2 * each.read for each in case.limited.values()))
    return [
        contender
        for phase, traffic in case.limited.items()
        for contender in movers(native, f"limit of {phase}", traffic, threads, case.cold, case.cold, arena)
    ]


def movers(
    native: Native, name: str, traffic: Traffic, threads: int, cold: bool, stream: bool, arena: Arena
) -> list[Contender]:
    """Loops that read and write so much; raises `WrongAnswer` unless each moves what it should."""
    reads, writes = (max(1, count // LINE) for count in (traffic.read, traffic.written))
    size = reads * LINE
    # A cold loop reads another part of its source each time, so that nothing of it is in cache.
    parts = 1 + ceil(ROTATION / size) if cold else 1
    source = arena.random("limit source", TensorProto.INT8, (parts * size,)).view(np.uint8)
    target = arena.bytes("limit target", writes * LINE)
    expected = Moved(size, target.nbytes, sum_of(source[:size]))

    def contender(order: str) -> Contender:
        def sample(turn: int, iterations: int) -> Measured:
            part = source[turn % parts * size :][:size]
            return native.limit(threads, PAGES[order], stream, part, target, iterations)[0]

        return Contender(f"{name}, {order}", threads, sample, cold=cold)

    for pages in PAGES.values():
        check(native, pages, stream, threads, source[:size], target, expected)
    return [contender(order) for order in PAGES]


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
    for (reads, writes), pages, threads, stream in product(sizes, PAGES.values(), native.teams, (True, False)):
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

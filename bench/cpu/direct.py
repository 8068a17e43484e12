"""The limit, and the kernel called without ONNX Runtime."""

from __future__ import annotations

from itertools import product

import numpy as np
from onnx import TensorProto

from measure import Contender
from memory import LAST_LEVEL, Arena, Operands
from native import PHASES, Measured, Native, NativeCase, WrongAnswer

# The honest ceiling interleaves four pages; a single stream and the C library's copy are reported beside it.
LIMITS = {"copy, 4 pages at once": 4, "copy, single stream": 1, "memcpy": 0}
LIMIT, SINGLE_STREAM, MEMCPY = LIMITS
KERNEL = "kernel"


def limit_bytes(operands: Operands) -> int:
    """The size of the measured copy: that of the larger phase; others are scaled to it."""
    case = operands.case
    page = 4096
    return max(page, max(case.store_bytes, case.load_bytes) // 2 // page * page)


def check_copies(native: Native, arena: Arena) -> None:
    """Raises `WrongAnswer` unless every way to copy copies, also where pages do not divide evenly."""
    size = 1021 * 4096
    source = arena.random("copy source", TensorProto.INT8, (size,))
    target = arena.bytes("copy target", size).view(source.dtype)
    for (name, streams), threads in product(LIMITS.items(), native.teams):
        target[:] = 0
        native.copy(threads, streams, source, target, 1)
        if not np.array_equal(source, target):
            raise WrongAnswer(f"{name} on {threads} threads")


def limits(native: Native, operands: Operands, arena: Arena) -> list[Contender]:
    """Copies of as many bytes as the case's larger phase must read and write, halved, by as many threads."""
    size, cold = limit_bytes(operands), operands.case.cold
    # A cold copy reads another part of its source each time, so that nothing of it is in cache.
    room = max(size, 4 * LAST_LEVEL) + size if cold else size
    source, target = arena.bytes("copy source", room), arena.bytes("copy target", size)
    steps = room // size

    def contender(name: str, streams: int, threads: int) -> Contender:
        def sample(turn: int, iterations: int) -> Measured:
            start = turn % steps * size
            return native.copy(threads, streams, source[start : start + size], target, iterations)

        return Contender(name, "copy", threads, sample, cold=cold)

    # In cache the yardstick is memcpy alone.
    names = LIMITS if cold else [MEMCPY]
    return [contender(name, LIMITS[name], threads) for name in names for threads in native.teams]


def kernels(native: Native, operands: Operands, cases: list[NativeCase]) -> list[Contender]:
    """The phases, and the whole operator with its checks."""

    def contender(phase: str, threads: int) -> Contender:
        def sample(turn: int, iterations: int) -> Measured:
            return cases[turn % len(cases)].measure(phase, threads, iterations)

        answer = (lambda: cases[0].measure("op", threads, 1)) if phase == "op" else None
        return Contender(KERNEL, phase, threads, sample, answer, cold=operands.case.cold)

    return [contender(phase, threads) for phase in PHASES for threads in native.teams]

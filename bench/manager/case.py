"""A case of the native library: the manager's work, in memory of the case's own."""

from __future__ import annotations

import ctypes
from math import nan

import numpy as np

from measure import Contender
from native import Measured, Meter, Native

MOST_NUMBERS = 1 << 20  # of the tensors of a step


class Case:
    """A case by its name and its numbers; raises `Refused` unless all its answers are right."""

    def __init__(self, native: Native, name: str, *numbers: int) -> None:
        self._native = native
        array = (ctypes.c_size_t * len(numbers))(*numbers)
        self._case = native.made("bench_case_new", name.encode(), ctypes.addressof(array), len(numbers))
        native.call("bench_case_check", self._case)

    def contender(self, name: str, label: str | None = None, *, wall: bool = False) -> Contender:
        """One of the case's contenders: of what it takes, the processor's time or, for `wall`, the clock's."""

        def sample(_turn: int, _iterations: int) -> Measured:
            meter = self.meter(name)
            ns = meter.wall_ns if wall else meter.cpu_ns
            return Measured(ns / meter.operations, nan if wall else meter.cpu_ns / meter.wall_ns)

        return Contender(label or name, "manager", 1, sample)

    def meter(self, name: str) -> Meter:
        """What the operations of a contender take."""
        meter = Meter()
        self._native.call("bench_case_measure", self._case, name.encode(), meter)
        return meter

    def tensors(self) -> list[np.ndarray]:
        """The tensors of a step."""
        numbers, count = np.empty(MOST_NUMBERS, np.int64), ctypes.c_size_t()
        self._native.call("bench_case_tensors", self._case, numbers.ctypes.data, numbers.size, count)
        tensors, rest = [], numbers[: count.value]
        while rest.size:
            end = 1 + int(rest[0])
            tensors.append(rest[1:end].copy())
            rest = rest[end:]
        return tensors

    def close(self) -> None:
        """Frees what the library holds."""
        self._native.free("bench_case", self._case)

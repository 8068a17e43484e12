"""The native extension module: operators called directly, and the reference kernel's answer; and the limit of a case, a
loop that reads and writes as many bytes, in the same ratio, and does nothing else.

It writes with non-temporal stores where the case is out of cache. The library has it in three orders; the fastest
counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from math import ceil
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from cases import Case, Traffic
from figures import Contender, Measured
from tensors import ROTATION, Arena, Tensors

LINE = 64  # bytes of a cache line

# What is written over an answer before anybody gives one.
REMAINS = 0x5A


class Moved(NamedTuple):
    """Bytes that one iteration of a phase has read and written, and the sum modulo 65536 of what it has read."""

    read: int
    written: int
    sum: int


class WrongAnswer(Exception):
    """A contender's answer is not the reference's, or a loop has not moved what it should."""


def library_path() -> Path:
    """The built library: `KVCACHE_BENCH_LIB` if that is set, else the release build of this repository."""
    named = os.environ.get("KVCACHE_BENCH_LIB")
    path = Path(named) if named else Path(__file__).resolve().parents[2] / "target/release/libkvcache_bench.so"
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}: run `cargo build --release -p kvcache-bench`")
    return path


def load() -> ModuleType:
    """The module in that library, under whose name it does not lie on Python's path."""
    loader = ExtensionFileLoader("kvcache_bench", str(library_path()))
    module = module_from_spec(spec_from_loader("kvcache_bench", loader))
    loader.exec_module(module)
    return module


class Native:
    """The module and its teams of threads."""

    def __init__(self, *threads: int) -> None:
        self.module = load()
        self.teams = {count: self.module.Team(count) for count in threads}

    def limit(
        self, threads: int, pages: int, stream: bool, source: np.ndarray, target: np.ndarray, iterations: int
    ) -> tuple[Measured, Moved]:
        """Reads all lines of `source` and writes all of `target`, of so many pages in turn."""
        sides = ((side.ctypes.data, side.nbytes // LINE) for side in (source, target))
        sample, moved = self.module.limit(self.teams[threads], pages, stream, *sides, iterations)
        return Measured(*sample), Moved(*moved)


class DirectCall:
    """A case on one layer of its cache, called without ONNX Runtime."""

    def __init__(self, native: Native, tensors: Tensors, layer_idx: int) -> None:
        self.native, self._tensors = native, tensors  # whose memory the call works on
        names = [*tensors.inputs, *tensors.outputs]
        attributes = tensors.attributes | {"layer_idx": layer_idx}
        kind = native.module.CacheCall if tensors.op_type == "KeyValueCache" else native.module.AttentionCall
        self._call = kind(attributes, {name: tensors.described(name) for name in names})
        self._expected: int | None = None

    def measure(self, threads: int, *arguments: object) -> Measured:
        """Runs the operator; of `KeyValueCache`, the phase that is named first. The last argument is how often."""
        return Measured(*self._call.measure(self.native.teams[threads], *arguments))

    def expect(self) -> None:
        """Computes the right answer."""
        self._call.run_reference()
        self._expected = self._call.answer()

    def check(self, name: str, run: Callable[[], object]) -> None:
        """Raises `WrongAnswer` unless `run()` writes the right answer, bit for bit."""
        self._call.scramble(REMAINS)
        run()
        if self._call.answer() != self._expected:
            raise WrongAnswer(f"{self._tensors.case.name}: {name}: the answer is not the reference kernel's")


def sum_of(array: np.ndarray) -> int:
    """The sum of all bytes as 16-bit numbers, modulo 65536."""
    return int(array.reshape(-1).view(np.uint16).sum(dtype=np.uint16))


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

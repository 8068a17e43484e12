"""The native extension module: the limit, operators called directly, the reference kernel's answer."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from tensors import Tensors

LINE = 64  # bytes of a cache line

# What is written over an answer before anybody gives one.
REMAINS = (0x5A, 0xA5)


class Moved(NamedTuple):
    """Bytes that one iteration of a phase has read and written, and the sum modulo 65536 of what it has read."""

    read: int
    written: int
    sum: int


class Measured(NamedTuple):
    """Nanoseconds of one iteration, and the part of the time in which the threads held a processor."""

    ns: float
    share: float


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
        self._call.scramble(REMAINS[0])
        run()
        if self._call.answer() != self._expected:
            raise WrongAnswer(f"{self._tensors.case.name}: {name}: the answer is not the reference kernel's")


def sum_of(array: np.ndarray) -> int:
    """The sum of all bytes as 16-bit numbers, modulo 65536."""
    return int(array.reshape(-1).view(np.uint16).sum(dtype=np.uint16))

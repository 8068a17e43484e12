"""The native library: the limit, the roofline, the kernel called directly, and the reference kernel's answer."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from kvcache import ELEMENT_TYPES
from tensors import CaseTensors

INPUTS = (
    "current_key",
    "current_value",
    "seqstarts",
    "kvstarts",
    "cachestarts",
    "start_pos",
    "max_seqlen",
    "max_kvlen",
    "cache",
    "scale",
)
T = TypeVar("T")

PHASES = {"store": 0, "load": 1, "op": 2}
TEXT = 1024  # bytes of a buffer for a text
LINE = 64  # bytes of a cache line

# What is written over an answer before anybody gives one.
REMAINS = (0x5A, 0xA5)


class Sample(ctypes.Structure):
    """`Sample` of the library."""

    _fields_ = [("wall_ns", ctypes.c_uint64), ("share", ctypes.c_double)]


class Tensor(ctypes.Structure):
    """`Tensor` of the library."""

    _fields_ = [
        ("element", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 5),
        ("data", ctypes.c_void_p),
    ]


class Description(ctypes.Structure):
    """`Description` of the library."""

    _fields_ = [("attributes", ctypes.c_int64 * 8), ("tensors", Tensor * 12)]


class MovedBytes(ctypes.Structure):
    """`Moved` of the library."""

    _fields_ = [("read", ctypes.c_uint64), ("written", ctypes.c_uint64), ("sum", ctypes.c_uint64)]


@dataclass(frozen=True)
class Moved:
    """Bytes that one iteration of a phase has read and written, and the sum modulo 65536 of what it has read."""

    read: int
    written: int
    sum: int


@dataclass(frozen=True)
class Measured:
    """Nanoseconds of one iteration, and the part of the time in which the threads held a processor."""

    ns: float
    share: float


class WrongAnswer(Exception):
    """A contender's answer is not the reference's."""


def library_path() -> Path:
    """The built library: `KVCACHE_BENCH_LIB` if that is set, else the release build of this repository."""
    named = os.environ.get("KVCACHE_BENCH_LIB")
    path = Path(named) if named else Path(__file__).resolve().parents[2] / "target/release/libkvcache_bench.so"
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}: run `cargo build --release -p kvcache-bench`")
    return path


def load() -> ctypes.CDLL:
    """The library, with its functions declared."""
    library = ctypes.CDLL(str(library_path()))
    pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    signatures = {
        "bench_team_new": (pointer, size),
        "bench_team_free": (None, pointer),
        "bench_limit": (
            ctypes.c_bool,
            *(pointer, size, ctypes.c_bool, pointer, size, pointer, size, size),
            *(ctypes.POINTER(Sample), ctypes.POINTER(MovedBytes), text),
        ),
        "bench_case_new": (pointer, ctypes.POINTER(Description), text),
        "bench_case_free": (None, pointer),
        "bench_case_measure": (ctypes.c_bool, pointer, pointer, ctypes.c_int32, size, ctypes.POINTER(Sample), text),
        "bench_case_traffic": (
            ctypes.c_bool,
            *(pointer, pointer, ctypes.c_int32, size, ctypes.c_bool, size),
            *(ctypes.POINTER(Sample), ctypes.POINTER(MovedBytes), text),
        ),
        "bench_case_written": (pointer, pointer, text),
        "bench_case_expect": (pointer, pointer, text),
        "bench_answer_free": (None, pointer),
        "bench_case_scramble": (ctypes.c_bool, pointer, ctypes.c_uint8, text),
        "bench_case_compare": (ctypes.c_bool, pointer, pointer, text),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Native:
    """The library and its teams of threads."""

    def __init__(self, threads: tuple[int, ...]) -> None:
        self.library = load()
        self.teams = {count: self.library.bench_team_new(count) for count in threads}
        if None in self.teams.values():
            raise OSError(f"threads could not be started: {threads}")

    def limit(
        self, threads: int, pages: int, stream: bool, source: np.ndarray, target: np.ndarray, iterations: int
    ) -> tuple[Measured, Moved]:
        """Reads all lines of `source` and writes all of `target`, of so many pages in turn."""
        sample, moved, text = Sample(), MovedBytes(), ctypes.create_string_buffer(TEXT)
        sides = source.ctypes.data, source.nbytes // LINE, target.ctypes.data, target.nbytes // LINE
        if not self.library.bench_limit(self.teams[threads], pages, stream, *sides, iterations, sample, moved, text):
            raise ValueError(text.value.decode())
        return measured(sample, iterations), Moved(moved.read, moved.written, moved.sum)


class NativeCase:
    """A case on one layer of its cache, for direct calls and for the verdict on anybody's answer."""

    def __init__(self, native: Native, tensors: CaseTensors, layer_idx: int) -> None:
        self._native, self._library = native, native.library
        self._tensors = tensors  # keeps the memory alive
        self._text = ctypes.create_string_buffer(TEXT)
        description = Description()
        description.attributes[:] = list((tensors.attributes | {"layer_idx": layer_idx}).values())
        tensors = tensors.inputs | {"key": tensors.key, "value": tensors.value}
        for i, name in enumerate((*INPUTS, "key", "value")):
            if name in tensors:
                description.tensors[i] = describe(tensors, name, tensors[name])
        self._case = self._checked(self._library.bench_case_new(description, self._text))
        self._answer = None

    def _checked(self, result: T) -> T:
        """A result of the library, which is null or false where it refuses."""
        if not result:
            raise WrongAnswer(f"{self._tensors.case.name}: {self._text.value.decode()}")
        return result

    def measure(self, phase: str, threads: int, iterations: int) -> Measured:
        """Runs a phase of the fast kernel."""
        sample = Sample()
        team = self._native.teams[threads]
        arguments = self._case, team, PHASES[phase], iterations, sample, self._text
        self._checked(self._library.bench_case_measure(*arguments))
        return measured(sample, iterations)

    def roofline(self, phase: str, order: int, stream: bool, threads: int, iterations: int) -> tuple[Measured, Moved]:
        """Moves a phase's bytes without its arithmetic, in an order of the library; `stream` is non-temporal stores."""
        sample, moved = Sample(), MovedBytes()
        team = self._native.teams[threads]
        arguments = self._case, team, PHASES[phase], order, stream, iterations, sample, moved, self._text
        self._checked(self._library.bench_case_traffic(*arguments))
        return measured(sample, iterations), Moved(moved.read, moved.written, moved.sum)

    def expect(self) -> None:
        """Computes the right answer."""
        self._answer = self._checked(self._library.bench_case_expect(self._case, self._text))

    def check(self, name: str, run: Callable[[], object]) -> None:
        """Raises `WrongAnswer` unless `run()` writes the right answer, bit for bit."""
        self._checked(self._library.bench_case_scramble(self._case, REMAINS[0], self._text))
        run()
        if not self._library.bench_case_compare(self._case, self._answer, self._text):
            raise WrongAnswer(f"{self._tensors.case.name}: {name}: {self._text.value.decode()}")

    def check_overwritten(self, run: Callable[[], object]) -> None:
        """Raises `WrongAnswer` unless what `run()` writes is the same whatever was there before."""
        written = None
        try:
            for remains in REMAINS:
                self._checked(self._library.bench_case_scramble(self._case, remains, self._text))
                run()
                if written is None:
                    written = self._checked(self._library.bench_case_written(self._case, self._text))
            if not self._library.bench_case_compare(self._case, written, self._text):
                raise WrongAnswer(f"{self._tensors.case.name}: not all is overwritten: {self._text.value.decode()}")
        finally:
            if written:
                self._library.bench_answer_free(written)

    def close(self) -> None:
        """Frees what the library holds."""
        if self._answer:
            self._library.bench_answer_free(self._answer)
        self._library.bench_case_free(self._case)


def measured(sample: Sample, iterations: int) -> Measured:
    """A sample of so many iterations."""
    return Measured(sample.wall_ns / iterations, sample.share)


def sum_of(array: np.ndarray) -> int:
    """The sum of all bytes as 16-bit numbers, modulo 65536."""
    return int(array.reshape(-1).view(np.uint16).sum(dtype=np.uint16))


def describe(tensors: CaseTensors, name: str, array: np.ndarray) -> Tensor:
    """An array as the library sees it; packed int4 by its shape in elements."""
    packed = name == "cache" and array.dtype == np.uint8
    element = tensors.case.format.t2 if packed else ELEMENT_TYPES[array.dtype]
    shape = tensors.cache_shape if packed else array.shape
    return Tensor(element, len(shape), (ctypes.c_int64 * 5)(*shape), array.ctypes.data)

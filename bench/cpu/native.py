"""The native library: the limit, the roofline, the kernel called directly, and the reference kernel's answer."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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
PHASES = {"store": 0, "load": 1, "op": 2}
LINE = 64  # bytes of a cache line

# What is written over an answer before anybody gives one.
REMAINS = (0x5A, 0xA5)


class Sample(ctypes.Structure):
    """`Sample` of the library."""

    _fields_ = [("wall_ns", ctypes.c_uint64), ("share", ctypes.c_double)]


class TensorDescription(ctypes.Structure):
    """`TensorDescription` of the library."""

    _fields_ = [
        ("element", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 5),
        ("data", ctypes.c_void_p),
    ]


class CallDescription(ctypes.Structure):
    """`CallDescription` of the library."""

    _fields_ = [("attributes", ctypes.c_int64 * 8), ("tensors", TensorDescription * 12)]


class ErrorText(ctypes.Structure):
    """`ErrorText` of the library."""

    _fields_ = [("data", ctypes.c_void_p), ("capacity", ctypes.c_size_t)]


class MovedBytes(ctypes.Structure):
    """`Moved` of the library."""

    _fields_ = [("read", ctypes.c_uint64), ("written", ctypes.c_uint64), ("sum", ctypes.c_uint64)]


class Meter(ctypes.Structure):
    """`Meter` of the library."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("wall_ns", "cpu_ns", "allocations", "operations")]


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


class Refused(Exception):
    """The library has refused what it was asked for."""


class WrongAnswer(Exception):
    """A contender's answer is not the reference's, or a loop has not moved what it should."""


def library_path() -> Path:
    """The built library: `KVCACHE_BENCH_LIB` if that is set, else the release build of this repository."""
    named = os.environ.get("KVCACHE_BENCH_LIB")
    path = Path(named) if named else Path(__file__).resolve().parents[2] / "target/release/libkvcache_bench.so"
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}: run `cargo build --release -p kvcache-bench`")
    return path


def load() -> ctypes.CDLL:
    """The library, with its functions declared; the last argument of those with a status is the buffer for a reason."""
    library = ctypes.CDLL(str(library_path()))
    pointer, size, number, flag = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_bool
    to_pointer, to_sample, to_moved = map(ctypes.POINTER, (pointer, Sample, MovedBytes))
    signatures = {
        "kvcache_call_new": (ctypes.POINTER(CallDescription), to_pointer),
        "bench_team_new": (size, to_pointer),
        "bench_limit": (pointer, size, flag, pointer, size, pointer, size, size, to_sample, to_moved),
        "bench_call": (pointer, pointer, number, size, to_sample),
        "bench_roofline": (pointer, pointer, number, size, flag, size, to_sample, to_moved),
        "bench_answer_reference": (pointer, to_pointer),
        "bench_answer_written": (pointer, to_pointer),
        "bench_scramble": (pointer, ctypes.c_uint8),
        "bench_compare": (pointer, pointer),
        "bench_attention_new": (pointer, to_pointer),
        "bench_attention_measure": (pointer, pointer, size, to_sample),
        "bench_case_new": (ctypes.c_char_p, pointer, size, to_pointer),
        "bench_case_check": (pointer,),
        "bench_case_measure": (pointer, ctypes.c_char_p, ctypes.POINTER(Meter)),
        "bench_case_tensors": (pointer, pointer, size, ctypes.POINTER(size)),
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = number, (*arguments, ctypes.POINTER(ErrorText))
    kinds = "kvcache_call", "bench_team", "bench_answer", "bench_attention", "bench_case"
    for name in (f"{kind}_free" for kind in kinds):
        function = getattr(library, name)
        function.restype, function.argtypes = None, (pointer,)
    return library


class Native:
    """The library and its teams of threads."""

    def __init__(self, threads: tuple[int, ...]) -> None:
        self._library = load()
        self._buffer = ctypes.create_string_buffer(1024)
        self.teams = {count: self.made("bench_team_new", count) for count in threads}

    def call(self, name: str, *arguments: object) -> None:
        """Calls a function; raises `Refused` with its reason if it does not do what it says."""
        error = ErrorText(ctypes.addressof(self._buffer), len(self._buffer))
        if getattr(self._library, name)(*arguments, error):
            raise Refused(self._buffer.value.decode())

    def made(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """What a function makes."""
        made = ctypes.c_void_p()
        self.call(name, *arguments, made)
        return made

    def free(self, kind: str, made: ctypes.c_void_p) -> None:
        """Ends what a function has made."""
        getattr(self._library, f"{kind}_free")(made)

    def limit(
        self, threads: int, pages: int, stream: bool, source: np.ndarray, target: np.ndarray, iterations: int
    ) -> tuple[Measured, Moved]:
        """Reads all lines of `source` and writes all of `target`, of so many pages in turn."""
        sample, moved = Sample(), MovedBytes()
        sides = source.ctypes.data, source.nbytes // LINE, target.ctypes.data, target.nbytes // LINE
        self.call("bench_limit", self.teams[threads], pages, stream, *sides, iterations, sample, moved)
        return measured(sample, iterations), Moved(moved.read, moved.written, moved.sum)


class NativeCall:
    """A case on one layer of its cache: calls it directly, and compares any answer with the reference kernel's."""

    def __init__(self, native: Native, tensors: CaseTensors, layer_idx: int) -> None:
        self._native, self._tensors = native, tensors  # which keep library and memory alive
        description = CallDescription()
        description.attributes[:] = list((tensors.attributes | {"layer_idx": layer_idx}).values())
        arrays = tensors.inputs | {"key": tensors.key, "value": tensors.value}
        for i, name in enumerate((*INPUTS, "key", "value")):
            if name in arrays:
                description.tensors[i] = describe(tensors, name, arrays[name])
        self._call = native.made("kvcache_call_new", description)
        self._answer: ctypes.c_void_p | None = None

    def measure(self, phase: str, threads: int, iterations: int) -> Measured:
        """Runs a phase of the fast kernel."""
        sample = Sample()
        self._native.call("bench_call", self._call, self._native.teams[threads], PHASES[phase], iterations, sample)
        return measured(sample, iterations)

    def roofline(self, phase: str, order: int, stream: bool, threads: int, iterations: int) -> tuple[Measured, Moved]:
        """A phase's reads and writes without its arithmetic, in an order of the library."""
        sample, moved = Sample(), MovedBytes()
        how = PHASES[phase], order, stream, iterations
        self._native.call("bench_roofline", self._call, self._native.teams[threads], *how, sample, moved)
        return measured(sample, iterations), Moved(moved.read, moved.written, moved.sum)

    def expect(self) -> None:
        """Computes the right answer."""
        self._answer = self._native.made("bench_answer_reference", self._call)

    def check(self, name: str, run: Callable[[], object]) -> None:
        """Raises `WrongAnswer` unless `run()` writes the right answer, bit for bit."""
        self._native.call("bench_scramble", self._call, REMAINS[0])
        run()
        self._compare(self._answer, name)

    def check_overwritten(self, name: str, run: Callable[[], object]) -> None:
        """Raises `WrongAnswer` unless what `run()` writes is the same whatever was there before."""
        self._native.call("bench_scramble", self._call, REMAINS[0])
        run()
        written = self._native.made("bench_answer_written", self._call)
        try:
            self._native.call("bench_scramble", self._call, REMAINS[1])
            run()
            self._compare(written, f"{name}: not all is overwritten")
        finally:
            self._native.free("bench_answer", written)

    def _compare(self, answer: ctypes.c_void_p, name: str) -> None:
        try:
            self._native.call("bench_compare", self._call, answer)
        except Refused as difference:
            raise WrongAnswer(f"{self._tensors.case.name}: {name}: {difference}") from None

    def close(self) -> None:
        """Frees what the library holds."""
        if self._answer:
            self._native.free("bench_answer", self._answer)
        self._native.free("kvcache_call", self._call)


def measured(sample: Sample, iterations: int) -> Measured:
    """A sample of so many iterations."""
    return Measured(sample.wall_ns / iterations, sample.share)


def sum_of(array: np.ndarray) -> int:
    """The sum of all bytes as 16-bit numbers, modulo 65536."""
    return int(array.reshape(-1).view(np.uint16).sum(dtype=np.uint16))


def describe(tensors: CaseTensors, name: str, array: np.ndarray) -> TensorDescription:
    """An array as the library sees it; packed int4 by its shape in elements."""
    packed = name == "cache" and array.dtype == np.uint8
    element = tensors.case.format.t2 if packed else ELEMENT_TYPES[array.dtype]
    shape = tensors.cache_shape if packed else array.shape
    return TensorDescription(element, len(shape), (ctypes.c_int64 * 5)(*shape), array.ctypes.data)

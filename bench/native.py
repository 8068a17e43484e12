"""The native extension module: operators called without ONNX Runtime, and rooflines of bytes and of arithmetic."""

from __future__ import annotations

import os
from functools import cache, partial
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from math import ceil
from pathlib import Path
from types import ModuleType

import numpy as np

from cases import INT8, Case
from harness import ROOT, Contender, WrongAnswer
from tensors import ROTATION, Tensors, allocate, random_tensor, tensors_of

LINE = 64  # bytes of a cache line
PRODUCTS = 3 << 24  # multiply-adds of a thread in a run of nothing else, whole steps of 12 registers


def library_path() -> Path:
    """The built library: `KVCACHE_BENCH_LIB` if that is set, else the release build of this repository."""
    path = Path(os.environ.get("KVCACHE_BENCH_LIB") or ROOT / "target/release/libkvcache_bench.so")
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}: run `cargo build --release -p kvcache-bench`")
    return path


@cache
def module() -> ModuleType:
    """The module in that library, under whose name it does not lie on Python's path."""
    loader = ExtensionFileLoader("kvcache_bench", str(library_path()))
    loaded = module_from_spec(spec_from_loader("kvcache_bench", loader))
    loader.exec_module(loaded)
    return loaded


class Call:
    """A case on one layer of its cache, called without ONNX Runtime; it keeps the tensors, whose addresses it has."""

    def __init__(self, tensors: Tensors, layer_idx: int, threads: int, by_reference: bool = False) -> None:
        described = {name: tensors.described(name) for name in [*tensors.inputs, *tensors.outputs]}
        attributes = tensors.attributes | {"layer_idx": layer_idx}
        self._tensors, self._call = tensors, module().Call(attributes, described, threads, by_reference)

    def __call__(self, times: int = 1) -> None:
        """Makes the call that many times."""
        self._call.run(times)


def direct(tensors: Tensors, threads: int) -> Contender:
    """The operator called without ONNX Runtime, whose answer is checked."""
    case = tensors.case
    calls = [Call(tensors, layer_idx, threads) for layer_idx in tensors.layers]
    tensors.check(f"called directly on {threads} threads", calls[0])
    times = 1 if case.cold else 16  # of which one call from Python takes little
    runs = [partial(call, times) for call in calls]
    name = f"{case.name}, called directly on {threads} threads"
    return Contender(name, runs, threads, case.cold, is_busy=case.cold, iterations=times)


def expecting(case: Case) -> Tensors:
    """A case's tensors, which know the right answer on the first layer."""
    tensors = tensors_of(case)
    tensors.expect(Call(tensors, tensors.layers[0], 1, by_reference=True))
    return tensors


class Rooflines:
    """Loops that read and write as many bytes as a case and do nothing else, in memory that all of a group share.

    Each reads what no cache of the processor holds, and, of a loop that stands for a case that writes a lot, writes
    with non-temporal stores.
    """

    def __init__(self) -> None:
        self._source = self._target = np.empty(0, np.uint8)

    def of(self, case: Case, threads: int, non_temporal: bool = False) -> list[Contender]:
        """The loop of a case's traffic, with several numbers of streams, of which the fastest counts.

        Raises `WrongAnswer` unless each moves what it should.
        """
        step = LINE * 8 * threads
        read, written = (ceil(count / step) * step for count in case.traffic)
        parts = 1 + ceil(ROTATION / read)
        if self._source.size < parts * read:
            self._source = random_tensor(INT8, (parts * read,)).view(np.uint8)
        if self._target.size < written:
            self._target = allocate(written)
        sources = [self._source[i * read :][:read] for i in range(parts)]
        target, sum_of_first = self._target[:written], int(sources[0].view(np.uint64).sum(dtype=np.uint64))
        contenders = []
        for streams in (1, 4, 8):
            loop = module().Roofline(threads, streams, non_temporal)

            def move(source: np.ndarray, loop: object = loop) -> int:
                return loop.run(source.ctypes.data, read // LINE, target.ctypes.data, written // LINE)

            target[:] = 0
            if move(sources[0]) != sum_of_first or not target.view(np.uint64).all():
                raise WrongAnswer(f"a roofline of {streams} streams on {threads} threads does not move what it should")
            runs = [partial(move, source) for source in sources]
            name = f"roofline of {case.name}, {streams} streams on {threads} threads"
            contenders.append(Contender(name, runs, threads, is_busy=True))
        return contenders


def multiply_adds(threads: int) -> Contender:
    """`PRODUCTS` fused multiply-adds of float32 on each thread, in the widest registers: the roofline of arithmetic.

    Raises `WrongAnswer` unless the sums say so.
    """
    loop = module().MultiplyAdds(threads)
    if (counted := loop.run(PRODUCTS)) != threads * PRODUCTS:
        raise WrongAnswer(f"{PRODUCTS} multiply-adds on each of {threads} threads: {counted} are counted")
    return Contender("multiply-adds", [partial(loop.run, PRODUCTS)], threads, cold=False, is_busy=True)

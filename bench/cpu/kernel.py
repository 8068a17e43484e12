"""The kernel called without ONNX Runtime: each phase, and the whole operator with its checks."""

from __future__ import annotations

from itertools import product

from measure import Contender
from native import PHASES, Measured, Native, NativeCall
from tensors import CaseTensors

KERNEL = "kernel"


def kernels(native: Native, tensors: CaseTensors, calls: list[NativeCall]) -> list[Contender]:
    """The phases, on one layer after another."""

    def contender(phase: str, threads: int) -> Contender:
        def sample(turn: int, iterations: int) -> Measured:
            return calls[turn % len(calls)].measure(phase, threads, iterations)

        answer = (lambda: calls[0].measure("op", threads, 1)) if phase == "op" else None
        return Contender(KERNEL, phase, threads, sample, answer, cold=tensors.case.cold)

    return [contender(phase, threads) for phase, threads in product(PHASES, native.teams)]

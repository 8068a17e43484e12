"""The operator called directly, once its answer has been checked, and the loops that only read."""

from __future__ import annotations

from functools import partial

from attention_tensors import AttentionTensors
from cases import Traffic
from loops import movers
from measure import Contender
from native import DirectCall, Measured, Native
from tensors import Arena


class Direct:
    """The operator on a case's layers, called without ONNX Runtime; right on each of these numbers of threads."""

    def __init__(self, native: Native, tensors: AttentionTensors, *threads: int) -> None:
        self.tensors = tensors
        self._calls = [DirectCall(native, tensors, layer_idx) for layer_idx in tensors.layers]
        self._calls[0].measure(threads[0], 1)
        # By what the cache holds after the call: the current tokens have been stored.
        tensors.expect()
        for count in threads:
            tensors.check(f"called directly on {count} threads", partial(self._calls[0].measure, count, 1))

    def contender(self, threads: int, label: str = "") -> Contender:
        """The calls, on one layer after another."""

        def sample(turn: int, iterations: int) -> Measured:
            return self._calls[turn % len(self._calls)].measure(threads, iterations)

        name = f"{label or self.tensors.case.format.name}, direct"
        return Contender(name, threads, sample, cold=self.tensors.case.cold)


def reads(native: Native, label: str, traffic: Traffic, threads: int, arena: Arena) -> list[Contender]:
    """Loops that read these bytes once, in several orders; each reads what no cache of the processor holds."""
    return movers(native, f"{label}, read", traffic, threads, True, False, arena)

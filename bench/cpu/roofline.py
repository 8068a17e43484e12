"""The roofline for the case's access pattern: the operator's reads and writes without its arithmetic.

The library reads every line that the operator must read, in token order, and writes as many as the operator must write,
to the same places: with non-temporal stores in a cold case, plainly in a warm one.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from cases import Traffic
from measure import Contender
from native import Measured, Moved, Native, NativeCall, WrongAnswer, sum_of
from rows import rows_of
from tensors import CaseTensors

# The orders in which the library moves rows. Which is fastest depends on layout and machine: that one is the roofline.
ORDERS = {"roofline, row by row": 0, "roofline, in blocks": 1, "roofline, by pages": 2}


def rooflines(native: Native, tensors: CaseTensors, calls: list[NativeCall]) -> list[Contender]:
    """The loops of phases that move enough, on one layer after another; raises `WrongAnswer` unless each moves all.

    They move whole lines, so there are none for tensors that begin past a line.
    """
    stream = tensors.case.cold
    if tensors.case.past_line:
        return []

    def contender(name: str, phase: str, threads: int) -> Contender:
        def sample(turn: int, iterations: int) -> Measured:
            return calls[turn % len(calls)].roofline(phase, ORDERS[name], stream, threads, iterations)[0]

        return Contender(name, phase, threads, sample, cold=tensors.case.cold)

    check(native, tensors, calls[0])
    return [contender(*key) for key in product(ORDERS, tensors.case.limited, native.teams)]


def check(native: Native, tensors: CaseTensors, first: NativeCall) -> None:
    """Raises `WrongAnswer` unless the loops move exactly what the case moves.

    They have read what numpy reads by its own row numbers, written as much as the case must write, and overwritten all
    that the operator must write: two runs over different remains leave the same bytes.
    """
    ways = list(product(ORDERS.values(), [tensors.case.cold], native.teams))
    # The loads come first, of what the cache still holds; stores then change it.
    for phase, expected in (("load", loaded(tensors)), ("store", stored(tensors))):
        for way in ways:
            got = first.roofline(phase, *way, 1)[1]
            if got != expected:
                raise WrongAnswer(f"{tensors.case.name}: roofline of {phase}, {way}: expected {expected}, got {got}")
    for way in ways:
        first.check_overwritten(f"roofline, {way}", lambda way=way: first.roofline("op", *way, 1))


def loaded(tensors: CaseTensors) -> Moved:
    """What loading moves."""
    rows = rows_of(tensors, tensors.layers[0])
    held = [rows.cache] if rows.scale is None else [rows.cache, rows.scale]
    parts = [np.take(array, numbers, axis=0) for array, numbers in product(held, rows.read)]
    return moved(parts, tensors.case.load)


def stored(tensors: CaseTensors) -> Moved:
    """What storing moves."""
    return moved([tensors.inputs["current_key"], tensors.inputs["current_value"]], tensors.case.store)


def moved(parts: list[np.ndarray], traffic: Traffic) -> Moved:
    """What has read these arrays and written what the case must write."""
    read = sum(part.nbytes for part in parts)
    if read != traffic.read:
        raise WrongAnswer(f"numpy reads {read} bytes where the case says {traffic.read}")
    return Moved(read, traffic.written, sum(map(sum_of, parts)) % (1 << 16))

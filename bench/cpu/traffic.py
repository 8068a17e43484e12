"""The operator's traffic without its arithmetic: what any operator can reach in a case.

The library reads every line that the operator must read, in token order, and writes as many as the operator must write,
to the same places: past the caches in a cold case, plainly in a warm one.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from measure import Contender
from memory import Operands
from native import Measured, Moved, Native, NativeCase, WrongAnswer
from rows import rows_of

# The orders in which the library moves rows. Which is faster depends on layout and machine; the roofline is the faster.
SCHEDULES = {"same traffic, row by row": 0, "same traffic, in blocks": 1}
PHASES = ("store", "load")


def traffics(native: Native, operands: Operands, cases: list[NativeCase]) -> list[Contender]:
    """The traffic of each phase, on one layer after another."""
    stream = operands.case.cold

    def contender(name: str, phase: str, threads: int) -> Contender:
        def sample(turn: int, iterations: int) -> Measured:
            return cases[turn % len(cases)].traffic(phase, SCHEDULES[name], stream, threads, iterations)[0]

        return Contender(name, phase, threads, sample, cold=operands.case.cold)

    return [contender(*key) for key in product(SCHEDULES, PHASES, native.teams)]


def check_traffic(native: Native, operands: Operands, first: NativeCase) -> None:
    """Raises `WrongAnswer` unless the traffic is exactly the case's.

    It has read what numpy reads by its own row numbers, as much as the case must read and write, and has overwritten
    all that the operator must write: two runs over different remains leave the same bytes.
    """
    expected = {"load": loaded(operands), "store": stored(operands)}
    ways = list(product(SCHEDULES.values(), [operands.case.cold], native.teams))
    for (phase, wanted), way in product(expected.items(), ways):
        # The loads come first, of what the cache still holds; stores then change it.
        found = first.traffic(phase, *way, 1)[1]
        if found != wanted:
            raise WrongAnswer(f"{operands.case.name}: traffic of {phase}, {way}: {found}, not {wanted}")
    for way in ways:
        first.check_overwritten(lambda way=way: first.traffic("op", *way, 1))


def loaded(operands: Operands) -> Moved:
    """What loading moves."""
    rows = rows_of(operands, operands.layers[0])
    held = [rows.cache] if rows.scale is None else [rows.cache, rows.scale]
    read, total = 0, 0
    for array, numbers in product(held, rows.read):
        part = np.take(array, numbers, axis=0)
        read, total = read + part.nbytes, total + sum_of(part)
    return Moved(read, operands.case.load_bytes - read, total % (1 << 16))


def stored(operands: Operands) -> Moved:
    """What storing moves."""
    current = [operands.inputs["current_key"], operands.inputs["current_value"]]
    read = sum(array.nbytes for array in current)
    return Moved(read, operands.case.store_bytes - read, sum(map(sum_of, current)) % (1 << 16))


def sum_of(array: np.ndarray) -> int:
    """The sum of all bytes as 16-bit numbers, modulo 65536."""
    return int(array.reshape(-1).view(np.uint16).sum(dtype=np.uint16))

"""What is measured of the manager, and what each figure should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from figures import Row, microseconds, quotient
from measure import Contender
from native import Measured, Native
from python_steps import PAGE_SIZE, PythonSteps

BATCH, KVLEN, LONG_KVLEN = 256, 2048, 32768
IDLE = 10000  # sequences that are in no step
ROOM = 96  # rows behind the prompt of each sequence
NS_PER_SEQUENCE = 60
WIDTHS = {16: "float16", 8: "int8", 4: "int4"}


class Case:
    """A case of the library by its name and its numbers, whose answers are right."""

    def __init__(self, native: Native, name: str, *numbers: int) -> None:
        self._case = native.module.ManagerCase(name, *numbers)

    def contender(self, name: str) -> Contender:
        """One of the case's contenders: what it takes of the processor's time."""

        def sample(_turn: int, _iterations: int) -> Measured:
            wall_ns, cpu_ns, _, operations = self._case.measure(name)
            return Measured(cpu_ns / operations, cpu_ns / wall_ns)

        return Contender(name, 1, sample)

    def allocations(self, name: str) -> float:
        """Heap allocations of an operation, when what grows once has grown."""
        self._case.measure(name)
        _, _, allocations, operations = self._case.measure(name)
        return allocations / operations


def pages_of(kvlen: int) -> int:
    """The pages of a sequence that decodes from `kvlen` on."""
    return (kvlen + ROOM) // PAGE_SIZE + 1


def decode_case(native: Native, batch: int, kvlen: int, *, fixed: bool = True, max_t: int = 0, idle: int = 0) -> Case:
    """Sequences that decode, in a cache with room for as many pages again."""
    pages = pages_of(kvlen)
    slots = max_t or (2 * batch * pages + idle) * PAGE_SIZE
    return Case(native, "decode", batch, kvlen, slots, pages if fixed else 0, idle)


def decode(native: Native) -> list[Row]:
    """Steps of 256 sequences."""
    short, long = (decode_case(native, BATCH, kvlen) for kvlen in (KVLEN, LONG_KVLEN))
    growing = decode_case(native, BATCH, KVLEN, fixed=False)
    crowded = decode_case(native, BATCH, KVLEN, idle=IDLE)
    free, long_free, growing_free, crowded_free = (
        case.contender("same batch, tokens unknown") for case in (short, long, growing, crowded)
    )
    names = "same batch", "changed batch, tokens unknown", "changed batch", "memcpy"
    evicted, changed, changed_evicted, copy = map(short.contender, names)
    python = PythonSteps(BATCH, KVLEN).contender()

    def of_budget(step: float, memcpy: float) -> float:
        return step / (3 * memcpy + NS_PER_SEQUENCE * BATCH)

    rows = [
        microseconds("step, same batch", free),
        microseconds("step, same batch, its pages evicted from the prefix index", evicted),
        Row("step, same batch, of memcpy of its tensors", [free, copy], quotient),
        Row("step, same batch, kvlen 32768 of 2048", [long_free, free], quotient, at_most=1.2),
        Row("step, same batch, beside 10000 other sequences of none", [crowded_free, free], quotient, at_most=1.2),
        Row("step, same batch, MaxP the widest row of MaxP fixed", [growing_free, free], quotient),
        microseconds("step, changed batch", changed),
        microseconds("step, changed batch, its pages evicted from the prefix index", changed_evicted),
        microseconds("memcpy of its tensors", copy),
        Row("step, changed batch, of 3 memcpy + 60 ns a sequence", [changed, copy], of_budget, at_most=1),
        microseconds("step from Python, same batch", python),
        Row("step from Python, same batch, of step, same batch, its pages evicted", [python, evicted], quotient),
    ]
    return rows


def max_t(native: Native) -> list[Row]:
    """Steps in caches of 10^4 and of 10^7 slots."""
    small, large = (decode_case(native, 8, 900, max_t=max_t) for max_t in (10**4, 10**7))
    rows = [
        Row(f"step, {name}, MaxT 10^7 of 10^4", [large.contender(name), small.contender(name)], quotient, at_most=1.2)
        for name in ("same batch", "changed batch")
    ]
    return rows


def allocations(native: Native) -> list[Row]:
    """Heap allocations of steps: counted, not timed."""
    case, rows = decode_case(native, BATCH, KVLEN), []
    for name in ("same batch", "changed batch"):
        counted = case.allocations(name)
        rows.append(Row(f"allocations a step, {name}", [case.contender(name)], lambda _, counted=counted: counted, 0))
    return rows


def pages(native: Native) -> list[Row]:
    """What is done to pages of sequences of 1000 pages and of 10000."""
    few, many, rows = Case(native, "pages", 1000), Case(native, "pages", 10000), []
    for name in ("page taken", "copy on write"):
        ours, ten_times = few.contender(name), many.contender(name)
        rows.append(Row(f"{name}, 1000 pages", [ours], lambda ns: ns, unit="ns"))
        rows.append(Row(f"{name}, ten times the pages, of the same time", [ten_times, ours], quotient, at_most=1.25))
    return rows


def cells(native: Native) -> list[Row]:
    """A step of unified cells and its mask."""
    case = Case(native, "cells", 32768, 8)
    loops, ours = case.contender("loops over sets"), case.contender("find_slot and mask")
    rows = [
        microseconds("find_slot and mask, 32768 cells, 8 sequences", ours),
        Row("loops over a set for each cell, of find_slot and mask", [loops, ours], quotient, at_least=4),
    ]
    return rows


# By case: contenders, of which the first one's time is divided by the second's, and the goal.
BY_LAYOUT = {
    "copies": [("bare loop", "copy_rows", dict(at_least=0.9))],
    "shift": [("rotate_keys", "store and load", dict(at_most=1.5))],
    "sessions": [("write and hash", "save", dict(at_least=0.7)), ("read and hash", "load", dict(at_least=0.7))],
}


def by_layout(native: Native, kind: str, layout: int, bits: int) -> list[Row]:
    """What is done to the rows of a cache."""
    case, rows = Case(native, kind, layout, bits), []
    for above, below, goal in BY_LAYOUT[kind]:
        contenders = [case.contender(above), case.contender(below)]
        rows.append(Row(f"{above} of {below}, layout {layout}, {WIDTHS[bits]}", contenders, quotient, **goal))
    return rows


def groups(native: Native) -> Iterator[tuple[str, Callable[[], list[Row]]]]:
    """All groups by name."""
    for make in (decode, max_t, allocations, pages, cells):
        yield make.__name__, partial(make, native)
    for kind in BY_LAYOUT:
        for layout in (0, 3) if kind == "sessions" else range(4):
            for bits, name in WIDTHS.items():
                yield f"{kind} layout {layout} {name}", partial(by_layout, native, kind, layout, bits)

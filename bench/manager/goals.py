"""What is measured of the manager, and what each figure should be."""

from __future__ import annotations

from collections.abc import Iterator

from binding_peer import ManagerPeer, check_same_batch
from case import Case
from figures import Group, Row
from measure import Contender
from native import Native
from scheduler_steps import SchedulerPeer, check_same_step

BATCH, KVLEN, LONG_KVLEN = 256, 2048, 32768
IDLE = 10000  # sequences that are in no step
PAGE_SIZE, ROOM = 16, 96  # rows behind the prompt of each sequence
NS_PER_SEQUENCE = 60
LAYOUTS = range(4)
WIDTHS = {16: "float16", 8: "int8", 4: "int4"}


def pages_of(kvlen: int) -> int:
    """The pages of a sequence that decodes from `kvlen` on."""
    return (kvlen + ROOM) // PAGE_SIZE + 1


def decode_case(native: Native, batch: int, kvlen: int, *, fixed: bool = True, max_t: int = 0, idle: int = 0) -> Case:
    """Sequences that decode, in a cache with room for as many pages again."""
    pages = pages_of(kvlen)
    slots = max_t or (2 * batch * pages + idle) * PAGE_SIZE
    return Case(native, "decode", batch, kvlen, slots, pages if fixed else 0, idle)


def decode(native: Native) -> Group:
    """Steps of 256 sequences."""
    short, long = (decode_case(native, BATCH, kvlen) for kvlen in (KVLEN, LONG_KVLEN))
    growing = decode_case(native, BATCH, KVLEN, fixed=False)
    crowded = decode_case(native, BATCH, KVLEN, idle=IDLE)
    free, long_free, growing_free, crowded_free = (
        case.contender("same batch, tokens unknown") for case in (short, long, growing, crowded)
    )
    names = "same batch", "changed batch, tokens unknown", "changed batch", "memcpy"
    evicted, changed, changed_evicted, copy = map(short.contender, names)
    scheduler_peer, manager_peer = SchedulerPeer(BATCH, KVLEN), ManagerPeer(BATCH, KVLEN)
    check_same_step(scheduler_peer.batch(), growing.tensors())
    check_same_batch(scheduler_peer.batch(), manager_peer.batch())
    scheduler, python = scheduler_peer.contender(), manager_peer.contender()

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
        microseconds("scheduler.py", scheduler),
        Row("scheduler.py of step, same batch", [scheduler, free], quotient, at_least=100),
        Row("scheduler.py of step, same batch, its pages evicted", [scheduler, evicted], quotient),
        Row("scheduler.py of step, changed batch", [scheduler, changed], quotient),
        microseconds("step from Python, same batch", python),
        Row("scheduler.py of step from Python, same batch", [scheduler, python], quotient, at_least=20),
    ]
    return Group("decode", rows, [short, long, growing, crowded])


def microseconds(name: str, contender: Contender) -> Row:
    """The time of a contender."""
    return Row(name, [contender], lambda ns: ns / 1e3, unit="us")


def max_t(native: Native) -> Group:
    """Steps in caches of 10^4 and of 10^7 slots."""
    small, large = (decode_case(native, 8, 900, max_t=max_t) for max_t in (10**4, 10**7))
    rows = [
        Row(f"step, {name}, MaxT 10^7 of 10^4", [large.contender(name), small.contender(name)], quotient, at_most=1.2)
        for name in ("same batch", "changed batch")
    ]
    return Group("max_t", rows, [small, large])


def quotient(above: float, below: float) -> float:
    """How many times as long the first one takes."""
    return above / below


def allocations(native: Native) -> Group:
    """Heap allocations of steps: counted, not timed."""
    case = decode_case(native, BATCH, KVLEN)
    rows = []
    for name in ("same batch", "changed batch"):
        case.meter(name)  # what grows once, has grown then
        meter = case.meter(name)
        counted = meter.allocations / meter.operations
        rows.append(Row(f"allocations a step, {name}", [case.contender(name)], lambda _, counted=counted: counted, 0))
    return Group("allocations", rows, [case])


def pages(native: Native) -> Group:
    """What is done to sequences of 1000 pages and of 10000."""
    few, many = (Case(native, "pages", pages) for pages in (1000, 10000))
    # By how many times more one may take where there are ten times as many pages, beside noise.
    growth = {"fork": 10, "free a fork": 10, "free the last owner": 10}
    growth |= {"page taken": 1, "page evicted": 1, "copy on write": 1}
    rows = []
    for name, factor in growth.items():
        ours, ten_times = few.contender(name), many.contender(name)
        rows.append(Row(f"{name}, 1000 pages", [ours], lambda ns: ns, unit="ns"))
        of = lambda ten, one, factor=factor: ten / one / factor  # noqa: E731
        what = "ten times the pages, of ten times the time" if factor > 1 else "ten times the pages, of the same time"
        rows.append(Row(f"{name}, {what}", [ten_times, ours], of, at_most=1.25))
    return Group("pages", rows, [few, many])


def copies(native: Native) -> Iterator[Group]:
    """`copy_rows` of pages."""
    for layout in LAYOUTS:
        for bits, name in WIDTHS.items():
            case = Case(native, "copies", layout, bits)
            contenders = [case.contender("bare loop"), case.contender("copy_rows")]
            row = Row(f"copy_rows, layout {layout}, {name}, of bare loop's speed", contenders, quotient, at_least=0.9)
            yield Group(f"copies {layout} {name}", [row], [case])


def cells(native: Native) -> Group:
    """A step of unified cells and its mask."""
    case = Case(native, "cells", 32768, 8)
    loops, ours = case.contender("loops over sets"), case.contender("find_slot and mask")
    rows = [
        microseconds("find_slot and mask, 32768 cells, 8 sequences", ours),
        Row("loops over a set for each cell, of find_slot and mask", [loops, ours], quotient, at_least=4),
    ]
    return Group("cells", rows, [case])


def shifts(native: Native) -> Iterator[Group]:
    """K-shift."""
    for layout in LAYOUTS:
        for bits, name in WIDTHS.items():
            case = Case(native, "shift", layout, bits)
            contenders = [case.contender("rotate_keys"), case.contender("store and load")]
            row = Row(
                f"rotate_keys, layout {layout}, {name}, of storing and loading", contenders, quotient, at_most=1.5
            )
            yield Group(f"shift {layout} {name}", [row], [case])


def sessions(native: Native) -> Iterator[Group]:
    """Saving and loading sequences."""
    for layout in (LAYOUTS[0], LAYOUTS[-1]):
        for bits, name in WIDTHS.items():
            case = Case(native, "sessions", layout, bits)
            save, load = case.contender("save"), case.contender("load")
            peers = {
                "write and hash": (save, 0.7),
                "read and hash": (load, 0.7),
                "read into the same memory and hash": (load, None),
            }
            rows = [
                Row(
                    f"{ours.name}, layout {layout}, {name}, of {peer}'s speed",
                    [case.contender(peer), ours],
                    quotient,
                    at_least=goal,
                )
                for peer, (ours, goal) in peers.items()
            ]
            yield Group(f"sessions {layout} {name}", rows, [case])


def groups(native: Native) -> Iterator[Group]:
    """All groups, made when they are due."""
    yield from (make(native) for make in (decode, max_t, allocations, pages, cells))
    yield from copies(native)
    yield from shifts(native)
    yield from sessions(native)

"""The cache operator in ONNX Runtime and its kernel alone, of the limit.

    bench.py                     everything; writes operator.md and operator.json in target/bench
    bench.py --quick             a sample of the cases
    bench.py --table             the table in docs/numbers.md: the operator in ONNX Runtime, of the limit
    bench.py --filter prefill    only the cases whose names contain a word
    bench.py --list              the names of the cases

`make bench-operator BENCH="--quick"` builds what it needs. By hand, PYTHONPATH=examples finds the operator library's
module. An answer that is not the reference kernel's, bit for bit, ends the benchmark before it is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from cases import Case, full_cases, is_small, quick_cases, table_cases
from figures import Contender, Measured, Row, arguments, fastest_of, microseconds, quotient, run
from native import DirectCall, Native, limits
from runtime import empty, operator
from tensors import Arena, Tensors, tensors_of


def main() -> int:
    """Runs the benchmark."""
    parser = arguments(__doc__, rounds=15, quick_rounds=9)
    parser.add_argument("--table", action="store_true", help="the cases of docs/numbers.md's table")
    parser.add_argument("--threads", type=int, default=2, help="of every contender")
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    chosen = parser.parse_args()
    cases = selected(chosen)
    if chosen.list:
        print("\n".join(case.name for case in cases))
        return 0
    native, arena = Native(chosen.threads), Arena()
    run(((case.name, partial(group, case, native, arena, chosen)) for case in cases), "operator", chosen)
    return 0


def selected(chosen: argparse.Namespace) -> list[Case]:
    """The chosen cases, each once; those with the same memory follow each other."""
    cases = dict.fromkeys(quick_cases() if chosen.quick else table_cases() if chosen.table else full_cases())
    return sorted(cases, key=lambda case: (not case.cold, case.format.t2, case.format.t1, case.cache_layout))


def group(case: Case, native: Native, arena: Arena, chosen: argparse.Namespace) -> list[Row]:
    """All figures of a case."""
    threads = chosen.threads
    loops = limits(native, case, threads, arena) if case.cold else []
    tensors = tensors_of(case, arena)
    calls = called(native, tensors)
    ours = operator(tensors, threads, calls[0].check)
    name = f"{case.name}, in ONNX Runtime"
    rows = [Row(f"{name}, of the limit", [ours, *loops], of_limit(case))] if case.cold else []
    if case.past_line:
        aligned = tensors_of(replace(case, past_line=0), arena)
        twin = operator(aligned, threads, called(native, aligned)[0].check)
        rows.append(Row(f"{name}, of aligned tensors", [twin, ours], quotient))
    elif not chosen.table:
        rows += of_phases(tensors, calls, loops, threads)
    if is_small(case):
        nothing = empty(tensors, threads)
        rows.append(Row(f"{name}, beyond an empty operator", [ours, nothing], lambda a, b: (a - b) / 1e3, unit="us"))
        rows.append(microseconds(f"{case.name}, called directly", direct(calls, "op", threads)))
    return rows


def called(native: Native, tensors: Tensors) -> list[DirectCall]:
    """The calls of a case's layers, of which the first knows the right answer."""
    calls = [DirectCall(native, tensors, layer_idx) for layer_idx in tensors.layers]
    calls[0].expect()
    return calls


def of_limit(case: Case):
    """The figure of the operator's time and those of the loops of each phase, in three orders."""
    # A phase that is too small for loops of its own takes its part of the other's time.
    moved = sum(case.bytes(phase) for phase in case.limited)

    def figure(ns: float, *loops: float) -> float:
        return case.bytes("op") / moved * sum(min(loops[i : i + 3]) for i in range(0, len(loops), 3)) / ns

    return figure


def direct(calls: list[DirectCall], phase: str, threads: int) -> Contender:
    """The kernel's phase, or the whole operator with its checks, on one layer after another."""

    def sample(turn: int, iterations: int) -> Measured:
        return calls[turn % len(calls)].measure(threads, phase, iterations)

    return Contender(f"kernel's {phase}", threads, sample, cold=len(calls) > 1)


def of_phases(tensors: Tensors, calls: list[DirectCall], loops: list[Contender], threads: int) -> Iterator[Row]:
    """The kernel's phases, called directly, of the limit of each."""
    calls[0].check(f"the kernel on {threads} threads", partial(calls[0].measure, threads, "op", 1))
    for phase in tensors.case.limited if loops else ():
        own = [loop for loop in loops if loop.name.startswith(f"limit of {phase},")]
        name = f"{tensors.case.name}, kernel's {phase}, of the limit"
        yield Row(name, [direct(calls, phase, threads), *own], fastest_of)


if __name__ == "__main__":
    sys.exit(main())

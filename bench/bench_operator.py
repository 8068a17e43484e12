"""The cache operator in ONNX Runtime, and called directly, against rooflines.

    bench_operator.py                     everything; writes operator.md and operator.json in target/bench
    bench_operator.py --quick             a sample of the cases
    bench_operator.py --table             the table in bench/results/operator.md: all but small calls
    bench_operator.py --filter prefill    only the cases whose names contain a word

`make bench-operator BENCH="--quick"` builds what it needs. An answer that is not the reference kernel's, bit for bit,
ends the benchmark before it is measured.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from cases import Case, quick_cases, small_cases, table_cases
from harness import Row, arguments, fastest_of, microseconds, quotient, run
from native import Rooflines, direct, expecting
from runtime import operator


def rows_of(case: Case, threads: int) -> list[Row]:
    """All figures of a case."""
    tensors = expecting(case)
    ours, called = operator(tensors, threads), direct(tensors, threads)
    if not case.cold:
        return [microseconds(ours), microseconds(called)]
    loops = Rooflines().of(case, threads, non_temporal=True)
    rows = [Row(f"{each.name}, of the roofline", [each, *loops], fastest_of) for each in (ours, called)]
    if case.past_line:
        aligned = operator(expecting(replace(case, past_line=0)), threads)
        rows.append(Row(f"{ours.name}, of aligned tensors", [aligned, ours], quotient))
    return rows


if __name__ == "__main__":
    parser = arguments(__doc__, rounds=15, quick_rounds=9)
    parser.add_argument("--table", action="store_true", help="the cases of the table in bench/results/operator.md")
    parser.add_argument("--threads", type=int, default=2, help="of every contender")
    chosen = parser.parse_args()
    cases = (quick_cases() if chosen.quick else table_cases()) + ([] if chosen.table else small_cases())
    run(((case.name, partial(rows_of, case, chosen.threads)) for case in cases), "operator", chosen)

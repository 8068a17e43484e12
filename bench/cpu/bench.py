"""The benchmark: limits, kernels, the operator in ONNX Runtime and what people use today, interleaved in one process.

    bench.py                               everything; writes report.md and report.json in target/bench
    bench.py --quick                       a sample of it
    bench.py --table                       the table in docs/numbers.md: the operator in ONNX Runtime, of the limit
    bench.py --direct --filter "f16 cold"  the kernel alone, on the cases whose names contain both words
    bench.py --list                        the names of the cases

`make bench BENCH="--quick"` builds what it needs. By hand, PYTHONPATH=examples finds the operator library's module.
An answer that is not the reference kernel's, bit for bit, ends the benchmark before it is measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import report
from cases import Case, full_cases, has_empty_twin, quick_cases, table_cases
from kernel import kernels
from limit import check_limits, limits
from measure import Contender, run_rounds
from native import Native, NativeCall
from numpy_peer import numpy_peer
from result import ALIGNED, Result
from roofline import rooflines
from runtime import empty, operator
from standard import standard
from tensors import Arena, CaseTensors, tensors_of

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Runs the benchmark."""
    arguments = parse()
    cases = selected(arguments)
    if arguments.list:
        print("\n".join(case.name for case in cases))
        return 0
    if not cases:
        print("no case has such a name; see --list", file=sys.stderr)
        return 2
    native, arena = Native(tuple(arguments.threads)), Arena()
    check_limits(native, arena)
    results, begin = [], time.monotonic()
    for number, case in enumerate(cases, 1):
        result = Result(case, measured(case, native, arena, arguments))
        results.append(result)
        print(f"[{number}/{len(cases)}, {time.monotonic() - begin:.0f} s] {result.text()}", flush=True)
    print(report.write(results, arguments.out, time.monotonic() - begin))
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sets = parser.add_mutually_exclusive_group()
    sets.add_argument("--quick", action="store_true", help="a sample of the cases, in less than three minutes")
    sets.add_argument("--table", action="store_true", help="the cases of docs/numbers.md's table, on the most threads")
    parser.add_argument(
        "--filter", action="append", default=[], help="words that a case's name contains; may be repeated"
    )
    parser.add_argument(
        "--direct", action="store_true", help="only limits, rooflines and the kernel, without ONNX Runtime and peers"
    )
    parser.add_argument("--with-torch", action="store_true", help="torch as a further peer; it must be installed")
    parser.add_argument("--threads", type=int, nargs="+", help="numbers of threads, 1 and 2 unless given")
    parser.add_argument("--rounds", type=int, help="rounds of a case, at most")
    parser.add_argument("--seconds", type=float, default=1, help="after which a case has no further round")
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench", help="folder of the report")
    arguments = parser.parse_args()
    arguments.threads = arguments.threads or ([2] if arguments.table else [1, 2])
    arguments.rounds = arguments.rounds or (9 if arguments.quick else 15)
    return arguments


def selected(arguments: argparse.Namespace) -> list[Case]:
    """The chosen cases, each once; those with the same memory follow each other."""
    chosen = quick_cases if arguments.quick else table_cases if arguments.table else full_cases
    cases = {case.name: case for case in chosen()}
    filters = [words.split() for words in arguments.filter] or [[]]
    cases = [case for case in cases.values() if any(all(word in case.name for word in words) for words in filters)]
    return sorted(cases, key=lambda case: (not case.cold, case.format.t2, case.format.t1, case.cache_layout))


def measured(case: Case, native: Native, arena: Arena, arguments: argparse.Namespace) -> list[Contender]:
    """Measures all contenders of a case, after their answers have been checked."""
    contenders, native_calls = limits(native, case, arena), []
    for variant in [case, replace(case, past_line=0)] if case.past_line else [case]:
        tensors = tensors_of(variant, arena)
        layers = [NativeCall(native, tensors, layer_idx) for layer_idx in tensors.layers]
        ours = contenders_on(tensors, native, layers, arguments, is_twin=variant != case)
        layers[0].expect()
        for contender in ours:
            if contender.answer:
                layers[0].check(f"{contender.name} on {contender.threads} threads", contender.answer)
        contenders += ours
        native_calls += layers
    run_rounds(contenders, arguments.rounds, arguments.seconds)
    for native_call in native_calls:
        native_call.close()
    return contenders


def contenders_on(
    tensors: CaseTensors, native: Native, layers: list[NativeCall], arguments: argparse.Namespace, is_twin: bool
) -> list[Contender]:
    """Who works on these tensors; on the aligned twin of a case only the kernel and the operator do."""
    contenders, threads = kernels(native, tensors, layers), arguments.threads
    if not arguments.direct:
        contenders += [operator(tensors, count) for count in threads]
    if is_twin:
        return [replace(contender, name=contender.name + ALIGNED) for contender in contenders]
    if not arguments.table:
        contenders += rooflines(native, tensors, layers)
        contenders += [] if arguments.direct else others(tensors, threads, arguments.with_torch)
    return contenders


def others(tensors: CaseTensors, threads: list[int], with_torch: bool) -> list[Contender]:
    """For small calls an operator that does nothing, and what people use today where the case asks for it."""
    contenders = [empty(tensors, count) for count in threads if has_empty_twin(tensors.case)]
    if not tensors.case.peers:
        return contenders
    contenders += [standard(tensors, count) for count in threads] + [numpy_peer(tensors)]
    if with_torch:
        from torch_peer import torch_peers

        contenders += [contender for count in threads for contender in torch_peers(tensors, count)]
    return contenders


if __name__ == "__main__":
    sys.exit(main())

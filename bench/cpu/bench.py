"""The benchmark: limit, kernels, the operator in ONNX Runtime and what people use today, interleaved in one process.

    bench.py                               everything; writes report.md, report.json and plots in target/bench
    bench.py --quick                       a sample of it
    bench.py --direct --filter "f16 cold"  the kernel alone, on the cases whose names contain both words
    bench.py --list                        the names of the cases

An answer that is not the reference kernel's, bit for bit, ends the benchmark before it is measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))  # the operator library in Python is shown, and kept, there

import report  # noqa: E402
from cases import Case, full_cases, has_empty_twin, quick_cases  # noqa: E402
from direct import check_copies, kernels, limits  # noqa: E402
from measure import Contender, run_rounds  # noqa: E402
from memory import Arena, Operands, operands  # noqa: E402
from native import Native, NativeCase  # noqa: E402
from numpy_peer import numpy_peer  # noqa: E402
from result import Result  # noqa: E402
from runtime import empty, operator  # noqa: E402
from standard import standard  # noqa: E402
from traffic import check_traffic, traffics  # noqa: E402


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
    check_copies(native, arena)
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
    parser.add_argument("--quick", action="store_true", help="a sample of the cases, in less than three minutes")
    parser.add_argument(
        "--filter", action="append", default=[], help="words that a case's name contains; may be repeated"
    )
    parser.add_argument(
        "--direct", action="store_true", help="only copies and the kernel, without ONNX Runtime and peers"
    )
    parser.add_argument("--with-torch", action="store_true", help="torch as a further peer; it must be installed")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads")
    parser.add_argument("--rounds", type=int, help="rounds of a case, at most")
    parser.add_argument("--seconds", type=float, help="after which a case has no further round")
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench", help="folder of the report")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (9 if arguments.quick else 15)
    arguments.seconds = arguments.seconds or 1.5
    return arguments


def selected(arguments: argparse.Namespace) -> list[Case]:
    """The chosen cases, each once; those with the same memory follow each other."""
    cases = {case.name: case for case in (quick_cases() if arguments.quick else full_cases())}
    wanted = [words.split() for words in arguments.filter] or [[]]
    chosen = [case for case in cases.values() if any(all(word in case.name for word in words) for words in wanted)]
    return sorted(chosen, key=lambda case: (not case.cold, case.format.t2, case.format.t1, case.cache_layout))


def measured(case: Case, native: Native, arena: Arena, arguments: argparse.Namespace) -> list[Contender]:
    """Measures all contenders of a case, after their answers have been checked."""
    tensors = operands(case, arena)
    native_cases = [NativeCase(native, tensors, layer_idx) for layer_idx in tensors.layers]
    contenders = limits(native, tensors, arena) + kernels(native, tensors, native_cases)
    contenders += traffics(native, tensors, native_cases)
    if not arguments.direct:
        contenders += in_runtime(tensors, arguments.threads)
        contenders += peers(tensors, arguments.threads, arguments.with_torch)
    check_traffic(native, tensors, native_cases[0])
    native_cases[0].expect()
    for contender in contenders:
        if contender.answer:
            native_cases[0].check(f"{contender.name} on {contender.threads} threads", contender.answer)
    run_rounds(contenders, arguments.rounds, arguments.seconds)
    for native_case in native_cases:
        native_case.close()
    return contenders


def in_runtime(tensors: Operands, threads: list[int]) -> list[Contender]:
    """The operator in ONNX Runtime and, for small calls, one that does nothing."""
    contenders = [operator(tensors, count) for count in threads]
    return contenders + [empty(tensors, count) for count in threads if has_empty_twin(tensors.case)]


def peers(tensors: Operands, threads: list[int], with_torch: bool) -> list[Contender]:
    """What people use today, where the case asks for it."""
    if not tensors.case.peers:
        return []
    contenders = [standard(tensors, count) for count in threads] + [numpy_peer(tensors)]
    if with_torch:
        from torch_peer import torch_peers

        contenders += [contender for count in threads for contender in torch_peers(tensors, count)]
    return contenders


if __name__ == "__main__":
    sys.exit(main())

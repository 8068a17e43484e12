"""The benchmark of attention: against loops that only read, matrix products, peers, and an operator that does nothing.

    bench_attention.py                     everything; writes attention.md and attention.json in target/bench
    bench_attention.py --quick             fewer rounds, and a sample of the calls
    bench_attention.py --filter prefill    only the groups whose names contain a word

Contenders are measured in turn, in one process; figures are ratios within a round, medians with quartiles. An answer
that differs from numpy's in float64 by more than the number format explains ends the benchmark. LLAMA_CPP is the folder
of llama.cpp's libraries, a peer where there is one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product
from math import inf

from cases import (
    ATTENTION,
    F16,
    F32,
    FLOAT,
    INT4,
    INT8,
    LAYOUTS,
    LONG,
    SMALL_ATTENTION,
    Case,
    Format,
    Lengths,
    decode,
    prefill,
    quantized,
    ragged,
)
from harness import Groups, Row, arguments, difference, fastest_of, microseconds, quotient, run
from native import Rooflines, direct, expecting
from peers import LIBRARIES, flash_attention, torch_attention
from runtime import empty, group_query_attention, matrix_product, operator

THREADS = 2

INT8S, INT4S = quantized(INT8, (8, 32, 128)), quantized(INT4, (8, 16, 32, 128))
INT8_F32, INT4_F32 = quantized(INT8, (32,), FLOAT)[0], quantized(INT4, (32,), FLOAT)[0]
SOME = (F32, F16, INT8S[1], INT4S[2])

# By the type of the cache: of the loop that reads as many bytes.
OF_READ = {INT8: 0.6}
OTHERS_OF_READ = 0.8
NO_GOAL = -inf


def case_of(lengths: Lengths, form: Format, layout: int = 3, **more: int) -> Case:
    """A call of attention with a model's heads."""
    return Case(lengths, form, layout, heads=ATTENTION, **more)


def groups(chosen: argparse.Namespace) -> Groups:
    """All groups by name."""

    def cached(lengths: Lengths, layout: int, formats: Iterable[Format], paged: bool = True):
        name = f"{lengths.name} layout {layout} {'paged' if paged else 'offset'}"
        return name, partial(decoding, name, case_of(lengths, F32, layout, paged=paged), formats)

    def all_decoding() -> Iterator[tuple]:
        if chosen.quick:
            few = (F32, F16, *INT8S[:2], *INT4S[1:3])
            yield from ((LONG, layout, few) for layout in (0, 3))
            yield from ((decode(1, kvlen), 3, SOME) for kvlen in (2048, 32768))
        else:
            yield from ((LONG, layout, (F32, F16, *INT8S, INT8_F32, *INT4S)) for layout in LAYOUTS)
            yield from ((LONG, layout, SOME, False) for layout in LAYOUTS)
            sizes = (1, 2048), (1, 32768), (8, 8192), (64, 2048)
            yield from ((decode(*size), layout, SOME) for size, layout in product(sizes, (0, 3)))
        yield ragged(100_000, 256, 8), 3, (F16, INT8S[1])

    yield from (cached(*each) for each in all_decoding())
    yield "decode arithmetic", arithmetic
    yield "decode peers", partial(decoding_peers, chosen.with_torch)
    for seqlen in (512, 2048) if chosen.quick else (512, 1024, 2048, 4096):
        yield f"prefill {seqlen}", partial(prompt, seqlen, chosen.with_torch)
    yield "long", long
    yield "small", small


def decoding(name: str, case: Case, formats: Iterable[Format]) -> list[Row]:
    """Decoding over caches of several formats, each of the speed of loops that only read, and of each other's."""
    rooflines, rows, ours = Rooflines(), [], {}
    for form in formats:
        each = case.of(form)
        ours[form] = direct(expecting(each), THREADS)
        goal = OF_READ.get(form.t2, OTHERS_OF_READ if form.t3 is None else NO_GOAL)
        loops = rooflines.of(each, THREADS)
        rows.append(Row(f"{name}, {form.name}, of reading", [ours[form], *loops], fastest_of, at_least=goal))
    for form in formats:
        if form.t2 == INT8 and F32 in ours:
            rows.append(Row(f"{name}, f32 of {form.name}", [ours[F32], ours[form]], quotient, at_least=2.5))
        if form.t2 == INT4:
            goal = 1.3 if form.quant_group >= 16 else NO_GOAL
            same = next((each for each in ours if each.t2 == INT8 and each.quant_group == form.quant_group), INT8S[1])
            what = f"{name}, {same.name} of {form.name}"
            rows.append(Row(what, [ours[same], ours[form]], quotient, at_least=goal))
    return rows


def arithmetic() -> list[Row]:
    """Decoding over caches that stay in the processor's cache, of the speed of loops that only read from memory: what
    decoding from memory would reach if reading cost nothing, and beside it what it reaches. On one thread, since waking
    another takes as long as so small a call."""
    rooflines, rows = Rooflines(), []
    for form in (F32, F16, INT8_F32, *INT8S, *INT4S[1:]):
        cold, warm = case_of(LONG, form), case_of(decode(1, 256), form, cold=False)
        times = cold.traffic[0] / warm.traffic[0]

        def without_reading(*ns: float, times: float = times) -> float:
            return fastest_of(*ns) / times

        loops = rooflines.of(cold, 1)
        name = f"decode B8 kvlen2048 {form.name}, of reading"
        rows.append(Row(name, [direct(expecting(cold), 1), *loops], fastest_of))
        rows.append(Row(f"{name}, if that cost nothing", [direct(expecting(warm), 1), *loops], without_reading))
    return rows


def decoding_peers(with_torch: bool) -> list[Row]:
    """Decoding in ONNX Runtime and called directly, and what else there is for the same work."""
    rows = []

    def row(form: Format, who: str, contenders: list, goal: float = NO_GOAL) -> None:
        rows.append(Row(f"{LONG.name} {form.name}, {who} of ours", contenders, quotient, at_least=goal))

    for form, goal in ((F32, 3), (F16, NO_GOAL)):
        tensors = expecting(case_of(LONG, form))
        ours = operator(tensors, THREADS)
        row(form, "GroupQueryAttention", [group_query_attention(tensors, THREADS), ours], goal)
        if with_torch:
            row(form, "torch", [torch_attention(tensors, THREADS), ours], 2)
    for form in (INT8_F32, INT4_F32):
        tensors = expecting(case_of(LONG, form))
        peer = group_query_attention(tensors, THREADS, form.quant_bit)
        row(form, "GroupQueryAttention with a scale for each channel", [peer, operator(tensors, THREADS)])
    for form in (F16, INT8S[1], INT4S[2]) if LIBRARIES.is_dir() else ():
        tensors = expecting(case_of(LONG, form))
        row(form, "llama.cpp", [flash_attention(tensors, THREADS), direct(tensors, THREADS)])
    return rows


def prompt(seqlen: int, with_torch: bool) -> list[Row]:
    """A prompt, of the speed of matrix products of which only the lower triangle counts, and of peers."""
    size, case = 2048, case_of(prefill(1, seqlen), F32, cold=False)
    tensors, work = expecting(case), case.operations / (2 * size**3)

    def of_products(*ns: float) -> float:
        return fastest_of(*ns) * work

    name, ours = f"prefill {seqlen} f32", operator(tensors, THREADS)
    peers = {"GroupQueryAttention": group_query_attention(tensors, THREADS)}
    if with_torch:
        peers["torch"] = torch_attention(tensors, THREADS)
    contenders = [direct(tensors, THREADS), *matrix_product(THREADS, size)]
    return [
        Row(f"{name}, of matrix products", contenders, of_products, at_least=0.7),
        *(Row(f"{name}, {who} of ours", [peer, ours], quotient, at_least=1.2) for who, peer in peers.items()),
    ]


def long() -> list[Row]:
    """One sequence alone, on one thread and on two, beside what reading gains by the second thread."""
    rooflines, rows = Rooflines(), []
    for form in (F16, INT8S[1]):
        case = case_of(decode(1, 65536), form)
        tensors, name = expecting(case), f"{case.lengths.name} {form.name}, one thread of two"
        rows.append(Row(name, [direct(tensors, count) for count in (1, THREADS)], quotient, at_least=1.8))
        loops = [loop for count in (1, THREADS) for loop in rooflines.of(case, count)]
        rows.append(Row(f"{name}, of reading alone", loops, halves))
    return rows


def halves(*ns: float) -> float:
    """How many times as long the fastest of the first half takes as the fastest of the second."""
    half = len(ns) // 2
    return min(ns[:half]) / min(ns[half:])


def small() -> list[Row]:
    """A call in which nothing but the call itself costs."""
    rows = []
    for form in (F32, F16):
        tensors = expecting(Case(decode(1, 16), form, 2, heads=SMALL_ATTENTION, cold=False))
        rows.append(microseconds(direct(tensors, 1)))
        for threads in (1, THREADS):
            what = f"small call {form.name}, beyond an empty operator, threads {threads}"
            contenders = [operator(tensors, threads), empty(tensors, threads)]
            rows.append(Row(what, contenders, difference, at_most=5, unit="us"))
    return rows


def main() -> int:
    """Runs the benchmark."""
    parser = arguments(__doc__, rounds=15, quick_rounds=7)
    parser.add_argument("--with-torch", action="store_true", help="torch as a further peer; it must be installed")
    chosen = parser.parse_args()
    run(groups(chosen), "attention", chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())

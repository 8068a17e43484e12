"""The benchmark of attention: against its roofline, matrix products and peers.

    bench_attention.py                     everything; writes attention.md and attention.json in target/bench
    bench_attention.py --quick             fewer rounds, and a sample of the calls
    bench_attention.py --filter prefill    only the groups whose names contain a word

Contenders are measured in turn, in one process; figures are ratios within a round, medians with quartiles. An answer
that differs from numpy's in float64 by more than the number format explains ends the benchmark. LLAMA_CPP is the folder
of llama.cpp's libraries, a peer where there is one.
"""

from __future__ import annotations

import argparse
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
from harness import Groups, Row, arguments, fastest_of, microseconds, quotient, run
from native import PRODUCTS, Rooflines, direct, expecting, multiply_adds
from peers import LIBRARIES, flash_attention, torch_attention
from runtime import group_query_attention, matrix_product, operator

THREADS = 2

INT8S, INT4S = quantized(INT8, (8, 32, 128)), quantized(INT4, (8, 16, 32, 128))
INT8_F32, INT4_F32 = quantized(INT8, (32,), FLOAT)[0], quantized(INT4, (32,), FLOAT)[0]
SOME = (F32, F16, INT8S[1], INT4S[2])

# By the type of the cache, of the roofline.
GOALS = {INT8: 0.7, INT4: 0.65}
FLOAT_GOAL = 0.85
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
    yield "decode peers", partial(decoding_peers, chosen.with_torch)
    for seqlen in (512, 2048) if chosen.quick else (512, 1024, 2048, 4096):
        yield f"prefill {seqlen}", partial(prompt, seqlen, chosen.with_torch)
    yield "decode window", window_decoding
    yield "prefill window", window_prompt
    yield "long", long
    yield "small", small


def decoding(name: str, case: Case, formats: Iterable[Format]) -> list[Row]:
    """Decoding over caches of several formats, each of the speed of its roofline, and of each other's.

    The roofline takes as long as the slower of two loops: one reads as many bytes, one makes as many multiply-adds.
    """
    rooflines, rows, ours, products = Rooflines(), [], {}, multiply_adds(THREADS)
    for form in formats:
        each = case.of(form)
        ours[form] = direct(expecting(each), THREADS)
        work = each.operations / 2 / (THREADS * PRODUCTS)

        def of_roofline(ns: float, *loops: float, work: float = work) -> float:
            return max(min(loops[:-1]), loops[-1] * work) / ns

        def arithmetic_of_reading(*loops: float, work: float = work) -> float:
            return loops[-1] * work / min(loops[:-1])

        loops, goal = [*rooflines.of(each, THREADS), products], GOALS.get(form.t2, FLOAT_GOAL)
        rows.append(Row(f"{name}, {form.name}, of the roofline", [ours[form], *loops], of_roofline, at_least=goal))
        rows.append(Row(f"{name}, {form.name}, arithmetic of reading", loops, arithmetic_of_reading))
    for form in formats:
        if form.t2 == INT8 and F32 in ours:
            rows.append(Row(f"{name}, f32 of {form.name}", [ours[F32], ours[form]], quotient))
        if form.t2 == INT4:
            same = next((each for each in ours if each.t2 == INT8 and each.quant_group == form.quant_group), INT8S[1])
            rows.append(Row(f"{name}, {same.name} of {form.name}", [ours[same], ours[form]], quotient))
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
        Row(f"{name}, of matrix products", contenders, of_products, at_least=0.95 if seqlen >= 2048 else 0.85),
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


def window_decoding() -> list[Row]:
    """A window costs a window: decoding after many keys takes as long as after few."""
    rows = []
    for form in (F32, F16, INT8S[1]):
        many, few = (case_of(decode(1, kvlen), form, cold=False, window=512) for kvlen in (32768, 512))
        contenders = [direct(expecting(each), THREADS) for each in (many, few)]
        rows.append(Row(f"{many.lengths.name} {form.name} window 512, of kvlen 512", contenders, quotient, at_most=1.3))
    return rows


def window_prompt() -> list[Row]:
    """A prompt under a window, of the same prompt without."""
    cases = [case_of(prefill(1, 8192), F32, cold=False, window=window) for window in (512, -1)]
    contenders = [direct(expecting(each), THREADS) for each in cases]
    return [Row("prefill 8192 f32 window 512, of no window", contenders, quotient, at_most=0.2)]


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
        rows += [microseconds(operator(tensors, threads)) for threads in (1, THREADS)]
    return rows


if __name__ == "__main__":
    parser = arguments(__doc__, rounds=15, quick_rounds=7)
    parser.add_argument("--with-torch", action="store_true", help="torch as a further peer; it must be installed")
    chosen = parser.parse_args()
    run(groups(chosen), "attention", chosen)

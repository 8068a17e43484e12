"""The benchmark of attention: over loops that only read, matrix products, peers, and an operator that does nothing.

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
from collections.abc import Callable, Iterable, Iterator

import ggml
from attention_tensors import SMALL, AttentionCase, Direct, reads, tensors_of
from cases import F16, F32, FLOAT, HALF, INT4, INT8, Format, decode, prefill, quantized, ragged
from figures import Row, arguments, fastest_of, microseconds, quotient, run
from native import Native
from peers import group_query_attention, matrix_product, torch_attention
from runtime import empty, operator
from tensors import Arena

THREADS = 2

INT8S = quantized(INT8, (8, 32, 128), (HALF,), (HALF,))
INT4S = quantized(INT4, (8, 16, 32, 128), (HALF,), (HALF,))
INT8_F32, INT4_F32 = Format(FLOAT, INT8, FLOAT, 8, 32), Format(FLOAT, INT4, FLOAT, 4, 32)

# By the type of the cache: of the bare loop that reads as many bytes.
OF_READ = {INT8: 0.6}
OTHERS_OF_READ = 0.8

PROMPTS = (512, 1024, 2048, 4096)


def groups(native: Native, chosen: argparse.Namespace) -> Iterator[tuple[str, Callable[[], list[Row]]]]:
    """All groups by name."""

    def cached(case: AttentionCase, formats: Iterable[Format]) -> tuple[str, Callable[[], list[Row]]]:
        mode = "paged" if case.paged else "offset"
        name = f"{case.lengths.name} layout {case.cache_layout} {mode}"
        return name, lambda: decoding(native, name, case, list(formats))

    few = (F32, F16, INT8S[0], INT8S[1], INT4S[1], INT4S[2])
    every = (F32, F16, *INT8S, INT8_F32, *INT4S)
    for layout in (0, 3) if chosen.quick else range(4):
        yield cached(AttentionCase(decode(8, 2048), F32, layout), few if chosen.quick else every)
    if not chosen.quick:
        for layout in range(4):
            yield cached(AttentionCase(decode(8, 2048), F32, layout, paged=False), (F32, F16, INT8S[1], INT4S[2]))
    for batch, kvlen in ((1, 2048), (1, 32768)) if chosen.quick else ((1, 2048), (1, 32768), (8, 8192), (64, 2048)):
        for layout in (3,) if chosen.quick else (0, 3):
            yield cached(AttentionCase(decode(batch, kvlen), F32, layout), (F32, F16, INT8S[1], INT4S[2]))
    yield cached(AttentionCase(ragged(100_000, 256, 8), F32, 3), (F16, INT8S[1]))
    yield "decode arithmetic", lambda: arithmetic(native, (F32, F16, INT8_F32, *INT8S, *INT4S[1:]))
    yield "decode peers", lambda: decoding_peers(native, chosen.with_torch)
    for seqlen in PROMPTS[::2] if chosen.quick else PROMPTS:
        yield f"prefill {seqlen}", lambda seqlen=seqlen: prompt(native, seqlen, chosen.with_torch)
    yield "long", lambda: long(native)
    yield "small", lambda: small(native)


def decoding(native: Native, name: str, case: AttentionCase, formats: list[Format]) -> list[Row]:
    """Decoding over caches of several formats, each of the speed of loops that only read, and of each other's."""
    arena, rows, ours = Arena(), [], {}
    for form in formats:
        direct = Direct(native, tensors_of(case.of(form), arena), *native.teams)
        loops = reads(native, form.name, direct.tensors.case.traffic, THREADS, arena)
        ours[form] = direct.contender(THREADS)
        goal = OF_READ.get(form.t2, OTHERS_OF_READ if form.t3 is None else None)
        rows.append(Row(f"{name}, {form.name}, of reading", [ours[form], *loops], fastest_of, at_least=goal))
    for form in formats:
        if form.t2 == INT8 and F32 in ours:
            rows.append(Row(f"{name}, f32 of {form.name}", [ours[F32], ours[form]], quotient, at_least=2.5))
        if form.t2 == INT4:
            goal = 1.3 if form.quant_group >= 16 else None
            same = next((each for each in ours if each.t2 == INT8 and each.quant_group == form.quant_group), INT8S[1])
            what = f"{name}, {same.name} of {form.name}"
            rows.append(Row(what, [ours[same], ours[form]], quotient, at_least=goal))
    return rows


def arithmetic(native: Native, formats: Iterable[Format]) -> list[Row]:
    """Decoding over caches that stay in the processor's cache, of the speed of loops that only read from memory: what
    decoding from memory would reach if reading cost nothing, and beside it what it reaches. On one thread, since waking
    another takes as long as so small a call."""
    arena, rows = Arena(), []
    for form in formats:
        cold = Direct(native, tensors_of(AttentionCase(decode(8, 2048), form, 3), arena), 1)
        warm = Direct(native, tensors_of(AttentionCase(decode(1, 256), form, 3, cold=False), arena), 1)
        traffic = cold.tensors.case.traffic
        times = traffic.read / warm.tensors.case.traffic.read

        def without_reading(*ns: float, times: float = times) -> float:
            return fastest_of(*ns) / times

        loops = reads(native, form.name, traffic, 1, arena)
        name = f"decode B8 kvlen2048 {form.name}, of reading"
        rows.append(Row(name, [cold.contender(1), *loops], fastest_of))
        in_cache = warm.contender(1, f"{form.name} in the processor's cache")
        rows.append(Row(f"{name}, if that cost nothing", [in_cache, *loops], without_reading))
    return rows


def decoding_peers(native: Native, with_torch: bool) -> list[Row]:
    """Decoding in ONNX Runtime, and what else there is for the same work."""
    arena, rows = Arena(), []
    lengths = decode(8, 2048)
    for form, goal in ((F32, 3), (F16, None)):
        tensors = Direct(native, tensors_of(AttentionCase(lengths, form), arena), THREADS).tensors
        ours = operator(tensors, THREADS, tensors.check)
        peer = group_query_attention(tensors, THREADS, arena)
        what = f"{lengths.name} {form.name}, GroupQueryAttention of ours"
        rows.append(Row(what, [peer, ours], quotient, at_least=goal))
        if with_torch:
            peer = torch_attention(tensors, THREADS)
            rows.append(Row(f"{lengths.name} {form.name}, torch of ours", [peer, ours], quotient, at_least=2))
    for form in (INT8_F32, INT4_F32):
        tensors = Direct(native, tensors_of(AttentionCase(lengths, form), arena), THREADS).tensors
        ours = operator(tensors, THREADS, tensors.check)
        peer = group_query_attention(tensors, THREADS, arena, form.quant_bit)
        what = f"{lengths.name} {form.name}, GroupQueryAttention with a scale for each channel of ours"
        rows.append(Row(what, [peer, ours], quotient))
    for form in (F16, INT8S[1], INT4S[2]) if ggml.LIBRARIES.is_dir() else ():
        direct = Direct(native, tensors_of(AttentionCase(lengths, form), arena), THREADS)
        peer = ggml.flash_attention(direct.tensors, THREADS)
        rows.append(Row(f"{lengths.name} {form.name}, llama.cpp of ours", [peer, direct.contender(THREADS)], quotient))
    return rows


def prompt(native: Native, seqlen: int, with_torch: bool) -> list[Row]:
    """A prompt, of the speed of matrix products of which only the lower triangle counts, and of peers."""
    arena, size = Arena(), 2048
    products = matrix_product(THREADS, size, arena)
    case = AttentionCase(prefill(1, seqlen), F32, cold=False)
    direct = Direct(native, tensors_of(case, arena), *native.teams)
    work = case.operations / (2 * size**3)

    def of_products(*ns: float) -> float:
        return fastest_of(*ns) * work

    name, in_runtime = f"prefill {seqlen} f32", operator(direct.tensors, THREADS, direct.tensors.check)
    peers = {"GroupQueryAttention": group_query_attention(direct.tensors, THREADS, arena)}
    if with_torch:
        peers["torch"] = torch_attention(direct.tensors, THREADS)
    return [
        Row(f"{name}, of matrix products", [direct.contender(THREADS), *products], of_products, at_least=0.7),
        *(Row(f"{name}, {who} of ours", [peer, in_runtime], quotient, at_least=1.2) for who, peer in peers.items()),
    ]


def long(native: Native) -> list[Row]:
    """One sequence alone, on one thread and on two, beside what reading gains by the second thread."""
    arena, rows = Arena(), []
    lengths = decode(1, 65536)
    for form in (F16, INT8S[1]):
        direct = Direct(native, tensors_of(AttentionCase(lengths, form), arena), 1, THREADS)
        threads = [direct.contender(count) for count in (1, THREADS)]
        name = f"{lengths.name} {form.name}, one thread of two"
        rows.append(Row(name, threads, quotient, at_least=1.8))
        loops = [reads(native, form.name, direct.tensors.case.traffic, count, arena) for count in (1, THREADS)]
        rows.append(Row(f"{name}, of reading alone", [*loops[0], *loops[1]], halves))
    return rows


def halves(*ns: float) -> float:
    """How many times as long the fastest of the first half takes as the fastest of the second."""
    half = len(ns) // 2
    return min(ns[:half]) / min(ns[half:])


def small(native: Native) -> list[Row]:
    """A call in which nothing but the call itself costs."""
    arena, rows = Arena(), []
    for form in (F32, F16):
        case = AttentionCase(decode(1, 16), form, 2, heads=SMALL, cold=False)
        direct = Direct(native, tensors_of(case, arena), 1, THREADS)
        rows.append(microseconds(f"small call {form.name}, direct", direct.contender(1)))
        for threads in (1, THREADS):
            tensors = direct.tensors
            ours, nothing = operator(tensors, threads, tensors.check), empty(tensors, threads)
            what = f"small call {form.name}, beyond an empty operator, threads {threads}"
            rows.append(Row(what, [ours, nothing], lambda a, b: (a - b) / 1e3, at_most=5, unit="us"))
    return rows


def main() -> int:
    """Runs the benchmark."""
    parser = arguments(__doc__, rounds=15, quick_rounds=7)
    parser.add_argument("--with-torch", action="store_true", help="torch as a further peer; it must be installed")
    chosen = parser.parse_args()
    run(groups(Native(1, THREADS), chosen), "attention", chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The benchmark of products with quantized matrices: against the peak of their instructions, memory, and ONNX Runtime.

    bench_matmul.py                     everything; writes matmul.md and matmul.json in target/bench
    bench_matmul.py --quick             fewer rounds, one shape
    bench_matmul.py --filter avx2       only the groups whose names contain a word

Every instruction set up to KVCACHE_INSTRUCTION_SET is measured, called directly, and the best one as `QuantizedMatMul`
in ONNX Runtime, against `MatMulNBits` of level 4 and float32's `MatMul`. Matrices are initializers there, so that the
runtime packs its own. An answer that differs from float64's with the same weights by more than its activations'
rounding explains ends the benchmark. Contenders are measured in turn; figures are medians of ratios within a round.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from math import ceil, inf
from types import SimpleNamespace

import numpy as np
from kvcache_ops import library_path
from onnx import TensorProto, helper, numpy_helper

from harness import Contender, Groups, Row, WrongAnswer, arguments, quotient, run
from native import Rooflines, module
from runtime import IR_VERSION, MICROSOFT, OPSET, bound, session_of
from tensors import ROTATION, allocate

BLOCK, THREADS, OURS = 32, 2, "kvcache_ops"
ROWS = (1, 4, 16, 64, 512, 2048)
SHAPES = ((576, 1536), (1536, 576), (2048, 2048))  # (K, N): SmolLM2's feed-forward, and a larger model's attention
FORMS = ((4, 8), (4, 16), (8, 8), (8, 16))  # bits of codes, and of activations

# Of the instructions' peak, from so many rows on; of reading the codes, one row.
PEAK_GOALS, PEAK_ROWS, READING_GOAL = {8: 0.6, 16: 0.75}, 64, 0.8
# Relative error, in Frobenius norm, of activations of so many bits; 0 is float32's own.
ERRORS = {8: 2e-2, 16: 2e-4, 0: 2e-5}


def aligned(values: np.ndarray) -> np.ndarray:
    """A copy that begins with a page."""
    copy = allocate(values.nbytes).view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


@dataclass(frozen=True)
class Weights:
    """A random matrix (N, K) of codes, whose zero point is half their number, and of scales."""

    k: int
    n: int
    bits: int

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """As the native side wants them."""
        return self.n, self.k, self.bits, BLOCK

    @cached_property
    def codes(self) -> np.ndarray:
        """(N, K), one code a byte."""
        return np.random.default_rng(self.bits).integers(0, 1 << self.bits, (self.n, self.k), np.uint8)

    @cached_property
    def scales(self) -> np.ndarray:
        """(N, B)."""
        shape = (self.n, self.k // BLOCK)
        return np.random.default_rng(9).uniform(0.005, 0.02, shape).astype(np.float32)

    @cached_property
    def panels(self) -> np.ndarray:
        """The codes as our operator reads them."""
        return aligned(np.frombuffer(module().pack(self.sizes, self.codes.tobytes()), np.uint8))

    @cached_property
    def panel_scales(self) -> np.ndarray:
        """(P, B, 16)."""
        padded = np.pad(self.scales, ((0, -self.n % 16), (0, 0)))
        return aligned(padded.reshape(-1, 16, self.k // BLOCK).transpose(0, 2, 1))

    @cached_property
    def floats(self) -> np.ndarray:
        """(N, K) float64."""
        return (self.codes - float(1 << self.bits - 1)) * np.repeat(self.scales, BLOCK, 1)

    def rows(self, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """x, in which one channel of a hundred is large, room for y, and the answer."""
        x = np.random.default_rng(count).standard_normal((count, self.k), np.float32)
        x[:, ::100] *= 20
        return aligned(x), aligned(np.zeros((count, self.n), np.float32)), x @ self.floats.T

    def checked(self, who: str, call: Callable[[], object], y: np.ndarray, expected: np.ndarray, bits: int) -> None:
        """Calls, and raises `WrongAnswer` if y is not as close as activations of so many bits make it."""
        y[...] = np.nan
        call()
        error = np.linalg.norm(y - expected) / np.linalg.norm(expected)
        if not error <= ERRORS[bits]:
            raise WrongAnswer(f"{who}: relative error {error:.2g}, at most {ERRORS[bits]:g}")


def direct(weights: Weights, kind: str, bits: int, count: int, threads: int, cold: bool = False) -> Contender:
    """Our product on an instruction set, called directly; cold, matrices in turn that no cache holds."""
    x, y, expected = weights.rows(count)
    native = module().Multiply(kind, weights.sizes, bits, threads)
    copies = 1 + ceil(ROTATION / weights.panels.nbytes) if cold else 1
    matrices = [(weights.panels, weights.panel_scales)]
    matrices += [(aligned(weights.panels), aligned(weights.panel_scales)) for _ in range(copies - 1)]
    times = 1 if cold else max(1, round(4e8 / (weights.k * weights.n * count)))

    def call(panels: np.ndarray, scales: np.ndarray, times: int = times) -> None:
        native.run(panels.ctypes.data, scales.ctypes.data, x.ctypes.data, y.ctypes.data, count, times)

    name = f"{kind} {weights.bits}/{bits}, K {weights.k} N {weights.n}, {count} rows, {threads} threads"
    weights.checked(name, partial(call, *matrices[0], 1), y, expected, bits)
    runs = [partial(call, *matrix) for matrix in matrices]
    return Contender(name, runs, threads, cold, is_busy=True, iterations=times)


def in_runtime(weights: Weights, op_type: str, count: int, threads: int, activation_bits: int = 8) -> Contender:
    """A product in ONNX Runtime: ours, or one of the runtime's."""
    x, y, expected = weights.rows(count)
    sizes = dict(K=weights.k, N=weights.n, bits=weights.bits, block_size=BLOCK)
    attributes: dict[str, int]
    if op_type == "MatMul":
        b, domain, attributes = {"w": weights.floats.T.astype(np.float32)}, "", {}
    elif op_type == "QuantizedMatMul":
        panels = weights.panels.reshape(-1, weights.k // BLOCK, BLOCK * weights.bits * 2)
        b, domain = {"panels": panels, "scales": weights.panel_scales}, OURS
        attributes = sizes | {"activation_bits": activation_bits}
    else:
        low_first = weights.codes.reshape(weights.n, -1, BLOCK)
        packed = low_first if weights.bits == 8 else low_first[..., ::2] | low_first[..., 1::2] << 4
        b, domain = {"w": packed, "scales": weights.scales}, MICROSOFT
        attributes = sizes | {"accuracy_level": 4}
    node = helper.make_node(op_type, ["x", *b], ["y"], domain=domain, **attributes)
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, None)] for name in "xy"]
    initializers = [numpy_helper.from_array(np.ascontiguousarray(each), name) for name, each in b.items()]
    graph = helper.make_graph([node], op_type, *ends, initializers)
    opsets = [helper.make_opsetid("", OPSET), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets)
    library = library_path() if domain == OURS else None
    call = bound(session_of(model.SerializeToString(), threads, library), {"x": x}, {"y": y})
    name = f"{op_type} {weights.bits}/{activation_bits}, K {weights.k} N {weights.n}, {count} rows, {threads} threads"
    weights.checked(name, call, y, expected, activation_bits if domain else 0)
    return Contender(name, [call], threads, cold=False, is_busy=count >= PEAK_ROWS)


def of_peak(kind: str, shape: tuple[int, int], rows: tuple[int, ...]) -> list[Row]:
    """An instruction set's products on one thread, of the peak of its instructions, and in numbers."""
    figures = []
    for bits, activation_bits in FORMS:
        weights = Weights(*shape, bits)
        peak = module().Peak(kind, bits, activation_bits, 1)
        roofline = Contender(f"peak of {kind} {bits}/{activation_bits}", [peak.run], cold=False, is_busy=True)
        for count in rows:
            ours, work = direct(weights, kind, activation_bits, count, 1), weights.k * weights.n * count
            name = f"{kind}, {bits}-bit codes, int{activation_bits}, K {weights.k} N {weights.n}, {count} rows"
            goal = PEAK_GOALS[activation_bits] if count >= PEAK_ROWS else -inf

            def share(ns: float, peak_ns: float, work: int = work, most: int = peak.run()) -> float:
                return work / ns / (most / peak_ns)

            figures.append(Row(f"{name}, of the peak", [ours, roofline], share, at_least=goal))
            figures.append(Row(f"{name}, one thread", [ours], partial(speed, work), unit="GMAC/s"))
    return figures


def speed(work: int, ns: float) -> float:
    """Thousand million multiply-adds a second."""
    return work / ns


def against_runtime(kind: str, shape: tuple[int, int], rows: tuple[int, ...]) -> list[Row]:
    """Our operator with the best instruction set on two threads, against ONNX Runtime's products."""
    figures = []
    for bits in (4, 8):
        weights = Weights(*shape, bits)
        for count in rows:
            peer, floats = (in_runtime(weights, op_type, count, THREADS) for op_type in ("MatMulNBits", "MatMul"))
            work = weights.k * weights.n * count
            for activation_bits in (8, 16):
                ours = in_runtime(weights, "QuantizedMatMul", count, THREADS, activation_bits)
                name = f"{kind}, {bits}-bit codes, int{activation_bits}, K {weights.k} N {weights.n}, {count} rows"
                figures.append(Row(f"{name}, MatMulNBits of ours", [peer, ours], quotient, at_least=1))
                figures.append(Row(f"{name}, float32 MatMul of ours", [floats, ours], quotient))
                figures.append(Row(f"{name}, two threads", [ours], partial(speed, work), unit="GMAC/s"))
    return figures


def reading(kind: str) -> list[Row]:
    """One row by a matrix out of memory, of reading its codes and scales."""
    rooflines, figures = Rooflines(), []
    for bits, activation_bits in FORMS:
        weights = Weights(2048, 8192, bits)
        traffic = (weights.panels.nbytes + weights.panel_scales.nbytes, 4 * weights.n)
        for threads in (1, THREADS):
            ours = direct(weights, kind, activation_bits, 1, threads, cold=True)
            loops = rooflines.of(SimpleNamespace(name=ours.name, traffic=traffic), threads)

            def share(ns: float, *reads: float) -> float:
                return min(reads) / ns

            name = f"one row, {bits}-bit codes, int{activation_bits}, threads {threads}, of reading"
            figures.append(Row(name, [ours, *loops], share, at_least=READING_GOAL))
    return figures


def groups(chosen: argparse.Namespace) -> Groups:
    """All groups by name."""
    kinds = module().instruction_sets()
    shapes = SHAPES[:1] if chosen.quick else SHAPES

    def all_groups() -> Iterator[tuple[str, Callable[[], list[Row]]]]:
        for k, n in shapes:
            for kind in kinds:
                if kind != "portable" and not kind.startswith("neon"):
                    yield f"peak {kind} K {k} N {n}", partial(of_peak, kind, (k, n), ROWS)
            for count in ROWS:
                name = f"runtime {kinds[-1]} K {k} N {n}, {count} rows"
                yield name, partial(against_runtime, kinds[-1], (k, n), (count,))
        yield f"reading {kinds[-1]}", partial(reading, kinds[-1])

    return all_groups()


if __name__ == "__main__":
    chosen = arguments(__doc__, rounds=15, quick_rounds=7).parse_args()
    run(groups(chosen), "matmul", chosen)

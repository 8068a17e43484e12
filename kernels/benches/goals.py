"""The project's goals, and which of the measured rows reach them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cases import FLOAT, HALF, INT4, INT8
from direct import KERNEL
from measure import Spread
from result import Result
from standard import STANDARD

# By name: the peer itself is imported only where torch is installed.
PMX = "PMX reference in torch"

THREADS = 2  # the goals are for two threads


@dataclass(frozen=True)
class Goal:
    """A bound on the median of each row that `values` finds in a case."""

    name: str
    wanted: float
    values: Callable[[Result], Iterator[Spread | None]]
    at_most: bool = False

    def reached(self, value: float) -> bool:
        """Whether a row is good enough."""
        return value <= self.wanted if self.at_most else value >= self.wanted


@dataclass(frozen=True)
class Verdict:
    """A goal and the medians of its rows, by case."""

    goal: Goal
    medians: dict[str, float]

    @property
    def missed(self) -> dict[str, float]:
        """The rows that miss it, the worst first."""
        missed = {case: value for case, value in self.medians.items() if not self.goal.reached(value)}
        return dict(sorted(missed.items(), key=lambda item: item[1], reverse=self.goal.at_most))

    def cells(self) -> list[str]:
        """A row of the goals table."""
        sign = "<=" if self.goal.at_most else ">="
        rows = [self.goal.name, f"{sign} {self.goal.wanted:g}"]
        if not self.medians:
            return [*rows, "not measured", "", ""]
        worst = (max if self.goal.at_most else min)(self.medians, key=self.medians.get)
        count = f"{len(self.medians) - len(self.missed)} of {len(self.medians)}"
        word = "reached" if not self.missed else "missed" if len(self.missed) == len(self.medians) else "in part"
        return [*rows, word, count, f"{self.medians[worst]:.2f} ({worst})"]


Of = Callable[[Result, object], Spread | None]


def phase(name: str, of: Of, chosen: Callable[[Result], bool]) -> Callable[[Result], Iterator[Spread | None]]:
    """The kernel's phase in the chosen cases, held against a copy."""

    def values(result: Result) -> Iterator[Spread | None]:
        kernel = result.find(KERNEL, name, THREADS)
        if kernel and chosen(result):
            yield of(result, kernel)

    return values


def peer(name: str, repeats: tuple[int, ...]) -> Callable[[Result], Iterator[Spread | None]]:
    """The operator in ONNX Runtime against a peer, where the cases are out of cache."""

    def values(result: Result) -> Iterator[Spread | None]:
        contender = result.find(name, "op", THREADS)
        if contender and result.case.cold and result.case.num_repeat in repeats:
            yield result.ours_over(contender)

    return values


def gain(result: Result) -> Iterator[Spread | None]:
    """What two threads gain, of what is wanted: 1.8, or what the copy gains if that is less."""
    kernel = result.find(KERNEL, "op", THREADS)
    if kernel and result.case.cold:
        gained, possible = result.over_one_thread(kernel), result.copy_over_one_thread(THREADS)
        if gained and possible:
            yield gained.scaled(1 / min(1.8, possible.median))


def overhead(result: Result) -> Iterator[Spread | None]:
    """Microseconds of a call."""
    yield result.overhead_us(THREADS)


def plain(result: Result) -> bool:
    """Values of float32 or float16 that are only moved."""
    return result.case.format.t1 == result.case.format.t2 and result.case.format.t1 in (FLOAT, HALF)


def goals(of: Of) -> list[Goal]:
    """All goals, with `of` as the way to hold a phase against a copy."""

    def load(chosen: Callable[[Result], bool]) -> Callable[[Result], Iterator[Spread | None]]:
        return phase("load", of, lambda result: result.case.cold and chosen(result))

    def store(chosen: Callable[[Result], bool]) -> Callable[[Result], Iterator[Spread | None]]:
        return phase("store", of, lambda result: result.case.cold and chosen(result))

    def unrepeated(result: Result) -> bool:
        return plain(result) and result.case.num_repeat == 1

    return [
        Goal("load, f32 and f16, layouts 1-3", 0.90, load(lambda r: unrepeated(r) and r.case.cache_layout != 0)),
        Goal("load, f32 and f16, layout 0", 0.85, load(lambda r: unrepeated(r) and r.case.cache_layout == 0)),
        Goal("load, f32 and f16, num_repeat 4", 1.0, load(lambda r: plain(r) and r.case.num_repeat == 4)),
        Goal("load, int8", 0.85, load(lambda r: r.case.format.quant_bit == 8 and r.case.format.t2 == INT8)),
        Goal("load, int4", 0.80, load(lambda r: r.case.format.t2 == INT4)),
        Goal("load in cache, of memcpy", 0.80, phase("load", Result.of_limit, in_cache)),
        Goal("store, unquantised prefill", 0.85, store(lambda r: r.case.format.t3 is None)),
        Goal("store, quantising prefill", 0.60, store(lambda r: r.case.format.t3 is not None)),
        Goal("a call in ONNX Runtime over an empty operator's, us", 2, overhead, at_most=True),
        Goal("two threads over one, of min(1.8, what the copy gains)", 1, gain),
        Goal("over standard ONNX operators, num_repeat 1", 1.7, peer(STANDARD, (1,))),
        Goal("over standard ONNX operators, num_repeat 4", 5, peer(STANDARD, (4,))),
        Goal("over the PMX reference in torch", 10, peer(PMX, (1, 4))),
    ]


def in_cache(result: Result) -> bool:
    """Warm, with outputs of 64 KiB to 1 MiB."""
    return not result.case.cold and 64 << 10 <= result.case.output_bytes <= 1 << 20


def judge(goal: Goal, results: list[Result]) -> Verdict:
    """Holds a goal against all results."""
    medians = {result.case.name: value.median for result in results for value in goal.values(result) if value}
    return Verdict(goal, medians)

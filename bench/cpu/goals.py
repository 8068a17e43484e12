"""The project's goals, and which of the measured rows reach them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from cases import FLOAT, HALF, INT4, INT8
from direct import KERNEL
from measure import Contender, Spread, ratio, time_ns
from result import Result
from runtime import IN_RUNTIME
from standard import STANDARD

# By name: the peer itself is imported only where torch is installed.
PMX = "PMX reference in torch"

THREADS = 2  # the goals are for two threads


Value = Callable[[Result], Spread | None]


@dataclass(frozen=True)
class Reason:
    """What was measured beside a row: where it can be told, why it is where it is."""

    name: str
    value: Value
    is_reach: bool = False  # whether it is how far any operator would come, in the goal's own unit


@dataclass(frozen=True)
class Goal:
    """A bound on the median of the row that `value` finds in a case."""

    name: str
    wanted: float
    value: Value
    reasons: tuple[Reason, ...] = ()
    at_most: bool = False

    def reached(self, value: Spread) -> bool:
        """Whether a row is good enough."""
        return value.median <= self.wanted if self.at_most else value.median >= self.wanted


@dataclass(frozen=True)
class Verdict:
    """A goal and its rows, by case."""

    goal: Goal
    rows: dict[str, Spread]
    reasons: dict[str, list[Spread | None]]

    @property
    def missed(self) -> dict[str, Spread]:
        """The rows that miss it, the worst first."""
        missed = {case: value for case, value in self.rows.items() if not self.goal.reached(value)}
        return dict(sorted(missed.items(), key=lambda item: item[1].median, reverse=self.goal.at_most))

    @property
    def in_reach(self) -> int | None:
        """In how many rows any operator could reach it; None where nothing tells."""
        places = [i for i, reason in enumerate(self.goal.reasons) if reason.is_reach]
        reaches = [values[places[0]] for values in self.reasons.values()] if places else []
        return sum(reach is not None and self.goal.reached(reach) for reach in reaches) if places else None

    def cells(self) -> list[str]:
        """A row of the goals table."""
        sign = "<=" if self.goal.at_most else ">="
        cells = [self.goal.name, f"{sign} {self.goal.wanted:g}"]
        if not self.rows:
            return [*cells, "not measured", "", "", ""]
        worst = (max if self.goal.at_most else min)(self.rows, key=lambda case: self.rows[case].median)
        count = f"{len(self.rows) - len(self.missed)} of {len(self.rows)}"
        reach = "" if self.in_reach is None else f"{self.in_reach} of {len(self.rows)}"
        word = "reached" if not self.missed else "missed" if len(self.missed) == len(self.rows) else "in part"
        return [*cells, word, count, reach, f"{self.rows[worst]} ({worst})"]


Of = Callable[[Result, object], Spread | None]


def phase(name: str, of: Of, chosen: Callable[[Result], bool]) -> Value:
    """The kernel's phase in the chosen cases, held against a copy."""

    def value(result: Result) -> Spread | None:
        kernel = result.find(KERNEL, name, THREADS)
        return of(result, kernel) if kernel and chosen(result) else None

    return value


def beside_phase(name: str, of: Of) -> tuple[Reason, ...]:
    """What the same traffic alone comes to, and the kernel against it."""

    def reach(result: Result) -> Spread | None:
        traffic = result.traffic(name, THREADS)
        # By however few threads it was fastest, it is held against the copies by as many as the kernel's.
        return of(result, replace(traffic, threads=THREADS)) if traffic else None

    def ours(result: Result) -> Spread | None:
        kernel = result.find(KERNEL, name, THREADS)
        return result.of_traffic(kernel) if kernel else None

    def values(result: Result) -> Spread | None:
        kernel = result.find(KERNEL, name, 1)
        return result.values_per_ns(kernel) if kernel else None

    return (
        Reason("the same traffic", reach, is_reach=True),
        Reason("ours of the same traffic", ours),
        Reason("ours, values/ns by one thread", values),
    )


def best(result: Result, name: str) -> Contender | None:
    """A peer with the number of threads that it is fastest with."""
    runs = [run for threads in range(1, THREADS + 1) if (run := result.find(name, "op", threads))]
    return min(runs, key=lambda run: time_ns(run).median, default=None)


def peer(name: str, repeats: tuple[int, ...]) -> Value:
    """The operator in ONNX Runtime against a peer at its best, where the cases are out of cache."""

    def value(result: Result) -> Spread | None:
        contender, ours = best(result, name), result.find(IN_RUNTIME, "op", THREADS)
        cold = contender and ours and result.case.cold and result.case.num_repeat in repeats
        return ratio(contender, ours) if cold else None

    return value


def beside_peer(name: str) -> tuple[Reason, ...]:
    """How many times as fast as the peer the same traffic alone is, and the operator against that."""

    def reach(result: Result) -> Spread | None:
        contender, traffic = best(result, name), result.traffic("op", THREADS)
        return ratio(contender, traffic) if contender and traffic else None

    def ours(result: Result) -> Spread | None:
        operator = result.find(IN_RUNTIME, "op", THREADS)
        return result.of_traffic(operator) if operator else None

    return Reason("the same traffic", reach, is_reach=True), Reason("ours of the same traffic", ours)


def gain(result: Result) -> Spread | None:
    """What two threads gain, of what is wanted: 1.8, or what the copy gains if that is less."""
    kernel = result.find(KERNEL, "op", THREADS)
    if not kernel or not result.case.cold:
        return None
    gained, possible = result.over_one_thread(kernel), result.copy_over_one_thread(THREADS)
    return gained.scaled(1 / min(1.8, possible.median)) if gained and possible else None


def traffic_gain(result: Result) -> Spread | None:
    """The same of the traffic alone."""
    one, all_threads = (result.traffic("op", threads) for threads in (1, THREADS))
    gained = ratio(one, all_threads) if one and all_threads else None
    possible = result.copy_over_one_thread(THREADS)
    return gained.scaled(1 / min(1.8, possible.median)) if gained and possible else None


def overhead(result: Result) -> Spread | None:
    """Microseconds of a call."""
    return result.overhead_us(THREADS)


def kernel_us(result: Result) -> Spread | None:
    """Microseconds of the same call without ONNX Runtime."""
    kernel = result.find(KERNEL, "op", THREADS)
    return time_ns(kernel).scaled(1e-3) if kernel else None


def plain(result: Result) -> bool:
    """Values of float32 or float16 that are only moved."""
    return result.case.format.t1 == result.case.format.t2 and result.case.format.t1 in (FLOAT, HALF)


def goals(of: Of) -> list[Goal]:
    """All goals, with `of` as the way to hold a phase against a copy."""

    def load(name: str, wanted: float, chosen: Callable[[Result], bool]) -> Goal:
        value = phase("load", of, lambda result: result.case.cold and chosen(result))
        return Goal(f"load, {name}", wanted, value, beside_phase("load", of))

    def store(name: str, wanted: float, chosen: Callable[[Result], bool]) -> Goal:
        value = phase("store", of, lambda result: result.case.cold and chosen(result))
        return Goal(f"store, {name}", wanted, value, beside_phase("store", of))

    def over(name: str, wanted: float, contender: str, repeats: tuple[int, ...]) -> Goal:
        return Goal(f"over {name}", wanted, peer(contender, repeats), beside_peer(contender))

    def unrepeated(result: Result) -> bool:
        return plain(result) and result.case.num_repeat == 1

    warm = phase("load", Result.of_limit, in_cache)
    call = (Reason("the kernel alone, us", kernel_us),)
    return [
        load("f32 and f16, layouts 1-3", 0.90, lambda r: unrepeated(r) and r.case.cache_layout != 0),
        load("f32 and f16, layout 0", 0.85, lambda r: unrepeated(r) and r.case.cache_layout == 0),
        load("f32 and f16, num_repeat 4", 1.0, lambda r: plain(r) and r.case.num_repeat == 4),
        load("int8", 0.85, lambda r: r.case.format.quant_bit == 8 and r.case.format.t2 == INT8),
        load("int4", 0.80, lambda r: r.case.format.t2 == INT4),
        Goal("load in cache, of memcpy", 0.80, warm, beside_phase("load", Result.of_limit)),
        store("unquantized prefill", 0.85, lambda r: r.case.format.t3 is None),
        store("quantizing prefill", 0.60, lambda r: r.case.format.t3 is not None),
        Goal("a call in ONNX Runtime over an empty operator's, us", 2, overhead, call, at_most=True),
        Goal(
            "two threads over one, of min(1.8, what the copy gains)",
            1,
            gain,
            (Reason("the same traffic", traffic_gain, is_reach=True),),
        ),
        over("standard ONNX operators, num_repeat 1", 1.7, STANDARD, (1,)),
        over("standard ONNX operators, num_repeat 4", 5, STANDARD, (4,)),
        over("the PMX reference in torch", 10, PMX, (1, 4)),
    ]


def in_cache(result: Result) -> bool:
    """Warm, with outputs of 64 KiB to 1 MiB."""
    return not result.case.cold and 64 << 10 <= result.case.output_bytes <= 1 << 20


def judge(goal: Goal, results: list[Result]) -> Verdict:
    """Holds a goal against all results."""
    found = [(result, value) for result in results if (value := goal.value(result))]
    rows = {result.case.name: value for result, value in found}
    reasons = {result.case.name: [reason.value(result) for reason in goal.reasons] for result, _ in found}
    return Verdict(goal, rows, reasons)

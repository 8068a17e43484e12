"""Measures contenders in interleaved rounds, makes figures of their times within a round, and writes the report.

    each contender is warmed up
    until there are enough rounds, or the time is over:
        each contender is measured once, beginning with another one in each round
    figure = median and quartiles, over the rounds, of what is made of one round's times

A machine is shared. Where it is known how many threads are busy while a contender runs, the process's time says which
part of it they held a processor. Rounds in which that was less do not count, if enough remain.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from math import inf, nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime

ROOT = Path(__file__).resolve().parents[1]

# A round counts if its threads held a processor for such a part of the time, provided that there are that many rounds.
ENOUGH_SHARE, ENOUGH_ROUNDS = 0.9, 3

# The processor's flags that decide which functions are used.
FLAGS = "avx2 f16c avx_vnni avx512f avx512bw avx512vbmi avx512_vnni avx512_fp16 amx_int8".split()

# In shorter runs the clocks themselves take a part of the time.
TELLING_NS = 0.2e6

# Samples of a fast run last about so long, by repetition.
SAMPLE_NS = 0.5e6


class WrongAnswer(Exception):
    """What a contender gives is not what it should give."""


class Measured(NamedTuple):
    """Nanoseconds of one iteration, and the part of the time in which its threads held a processor, if known."""

    ns: float
    share: float = nan


def nothing() -> None:
    """What most contenders do before and after they are measured."""


@dataclass
class Contender:
    """Something that is measured: one of `runs`, of which there is one for each layer, after another."""

    name: str
    runs: list[Callable[[], object]]
    threads: int = 1
    cold: bool = True  # a cold run must not be repeated on the same layer
    is_busy: bool = False  # all threads work for as long as a run takes
    by_processor: bool = False  # the time is the calling thread's processor time
    iterations: int = 1  # of one run
    rest_seconds: float = 0  # how long its threads may keep on spinning
    prepare: Callable[[], object] = nothing
    check: Callable[[], object] = nothing
    repeats: int = 1
    measured: list[Measured] = field(default_factory=list)

    def sample(self, turn: int) -> Measured:
        """Runs on the next layer."""
        self.prepare()
        run, clock = (
            self.runs[turn % len(self.runs)],
            time.thread_time_ns if self.by_processor else time.process_time_ns,
        )
        begin, cpu_begin = time.perf_counter_ns(), clock()
        for _ in range(self.repeats):
            run()
        wall, cpu = time.perf_counter_ns() - begin, clock() - cpu_begin
        self.check()
        time.sleep(self.rest_seconds)
        share = cpu / wall if self.by_processor else cpu / (self.threads * wall) if self.is_busy else nan
        return Measured((cpu if self.by_processor else wall) / (self.repeats * self.iterations), share)

    def warm_up(self) -> None:
        """Runs, and chooses how often a sample repeats a run."""
        measured = self.sample(0)
        for _ in range(0 if self.cold else 3):
            self.repeats = max(1, round(SAMPLE_NS / max(measured.ns * self.iterations, 1)))
            measured = self.sample(0)

    def is_disturbed(self) -> bool:
        """Whether a run that is long enough to tell has held its processors in too few rounds."""
        quiet = sum(not each.share < ENOUGH_SHARE for each in self.measured)
        return quiet < min(ENOUGH_ROUNDS, len(self.measured)) and self.measured[-1].ns > TELLING_NS


def run_rounds(contenders: list[Contender], rounds: int, seconds: float) -> None:
    """Measures all contenders, in turn, for `rounds` rounds or, after at least three, until the time is over.

    As long as others disturb a contender in nearly every round, there are further ones, for up to three times the time.
    """
    for contender in contenders:
        contender.warm_up()
    begin, turn = time.monotonic(), 1
    for count in range(3 * rounds):
        spent = (time.monotonic() - begin) / seconds
        enough = count >= rounds or (count >= min(3, rounds) and spent > 1)
        if enough and (spent > 3 or not any(contender.is_disturbed() for contender in contenders)):
            return
        turn += 1  # where the contenders are a multiple of the layers, each still meets every layer
        first = count % len(contenders)
        for contender in contenders[first:] + contenders[:first]:
            contender.measured.append(contender.sample(turn))
            turn += 1


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """The spread of some values, at least one."""
        low, median, high = np.quantile(values, (0.25, 0.5, 0.75))
        return cls(float(median), float(low), float(high))

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Row:
    """A figure of some contenders' times: `figure` makes it of one round's, in their order."""

    name: str
    contenders: list[Contender]
    figure: Callable[..., float]
    at_most: float = inf
    at_least: float = -inf
    unit: str = ""

    def measured(self) -> Figure:
        """The figure's spread over the quiet rounds, or over all if those are too few."""
        rounds = list(zip(*(contender.measured for contender in self.contenders)))
        quiet = [each for each in rounds if not any(one.share < ENOUGH_SHARE for one in each)]
        kept = quiet if len(quiet) >= ENOUGH_ROUNDS else rounds
        spread = Spread.of([self.figure(*(one.ns for one in each)) for each in kept])
        goal = f"<= {self.at_most:g}" if self.at_most < inf else f">= {self.at_least:g}" if self.at_least > -inf else ""
        return Figure(self.name, spread, self.unit, goal, self.at_least <= spread.median <= self.at_most)


@dataclass(frozen=True)
class Figure:
    """A measured row, which no longer holds its contenders' memory."""

    name: str
    spread: Spread
    unit: str
    goal: str
    met: bool

    @property
    def cells(self) -> list[str]:
        """A row of the table."""
        return [self.name, f"{self.spread} {self.unit}".strip(), self.goal, "" if self.met else "missed"]


def quotient(above: float, below: float) -> float:
    """How many times as long the first one takes."""
    return above / below


def fastest_of(*ns: float) -> float:
    """How many times as long the fastest of the others takes as the first."""
    return min(ns[1:]) / ns[0]


def microseconds(contender: Contender) -> Row:
    """The time of a contender."""
    return Row(contender.name, [contender], lambda ns: ns / 1e3, unit="us")


Groups = Iterable[tuple[str, Callable[[], list[Row]]]]


def arguments(description: str | None, rounds: int, quick_rounds: int, seconds: float = 4) -> argparse.ArgumentParser:
    """The command line that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{quick_rounds} rounds, and less of what takes long")
    parser.add_argument("--filter", action="append", default=[], help="a word that a group's name contains")
    parser.add_argument("--list", action="store_true", help="name the groups and end")
    parser.add_argument("--rounds", type=int, help=f"rounds of a group, at most; {rounds} unless given")
    parser.add_argument("--seconds", type=float, default=seconds, help="after which a group has no further round")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench", help="folder of the report")
    parser.set_defaults(default_rounds=(rounds, quick_rounds))
    return parser


def run(groups: Groups, title: str, chosen: argparse.Namespace) -> None:
    """Measures the groups that are chosen, each made when it is due, prints their figures, and writes the report.

    Contenders that an earlier group has measured are not measured again.
    """
    figures: list[Figure] = []
    times, begin = [], time.monotonic()
    if not chosen.list:
        print(f"kernel: {kernel()}")
    for name, make in groups:
        if not all(word in name for word in chosen.filter):
            continue
        if chosen.list:
            print(name)
            continue
        rows = make()
        contenders = list({id(each): each for row in rows for each in row.contenders if not each.measured}.values())
        if contenders:  # a group's rows may be made of what others have measured
            run_rounds(contenders, chosen.rounds or chosen.default_rounds[chosen.quick], chosen.seconds)
        for row in rows:
            figures.append(row.measured())
            print(" | ".join(figures[-1].cells), flush=True)
        for contender in contenders:
            spread = Spread.of([each.ns * 1e-6 for each in contender.measured])
            times.append({"group": name, "contender": contender.name, "threads": contender.threads} | asdict(spread))
    if chosen.list:
        return
    header = ["group", "contender", "threads", "milliseconds", "lower quartile", "upper quartile"]
    cells = [[f"{x:.4g}" if isinstance(x, float) else str(x) for x in row.values()] for row in times]
    table = markdown(["what", "figure", "goal", ""], [figure.cells for figure in figures])
    report = {"rows": [asdict(figure) for figure in figures], "times": times}
    seconds = time.monotonic() - begin
    write(chosen.out, title, seconds, report, table, "## Times of one run", markdown(header, cells))
    print(f"\n{len(figures)} figures, {sum(not figure.met for figure in figures)} not as they should be")


def write(folder: Path, title: str, seconds: float, report: dict[str, Any], *parts: str) -> None:
    """Writes a report as Markdown, of these parts, and as JSON; both say where the numbers come from."""
    folder.mkdir(parents=True, exist_ok=True)
    origin = provenance(seconds)
    (folder / f"{title}.json").write_text(json.dumps({"origin": origin} | report, indent=1) + "\n")
    said = "\n".join(f"- {name}: {value}" for name, value in origin.items())
    (folder / f"{title}.md").write_text("\n\n".join([f"# {title}", said, *parts]) + "\n")
    print(f"wrote {folder / title}.md, {title}.json")


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def kernel() -> str:
    """The CPU kernel that operators run on, which names its instruction set; unknown where the native module is old or
    not built, as it may be for benchmarks of models."""
    from native import module  # which imports this module

    try:
        return module().kernel()
    except (FileNotFoundError, AttributeError):
        return "unknown"


def provenance(seconds: float) -> dict[str, str]:
    """Where the numbers come from."""

    def git(*command: str) -> str:
        command = ("git", "-C", str(ROOT), *command)
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in cpuinfo.splitlines())}
    flags = set(fields.get("flags", "").split()) & set(FLAGS)
    family = ", ".join(f"{name.split()[-1]} {fields.get(name, '?')}" for name in ("cpu family", "model"))
    model = f"{fields.get('model name', platform.machine())}, {family}"
    versions = {"Python": platform.python_version(), "numpy": np.__version__, "onnxruntime": onnxruntime.__version__}
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": (git("rev-parse", "--short=12", "HEAD") or "unknown")
        + " with local changes" * bool(git("status", "--porcelain")),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "duration": f"{seconds:.0f} s",
        "machine": f"{model}, {cpuinfo.count('processor')} processors, {' '.join(sorted(flags))}",
        "kernel": kernel(),
        "versions": ", ".join(" ".join(version) for version in versions.items()),
    }

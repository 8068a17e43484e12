"""Figures with goals: contenders that are measured once each in a round, what is made of their times within one, and
the report of a benchmark that has such."""

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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime

# A contender that takes so many seconds for one call is measured in a few rounds only.
SLOW_SECONDS, SLOW_ROUNDS = 0.15, 3

# A round counts if its threads held a processor for such a part of the time, provided that there are so many rounds.
ENOUGH_SHARE, ENOUGH_ROUNDS = 0.9, 3

# In shorter calls the clocks themselves take a part of the time.
TELLING_SECONDS = 0.2e-3

# The round before the first, which does not count.
WARM_UP = -1

# Samples of a fast call last about so long, by repetition.
SAMPLE_SECONDS = 0.5e-3


class Measured(NamedTuple):
    """Nanoseconds of one iteration, and the part of the time in which the threads held a processor."""

    ns: float
    share: float


@dataclass
class Contender:
    """Something that is measured; `sample(turn, iterations)` runs it on the layer that is the turn's."""

    name: str
    threads: int
    sample: Callable[[int, int], Measured]
    cold: bool = True  # a cold call must not be repeated on the same layer
    rest_seconds: float = 0  # how long its threads may keep on spinning
    iterations: int = 1
    measured: dict[int, Measured] = field(default_factory=dict)  # by round; meanwhile at WARM_UP


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


def run_rounds(contenders: list[Contender], rounds: int, seconds: float) -> None:
    """Measures all contenders, in turn, for `rounds` rounds or, after at least five, until the time is over.

    As long as others disturb a contender in nearly every round, there are further ones, for up to three times the time.
    """
    for contender in contenders:
        calibrate(contender)
    begin = time.monotonic()
    turn = 1
    for round_number in range(3 * rounds):
        spent = (time.monotonic() - begin) / seconds
        over = round_number >= rounds or (round_number >= min(5, rounds) and spent > 1)
        if over and (spent > 3 or not any(map(is_disturbed, contenders))):
            break
        turn += 1  # where the contenders are a multiple of the layers, each still meets every layer
        # Each round begins with another contender, so that nobody always comes after the same one.
        first = round_number % len(contenders)
        for contender in contenders[first:] + contenders[:first]:
            if round_number < SLOW_ROUNDS or contender.measured[WARM_UP].ns < SLOW_SECONDS * 1e9:
                contender.measured[round_number] = contender.sample(turn, contender.iterations)
                time.sleep(contender.rest_seconds)
                turn += 1
    for contender in contenders:
        del contender.measured[WARM_UP]


def is_disturbed(contender: Contender) -> bool:
    """Whether a call that is long enough to tell has held its processors in too few rounds."""
    measured = [each for i, each in contender.measured.items() if i != WARM_UP]
    quiet = sum(not each.share < ENOUGH_SHARE for each in measured)
    return quiet < min(ENOUGH_ROUNDS, len(measured)) and measured[-1].ns > TELLING_SECONDS * 1e9


def calibrate(contender: Contender) -> None:
    """Warms a contender up and chooses how often a sample repeats it."""
    measured = contender.sample(0, 1)
    if not contender.cold:
        for _ in range(3):
            contender.iterations = max(1, round(SAMPLE_SECONDS * 1e9 / max(measured.ns, 1)))
            measured = contender.sample(0, contender.iterations)
    contender.measured[WARM_UP] = measured
    time.sleep(contender.rest_seconds)


def times(*contenders: Contender) -> list[list[float]]:
    """Nanoseconds of one iteration of each contender, by rounds that all of them took part in.

    Rounds in which others held the processors of one of them do not count, if enough remain.
    """
    rounds = sorted(set.intersection(*(set(contender.measured) for contender in contenders)))
    quiet = [i for i in rounds if not any(each.measured[i].share < ENOUGH_SHARE for each in contenders)]
    kept = quiet if len(quiet) >= ENOUGH_ROUNDS else rounds
    return [[contender.measured[i].ns for i in kept] for contender in contenders]


ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Row:
    """A figure of some contenders' times: `figure` makes it of one round's, in their order."""

    name: str
    contenders: list[Contender]
    figure: Callable[..., float]
    at_most: float | None = None
    at_least: float | None = None
    unit: str = ""

    def measured(self) -> Figure:
        """The figure's spread over the rounds that all contenders took part in."""
        spread = Spread.of([self.figure(*ns) for ns in zip(*times(*self.contenders))])
        low, high = (float("-inf") if self.at_least is None else self.at_least, self.at_most)
        met = low <= spread.median and (high is None or spread.median <= high)
        goal = f"<= {high:g}" if high is not None else f">= {low:g}" if self.at_least is not None else ""
        return Figure(self.name, spread, self.unit, goal, met)


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
        verdict = "" if not self.goal else "" if self.met else "missed"
        return [self.name, f"{self.spread} {self.unit}".strip(), self.goal, verdict]


def quotient(above: float, below: float) -> float:
    """How many times as long the first one takes."""
    return above / below


def fastest_of(*ns: float) -> float:
    """How many times as long the fastest of the others takes as the first."""
    return min(ns[1:]) / ns[0]


def microseconds(name: str, contender: Contender) -> Row:
    """The time of a contender."""
    return Row(name, [contender], lambda ns: ns / 1e3, unit="us")


def arguments(description: str | None, rounds: int, quick_rounds: int) -> argparse.ArgumentParser:
    """The command line that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{quick_rounds} rounds, and less of what takes long")
    parser.add_argument("--filter", action="append", default=[], help="a word that a group's name contains")
    parser.add_argument("--rounds", type=int, help=f"rounds of a group, at most; {rounds} unless given")
    parser.add_argument("--seconds", type=float, default=4, help="after which a group has no further round")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench", help="folder of the report")
    parser.set_defaults(default_rounds=(rounds, quick_rounds))
    return parser


def run(groups: Iterable[tuple[str, Callable[[], list[Row]]]], title: str, chosen: argparse.Namespace) -> None:
    """Measures the groups that are chosen, each made when it is due, prints their figures, and writes the report."""
    figures, contender_times, begin = [], [], time.monotonic()
    rounds = chosen.rounds or chosen.default_rounds[chosen.quick]
    for name, make in groups:
        if not all(word in name for word in chosen.filter):
            continue
        rows = make()
        contenders = list({id(each): each for row in rows for each in row.contenders}.values())
        run_rounds(contenders, rounds, chosen.seconds)
        measured = [row.measured() for row in rows]
        for figure in measured:
            print(" | ".join(figure.cells), flush=True)
        figures += measured
        for contender in contenders:
            milliseconds = Spread.of([ns * 1e-6 for ns in times(contender)[0]])
            contender_times.append({"group": name, "contender": contender.name, "threads": contender.threads})
            contender_times[-1] |= asdict(milliseconds)
    header = ["group", "contender", "threads", "milliseconds", "lower quartile", "upper quartile"]
    cells = [[f"{x:.4g}" if isinstance(x, float) else str(x) for x in row.values()] for row in contender_times]
    table = markdown(["what", "figure", "goal", ""], [figure.cells for figure in figures])
    report = {"rows": [asdict(figure) for figure in figures], "times": contender_times}
    seconds = time.monotonic() - begin
    write(chosen.out, title, seconds, report, table, "## Times of one call", markdown(header, cells))
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


def provenance(seconds: float) -> dict[str, str]:
    """Where the numbers come from."""

    def git(*command: str) -> str:
        command = ("git", "-C", str(ROOT), *command)
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in cpuinfo.splitlines())}
    flags = set(fields.get("flags", "").split()) & {"avx2", "f16c", "avx512f", "avx512bw", "avx512vbmi", "avx512_fp16"}
    model = f"{fields.get('model name', platform.machine())}, family {fields.get('cpu family', '?')}"
    versions = {"Python": platform.python_version(), "numpy": np.__version__, "onnxruntime": onnxruntime.__version__}
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": (git("rev-parse", "--short=12", "HEAD") or "unknown")
        + " with local changes" * bool(git("status", "--porcelain")),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "duration": f"{seconds:.0f} s",
        "machine": f"{model}, {cpuinfo.count('processor')} processors, {' '.join(sorted(flags))}",
        "versions": ", ".join(" ".join(version) for version in versions.items()),
    }

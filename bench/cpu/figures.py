"""Figures with goals: what is made of the times of some contenders, and the report of a benchmark that has such."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from measure import Contender, Spread, run_rounds, time_ns, times
from report import markdown, provenance


class Closable(Protocol):
    """Something that holds memory of the native library."""

    def close(self) -> None:
        """Frees it."""


@dataclass(frozen=True)
class Row:
    """A figure of some contenders' times: `figure` makes it of one round's, in their order."""

    name: str
    contenders: list[Contender]
    figure: Callable[..., float]
    at_most: float | None = None
    at_least: float | None = None
    unit: str = ""

    @property
    def spread(self) -> Spread:
        """The figure's spread over the rounds that all contenders took part in."""
        rounds = times(*self.contenders)
        return Spread.of([self.figure(*(each[i] for each in rounds)) for i in rounds[0]])

    @property
    def goal(self) -> str:
        """The goal in words."""
        if self.at_most is not None:
            return f"<= {self.at_most:g}"
        return f">= {self.at_least:g}" if self.at_least is not None else ""

    def is_met_by(self, spread: Spread) -> bool:
        """Whether the median is as it should be."""
        median = spread.median
        return (self.at_most is None or median <= self.at_most) and (self.at_least is None or median >= self.at_least)


@dataclass(frozen=True)
class Group:
    """Rows that are measured in the same rounds."""

    name: str
    rows: list[Row]
    cases: list[Closable] = field(default_factory=list)

    @property
    def contenders(self) -> list[Contender]:
        """All that take part, each once."""
        return list({id(contender): contender for row in self.rows for contender in row.contenders}.values())


@dataclass(frozen=True)
class Figure:
    """A measured row, which no longer holds its contenders' memory."""

    name: str
    spread: Spread
    unit: str
    goal: str
    met: bool

    @classmethod
    def of(cls, row: Row) -> Figure:
        """The figure of a row whose contenders have been measured."""
        spread = row.spread
        return cls(row.name, spread, row.unit, row.goal, row.is_met_by(spread))

    @property
    def cells(self) -> list[str]:
        """A row of the table."""
        verdict = "" if not self.goal else "" if self.met else "missed"
        return [self.name, f"{self.spread} {self.unit}".strip(), self.goal, verdict]


@dataclass(frozen=True)
class Time:
    """What one iteration of a contender took."""

    group: str
    contender: str
    threads: int
    milliseconds: Spread

    @property
    def cells(self) -> list[str]:
        """A row of the table."""
        spread = self.milliseconds
        return [self.group, self.contender, str(self.threads), *(f"{x:.4g}" for x in asdict(spread).values())]


def arguments(description: str | None, rounds: int, quick_rounds: int, out: Path) -> argparse.ArgumentParser:
    """The command line that all such benchmarks have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{quick_rounds} rounds, and less of what takes long")
    parser.add_argument("--filter", action="append", default=[], help="a word that a group's name contains")
    parser.add_argument("--rounds", type=int, help=f"rounds of a group, at most; {rounds} unless given")
    parser.add_argument("--seconds", type=float, default=4, help="after which a group has no further round")
    parser.add_argument("--out", type=Path, default=out, help="folder of the report")
    return parser


def run(groups: Iterable[Group], title: str, file: str, chosen: argparse.Namespace) -> None:
    """Measures the groups one after the other, prints their figures, and writes the report."""
    figures: list[Figure] = []
    contender_times: list[Time] = []
    begin = time.monotonic()
    for group in groups:
        run_rounds(group.contenders, chosen.rounds, chosen.seconds)
        measured = [Figure.of(row) for row in group.rows]
        for figure in measured:
            print(" | ".join(figure.cells), flush=True)
        figures += measured
        for contender in group.contenders:
            spread = time_ns(contender).scaled(1e-6)
            contender_times.append(Time(group.name, contender.name, contender.threads, spread))
        for case in group.cases:
            case.close()
    write(figures, contender_times, title, chosen.out / file, time.monotonic() - begin)
    missed = sum(not figure.met for figure in figures)
    print(f"\n{len(figures)} figures, {missed} not as they should be")


def write(figures: list[Figure], contender_times: list[Time], title: str, file: Path, seconds: float) -> None:
    """Writes the report as Markdown and as JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    origin = provenance(seconds)
    rows = {"rows": [asdict(figure) for figure in figures], "times": [asdict(each) for each in contender_times]}
    file.with_suffix(".json").write_text(json.dumps({"origin": origin, **rows}, indent=1) + "\n")
    lines = [f"# {title}", "", *(f"- {name}: {value}" for name, value in origin.items()), ""]
    lines.append(markdown(["what", "figure", "goal", ""], [figure.cells for figure in figures]))
    header = ["group", "contender", "threads", "milliseconds", "lower quartile", "upper quartile"]
    lines += ["", "## Times of one call", "", markdown(header, [each.cells for each in contender_times])]
    file.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print(f"wrote {file.with_suffix('.md')}, {file.with_suffix('.json').name}")

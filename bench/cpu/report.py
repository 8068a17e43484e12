"""The report: goals, tables, all numbers as JSON, and a plot."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import numpy as np
import onnxruntime

from direct import KERNEL
from goals import goals, judge
from measure import Spread, time_ns
from memory import huge_share
from result import COPY, Result

HEADER = [
    "case",
    "contender",
    "phase",
    "threads",
    "us",
    "GB/s",
    "of the limit",
    "of the same traffic",
    "of 4 pages",
    "over 1 thread",
    "ours over it",
]


# Calls on less say more of the call than of its arithmetic.
ARITHMETIC_BYTES = 64 << 10

LIMITS_EXPLAINED = """\
A copy moves as many bytes as the work must read once and write once, halved, by as many threads. "The limit" is the
fastest copy of the run (stores past the caches in a single stream or of four pages at once, or memcpy), by up to as
many threads; "4 pages" is the copy of four pages at once alone. In cache the limit is memcpy. A row is a case."""

TRAFFIC_EXPLAINED = """\
"The same traffic" reads every line that the operator must read, in token order, and writes as many lines to the same
places, past the caches in cold cases, with no arithmetic and no checks; the faster of two orders. It is given in the
goal's unit: it is how far an operator can come here, and a goal beyond it is out of reach. "In reach" counts the rows
in which it reaches the goal. In cache it is no ceiling for rows that are only copied: memcpy, the limit there, may be
faster."""

ARITHMETIC_EXPLAINED = """\
What the arithmetic allows where memory does not hold it up: values that one thread loads from, or stores into, a cache
in the processor's caches each nanosecond. The same traffic is that of the bytes without the arithmetic."""

OVERHEAD_EXPLAINED = """\
Beyond a call of an operator that does nothing, with the same inputs and outputs, made with the same crate. The
kernel's part is what the same call takes without ONNX Runtime, checks included."""

PEERS_EXPLAINED = """\
How many times as fast as each peer the operator is, both called from Python, on as many threads."""

ROWS_EXPLAINED = """\
Medians, with quartiles in brackets; ratios are taken round by round. 1 is the speed of the copy, above it is faster.
In ONNX Runtime, numpy and torch the call from Python is included. "Ours over it" is how many times as fast as this
contender the operator in ONNX Runtime is."""


def write(results: list[Result], folder: Path, seconds: float) -> str:
    """Writes the report into `folder`; gives the goals table and the files' names."""
    folder.mkdir(parents=True, exist_ok=True)
    origin = provenance(seconds)
    rows = [row for result in results for row in result.rows()]
    table = goals_table(results)
    (folder / "report.json").write_text(json.dumps({"origin": origin, "rows": rows}, indent=1) + "\n")
    lines = ["# Benchmark", "", *(f"- {name}: {value}" for name, value in origin.items()), ""]
    lines += ["## Goals, two threads", "", LIMITS_EXPLAINED, "", table, ""]
    lines += ["## Missed goals", "", TRAFFIC_EXPLAINED, "", *missed(results)]
    lines += ["## Arithmetic in cache, one thread", "", ARITHMETIC_EXPLAINED, "", arithmetic(results), ""]
    lines += ["## Call overhead", "", OVERHEAD_EXPLAINED, "", *overheads(results), ""]
    lines += ["## Peers", "", PEERS_EXPLAINED, "", peers_table(rows), ""]
    lines += ["## All rows", "", ROWS_EXPLAINED, "", markdown(HEADER, [cells(row) for row in rows])]
    (folder / "report.md").write_text("\n".join(lines) + "\n")
    return f"{table}\n\nwrote {folder / 'report.md'}, report.json{plotted(rows, folder)}"


def provenance(seconds: float) -> dict[str, str]:
    """Where the numbers come from."""
    versions = {"Python": platform.python_version(), "numpy": np.__version__, "onnxruntime": onnxruntime.__version__}
    return {
        "command": " ".join(["bench.py", *sys.argv[1:]]),
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "duration": f"{seconds:.0f} s",
        "machine": machine(),
        "huge pages": huge_pages(),
        "versions": ", ".join(" ".join(version) for version in versions.items()),
    }


def commit() -> str:
    """The commit, and whether the tree differs from it."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    changed = " with local changes" if git("status", "--porcelain") else ""
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + changed


def machine() -> str:
    """The processor, and what of its instructions matters."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in info.splitlines())}
    flags = set(fields.get("flags", "").split()) & {"avx2", "f16c", "avx512f", "avx512bw", "avx512vbmi", "avx512_fp16"}
    model = f"{fields.get('model name', platform.machine())}, family {fields.get('cpu family', '?')}"
    return f"{model}, {info.count('processor')} processors, {' '.join(sorted(flags))}"


def huge_pages() -> str:
    """The system's setting, and how much of the benchmark's memory lies in huge pages."""
    setting, part = chosen("/sys/kernel/mm/transparent_hugepage/enabled"), huge_share()
    return setting if part is None else f"{setting}, {part:.0%} of the memory asked for"


def chosen(path: str) -> str:
    """The bracketed word of a kernel setting."""
    text = Path(path).read_text() if Path(path).exists() else "[unknown]"
    return text.partition("[")[2].partition("]")[0]


def goals_table(results: list[Result]) -> str:
    """Every goal, against the fastest copy and, where that makes a difference, against that of four pages."""
    rows = []
    for goal, other in zip(goals(Result.of_limit), goals(Result.of_four_pages)):
        first, second = judge(goal, results).cells(), judge(other, results).cells()
        rows.append(first + (second[2:5] if second != first else ["", "", ""]))
    header = ["work", "goal", "of the limit", "rows", "in reach", "worst", "of 4 pages", "rows", "in reach"]
    return markdown(header, rows)


def missed(results: list[Result]) -> list[str]:
    """The rows below each goal, with what was measured beside them."""
    lines = []
    for goal in goals(Result.of_limit):
        verdict = judge(goal, results)
        if not verdict.missed:
            continue
        header = ["case", "ours", *(reason.name for reason in goal.reasons)]
        rows = [
            [case, *("" if value is None else str(value) for value in (ours, *verdict.reasons[case]))]
            for case, ours in verdict.missed.items()
        ]
        title = f"### {goal.name}: {'above' if goal.at_most else 'below'} {goal.wanted:g}"
        lines += [title, "", markdown(header, rows), ""]
    return lines or ["None.", ""]


def arithmetic(results: list[Result]) -> str:
    """Values per nanosecond of every warm case, beside those of the same traffic."""
    rows = []
    for result, name in product(results, ("load", "store")):
        kernel, traffic = result.find(KERNEL, name, 1), result.traffic(name, 1)
        if not result.case.cold and kernel and traffic and result.case.bytes(name) >= ARITHMETIC_BYTES:
            spreads = result.values_per_ns(kernel), result.values_per_ns(traffic), result.of_traffic(kernel)
            rows.append([result.case.name, name, *map(str, spreads)])
    return markdown(["case", "phase", "values/ns", "the same traffic", "of the same traffic"], rows)


def overheads(results: list[Result]) -> list[str]:
    """What a small call costs."""
    lines = []
    for result, threads in product(results, (1, 2)):
        kernel, spread = result.find(KERNEL, "op", threads), result.overhead_us(threads)
        if kernel and spread:
            name = f"{result.case.name}, threads: {threads}"
            lines.append(f"- {name}: {spread} us, of which the kernel {time_ns(kernel).scaled(1e-3)} us")
    return lines or ["Not measured."]


def peers_table(rows: list[dict]) -> str:
    """A line for each case with peers and number of threads."""
    rows = [row for row in rows if row["ours_over"]]
    names = list(dict.fromkeys(row["contender"] for row in rows))
    lines: dict[tuple[str, int], dict[str, str]] = {}
    for row in rows:
        line = lines.setdefault((row["case"], row["threads"]), dict.fromkeys(names, ""))
        line[row["contender"]] = str(Spread(**row["ours_over"]))
    return markdown(["case", "threads", *names], [[case, str(n), *line.values()] for (case, n), line in lines.items()])


def cells(row: dict) -> list[str]:
    """A row of the large table."""

    def spread(name: str) -> str:
        return str(Spread(**row[name])) if row[name] else ""

    numbers = [spread(name) for name in ("of_limit", "of_traffic", "of_four_pages", "over_one_thread", "ours_over")]
    names = [row["case"], row["contender"], row["phase"], str(row["threads"])]
    return [*names, f"{row['microseconds']['median']:.2f}", f"{row['gigabytes_per_second']:.1f}", *numbers]


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plotted(rows: list[dict], folder: Path) -> str:
    """Draws the plots if matplotlib is installed; what to add to the list of files."""
    try:
        from plot import draw_cases, draw_sizes
    except ModuleNotFoundError as error:
        return f"; no plots: {error}"
    rows = [row for row in rows if row["phase"] != COPY]
    draw_sizes(rows, folder / "sizes.svg")
    draw_cases(rows, folder / "cases.svg")
    return ", sizes.svg, cases.svg"

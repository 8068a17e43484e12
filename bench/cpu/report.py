"""The report: tables in Markdown, and all numbers as JSON."""

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

from kernel import KERNEL
from measure import Spread, is_disturbed, time_ns
from result import Result
from runtime import IN_RUNTIME
from tensors import huge_share

LIMIT_EXPLAINED = """\
The whole operator out of cache, of the limit: 1 is as fast. The limit is a loop that reads and writes as many bytes in
the same ratio with non-temporal stores, on as many threads, in the same rounds; the fastest of three orders (in
sequence, four pages in turn, eight). Where tensors begin past a cache line ("past16"), a second figure is the speed
relative to the same call on aligned tensors. "?" is after figures that mean little: in nearly every round other
processes took the processors."""

CACHE_EXPLAINED = """\
What the arithmetic allows where memory does not hold it up: values that the kernel loads or stores each nanosecond."""

# Calls on less say more of the call than of its arithmetic.
ARITHMETIC_BYTES = 64 << 10

OVERHEAD_EXPLAINED = """\
Beyond a call of an operator that does nothing, with the same inputs and outputs, made with the same crate. The
kernel's part is what the same call takes without ONNX Runtime, checks included."""

PEERS_EXPLAINED = """\
How many times as fast as each peer the operator is, both called from Python, on as many threads."""

ROWS_EXPLAINED = """\
Medians, with quartiles in brackets; ratios are taken round by round, and above 1 is faster. The roofline for a case's
access pattern reads and writes the rows that the operator must, without its arithmetic. In ONNX Runtime, numpy and
torch the call from Python is included. Values are those that one thread loads or stores. "Ours over it" is how many
times as fast as this contender the operator in ONNX Runtime is."""

# The columns of the large table after those that say what was measured.
RATIOS = {
    "of the limit": "of_limit",
    "of the roofline": "of_roofline",
    "of aligned": "of_aligned",
    "values/ns": "values_per_ns",
    "over 1 thread": "over_one_thread",
    "ours over it": "ours_over",
}
HEADER = ["case", "contender", "phase", "threads", "us", "GB/s", *RATIOS]


def write(results: list[Result], folder: Path, seconds: float) -> str:
    """Writes the report into `folder`; gives the table of limits and the files' names."""
    folder.mkdir(parents=True, exist_ok=True)
    origin = provenance(seconds)
    rows = [row for result in results for row in result.rows()]
    table = limits_table(results)
    (folder / "report.json").write_text(json.dumps({"origin": origin, "rows": rows}, indent=1) + "\n")
    lines = ["# Benchmark", "", *(f"- {name}: {value}" for name, value in origin.items()), ""]
    lines += ["## Of the limit", "", LIMIT_EXPLAINED, "", table, ""]
    lines += ["## In cache, one thread", "", CACHE_EXPLAINED, "", in_cache(results), ""]
    lines += ["## Call overhead", "", OVERHEAD_EXPLAINED, "", *overheads(results), ""]
    lines += ["## Peers", "", PEERS_EXPLAINED, "", peers_table(rows), ""]
    lines += ["## All rows", "", ROWS_EXPLAINED, "", markdown(HEADER, [cells(row) for row in rows])]
    (folder / "report.md").write_text("\n".join(lines) + "\n")
    return f"{table}\n\nwrote {folder / 'report.md'}, report.json"


def provenance(seconds: float) -> dict[str, str]:
    """Where the numbers come from."""
    versions = {"Python": platform.python_version(), "numpy": np.__version__, "onnxruntime": onnxruntime.__version__}
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
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


def limits_table(results: list[Result]) -> str:
    """Cold cases: the whole operator on the most threads, of the limit; with `--direct` without ONNX Runtime."""
    rows: dict[str, dict[int, str]] = {}
    for result in results:
        threads = max(result.threads())
        ours = result.find(IN_RUNTIME, "op", threads) or result.find(KERNEL, "op", threads)
        if result.case.cold:
            spreads = result.of_limit(ours), result.of_aligned(ours)
            text = "; ".join(f"{spread.median:.2f}" for spread in spreads if spread)
            row = rows.setdefault(f"{ours.name}, {threads}t: {result.case.work}", {})
            row[result.case.cache_layout] = text + "?" * is_disturbed(ours)
    header = ["work", *(f"layout {layout}" for layout in range(4))]
    return markdown(header, [[work, *(row.get(layout, "") for layout in range(4))] for work, row in rows.items()])


def in_cache(results: list[Result]) -> str:
    """The kernel's phases of every warm case that is large enough to tell, by one thread."""
    rows = []
    for result, phase in product(results, ("load", "store")):
        kernel = result.find(KERNEL, phase, 1)
        if kernel and not result.case.cold and result.case.bytes(phase) >= ARITHMETIC_BYTES:
            spreads = result.values_per_ns(kernel), result.of_limit(kernel), result.of_roofline(kernel)
            rows.append([result.case.name, phase, *(str(spread or "") for spread in spreads)])
    return markdown(["case", "phase", "values/ns", "of the limit", "of the roofline"], rows)


def overheads(results: list[Result]) -> list[str]:
    """What a small call costs."""
    lines = []
    for result in results:
        for threads in result.threads():
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

    names = [row["case"], row["contender"], row["phase"], str(row["threads"])]
    numbers = [f"{row['microseconds']['median']:.2f}", f"{row['gigabytes_per_second']:.1f}"]
    return [*names, *numbers, *(spread(name) for name in RATIOS.values())]


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

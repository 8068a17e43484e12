"""The manager's benchmark: steps and operations against memcpy, against themselves at other sizes, and against peers.

    bench_manager.py                     everything; writes manager.md and manager.json in target/bench
    bench_manager.py --quick             fewer rounds
    bench_manager.py --filter decode     only the groups whose names contain a word

Contenders are measured in turn, in one process; figures are taken within a round, and are medians with quartiles. Where
one thread works, its processor time is what counts. An answer that is wrong ends the benchmark before it is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from goals import Group, Row, groups
from measure import run_rounds
from native import Native
from report import markdown, provenance

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Runs the benchmark."""
    arguments = parse()
    rows: list[Row] = []
    begin = time.monotonic()
    for group in groups(Native(())):
        if all(word in group.name for word in arguments.filter):
            run_rounds(group.contenders, arguments.rounds, arguments.seconds)
            rows += group.rows
            show(group)
        for case in group.cases:
            case.close()
    write(rows, arguments.out, time.monotonic() - begin)
    missed = [row.name for row in rows if not row.met]
    print(f"\n{len(rows)} figures, {len(missed)} not as they should be")
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="five rounds")
    parser.add_argument("--filter", action="append", default=[], help="a word that a group's name contains")
    parser.add_argument("--rounds", type=int, help="rounds of a group, at most")
    parser.add_argument("--seconds", type=float, default=4, help="after which a group has no further round")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench", help="folder of the report")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (5 if arguments.quick else 31)
    return arguments


def show(group: Group) -> None:
    """Prints the figures of a group."""
    for row in group.rows:
        print(" | ".join(cells(row)), flush=True)


def cells(row: Row) -> list[str]:
    """A row of the table."""
    verdict = "" if not row.goal else "" if row.met else "missed"
    return [row.name, f"{row.spread} {row.unit}".strip(), row.goal, verdict]


def write(rows: list[Row], folder: Path, seconds: float) -> None:
    """Writes the report into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    origin = provenance(seconds)
    figures = [{"name": row.name, "unit": row.unit, "goal": row.goal, "figure": asdict(row.spread)} for row in rows]
    (folder / "manager.json").write_text(json.dumps({"origin": origin, "rows": figures}, indent=1) + "\n")
    lines = ["# The manager", "", *(f"- {name}: {value}" for name, value in origin.items()), ""]
    lines.append(markdown(["what", "figure", "goal", ""], [cells(row) for row in rows]))
    (folder / "manager.md").write_text("\n".join(lines) + "\n")
    print(f"wrote {folder / 'manager.md'}, manager.json")


if __name__ == "__main__":
    sys.exit(main())

"""The manager's benchmark: steps and operations against memcpy, against themselves at other sizes, and against peers.

    bench_manager.py                     everything; writes manager.md and manager.json in target/bench
    bench_manager.py --quick             fewer rounds
    bench_manager.py --filter decode     only the groups whose names contain a word

Contenders are measured in turn, in one process; figures are taken within a round, and are medians with quartiles. Where
one thread works, its processor time is what counts. An answer that is wrong ends the benchmark before it is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from figures import Group, arguments, run
from goals import groups
from native import Native

OUT = Path(__file__).resolve().parents[2] / "target/bench"


def main() -> int:
    """Runs the benchmark."""
    chosen = parse()
    run(selected(chosen), "The manager", "manager", chosen)
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    chosen = arguments(__doc__, rounds=31, quick_rounds=5, out=OUT).parse_args()
    chosen.rounds = chosen.rounds or (5 if chosen.quick else 31)
    return chosen


def selected(chosen: argparse.Namespace) -> Iterator[Group]:
    """The groups whose names contain the words."""
    for group in groups(Native(())):
        if all(word in group.name for word in chosen.filter):
            yield group
        else:
            for case in group.cases:
                case.close()


if __name__ == "__main__":
    sys.exit(main())

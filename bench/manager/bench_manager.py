"""The manager's benchmark: steps against memcpy and other sizes, rotations and sessions against the operator and files.

    bench_manager.py                     everything; writes manager.md and manager.json in target/bench
    bench_manager.py --quick             fewer rounds
    bench_manager.py --filter decode     only the groups whose names contain a word

Contenders are measured in turn, in one process; figures are taken within a round, and are medians with quartiles. Where
one thread works, its processor time is what counts. An answer that is wrong ends the benchmark before it is measured.
"""

from __future__ import annotations

import sys

from figures import arguments, run
from goals import groups
from native import Native


def main() -> int:
    """Runs the benchmark."""
    run(groups(Native()), "manager", arguments(__doc__, rounds=31, quick_rounds=5).parse_args())
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The benchmark of attention: over loops that only read, matrix products, peers, and an operator that does nothing.

    bench_attention.py                     everything; writes attention.md and attention.json in target/bench
    bench_attention.py --quick             fewer rounds, and a sample of the calls
    bench_attention.py --filter prefill    only the groups whose names contain a word

Contenders are measured in turn, in one process; figures are ratios within a round, medians with quartiles. An answer
that differs from numpy's in float64 by more than the number format explains ends the benchmark. LLAMA_CPP is the folder
of llama.cpp's libraries, a peer where there is one.
"""

from __future__ import annotations

import sys

from attention_goals import THREADS, groups
from figures import arguments, run
from native import Native


def main() -> int:
    """Runs the benchmark."""
    parser = arguments(__doc__, rounds=15, quick_rounds=7)
    parser.add_argument("--with-torch", action="store_true", help="torch as a further peer; it must be installed")
    chosen = parser.parse_args()
    run(groups(Native(1, THREADS), chosen), "attention", chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())

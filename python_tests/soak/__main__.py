"""Runs the soak and prints its table; exit code 1 if an answer was wrong or a bound does not hold."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import onnxruntime

from kvcache import find_library
from soak.process import growth
from soak.run import soak


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"onnxruntime {onnxruntime.__version__}, {find_library()}, seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        outcome = soak(arguments.steps, Path(directory), arguments.seed)
    print(f"{outcome.threads} threads, {outcome.sessions} sessions, {outcome.seconds:,.0f} s")
    for name, count in sorted(outcome.counts.items()):
        print(f"{name:<22}{count:,}")
    failed = False
    for name, before, after, most in growth(outcome.start, outcome.end):
        failed |= after - before > most
        state = "FAILED" if after - before > most else "holds"
        print(f"{name:<22}{before:,} at the start, {after:,} at the end; bound: {most:,} more, {state}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

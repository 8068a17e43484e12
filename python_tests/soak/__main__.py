"""Runs the soak and prints its table; exit code 1 if a bound does not hold. A wrong answer is raised."""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import count
from pathlib import Path

import onnxruntime

from attention_node import Attention
from kvcache import find_library
from setting import FLOAT, HALF, INT4, INT8, Setting
from soak.lane import Lane, Sizes
from soak.place import Node, new_session
from soak.process import Sample, growth, quiet_sample

FORMATS = [
    Setting(FLOAT, FLOAT),
    Setting(HALF, HALF),
    Setting(HALF, INT8, HALF, quant_bit=8),
    Setting(FLOAT, INT4, FLOAT, quant_bit=4),
]
NODES: list[Node] = [node for setting in FORMATS for node in (setting, Attention(setting))]
# Large enough that a call is split among the threads of the session: see PARALLEL_BYTES and PARALLEL_COST.
WIDE_NODES: list[Node] = [
    Setting(HALF, HALF, num_heads=8, head_dim=64),
    Attention(Setting(HALF, INT8, HALF, quant_bit=8, num_heads=4, head_dim=128)),
]
WIDE = Sizes(sequences=2, longest=600, prompt=560, max_t=1280, page_size=128)
WARM_UP, LEAST_WARM_UP = 0.2, 2000  # of the steps, and where there are few, half of them at most


def soak(
    steps: int, directory: Path, seed: int = 0, *, before_step: Callable[[Lane], None] | None = None
) -> tuple[Sample, Sample, Counter[str]]:
    """The process before and after the measured steps, and what has happened; raises what a thread has found.

    A lane for each format and operator has sessions of its own, two share theirs, and the calls of two are split.
    Tests have two lanes of their own, and disturb each of their steps.
    """
    shared, sizes = lru_cache(maxsize=None)(new_session), Sizes()
    lanes = [partial(Lane, node, new_session, sizes=sizes) for node in NODES]
    lanes += [partial(Lane, node, shared, sizes=sizes) for node in (NODES[1], NODES[1], NODES[4], NODES[4])]
    wide = [partial(Lane, node, partial(new_session, threads=2, arena=False), sizes=WIDE) for node in WIDE_NODES]
    if before_step is not None:
        lanes, wide = [partial(lane, before_step=before_step) for lane in lanes[:2]], []
    made = [lane(seed=seed + i) for i, lane in enumerate(lanes)]
    slow = [lane(seed=seed + len(made) + i) for i, lane in enumerate(wide)]
    # Everything once, so that all that is made at its first use has been made.
    for lane in made + slow:
        for _ in range(2 if lane in slow else 8):
            lane.run(iter(range(4)), 3, directory)
            lane.move(directory / f"{lane.seed}.session")

    def run(steps: int) -> None:
        turns, errors = count(), []

        def guarded(work: Callable[[], None]) -> None:
            try:
                work()
            except BaseException as error:  # raised below
                errors.append(error)
                for _ in range(steps):
                    next(turns)

        def beside() -> None:
            for lane in slow:
                lane.run(iter(range(steps)), steps // 2000, directory)

        threads = [threading.Thread(target=guarded, args=(partial(one.run, turns, steps, directory),)) for one in made]
        threads.append(threading.Thread(target=guarded, args=(beside,)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    warm_up = max(int(steps * WARM_UP), min(LEAST_WARM_UP, steps // 2))
    run(warm_up)
    start = quiet_sample()
    run(steps - warm_up)
    end = quiet_sample()
    counts: Counter[str] = Counter()
    for lane in made + slow:
        for sequence in lane.sequences:
            lane.replay(sequence)
        lane.place.manager.check()
        counts += lane.counts
        counts["answers checked"] += lane.answers.checked
    return start, end, counts


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"onnxruntime {onnxruntime.__version__}, {find_library()}, seed {arguments.seed}", flush=True)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        start, end, counts = soak(arguments.steps, Path(directory), arguments.seed)
    print(
        f"{time.perf_counter() - began:,.0f} s", *(f"{name:<22}{n:,}" for name, n in sorted(counts.items())), sep="\n"
    )
    failed = False
    for name, before, after, most in growth(start, end):
        failed |= after - before > most
        state = "FAILED" if after - before > most else "holds"
        print(f"{name:<22}{before:,} at the start, {after:,} at the end; bound: {most:,} more, {state}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

"""The soak in its short form, and that it finds what it is for: wrong bytes, and memory that is kept.

The whole of it is `make soak`. It runs in a process of its own, since it measures the process.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from array import array
from pathlib import Path

import numpy as np
import pytest

from soak.lane import Lane
from soak.plan import Plan
from soak.report import failures
from soak.resources import Sample, slope
from soak.run import soak

TESTS = Path(__file__).parent


def test_the_short_form() -> None:
    """All answers are exact, and nothing grows."""
    folders = [
        str(TESTS),
        str(TESTS.parent / "examples"),
        str(TESTS.parent / "golden"),
        os.environ.get("PYTHONPATH", ""),
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
    command = [sys.executable, "-m", "soak", "--steps", "20000"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def only(plan: Plan, fused: bool, before_step) -> None:
    """Leaves the plan one lane, which calls this before each step."""
    plan.lanes = [next(lane for lane in plan.lanes if lane.place.node.fused == fused)]
    [lane] = plan.lanes
    step = lane.step

    def changed() -> None:
        before_step(lane)
        step()

    lane.step = changed


@pytest.mark.parametrize("fused", [False, True], ids=["cache", "fused"])
def test_a_wrong_byte_is_found(fused: bool, tmp_path: Path) -> None:
    """A bit of the elements in one slot, by the step's own check or by the next replay."""

    def flip(lane: Lane) -> None:
        if lane.counts["steps"] == 300 and lane.sequences:
            sequence = lane.sequences[0]
            slot = lane.place.manager.slots(sequence.id)[0]
            cache = np.moveaxis(lane.place.memory.cache, lane.place.spec.cache_layout, 0)
            bits = cache.view(f"u{cache.dtype.itemsize}")
            bits[slot] ^= 1 << (8 * cache.dtype.itemsize - 2)

    with pytest.raises(AssertionError, match="differ"):
        soak(2000, tmp_path, prepare=lambda plan: only(plan, fused, flip))


def test_kept_memory_is_found(tmp_path: Path) -> None:
    """Five hundred bytes for each step, of which Python knows nothing, as if a library kept them."""
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    kept = array("Q")
    outcome = soak(16_000, tmp_path, prepare=lambda plan: only(plan, False, lambda _: kept.append(libc.malloc(500))))
    for address in kept:
        libc.free(address)
    assert any(failure.startswith("memory in use") for failure in failures(outcome)), failures(outcome)


def test_the_slope() -> None:
    """Bytes for each step, whatever the beginning."""
    samples = [Sample(steps, 5_000_000 + 100 * steps, 0, 0, 1, 3) for steps in range(0, 10_000, 70)]
    assert slope(samples) == pytest.approx(100)
    assert slope([Sample(0, 7, 0, 0, 1, 3)]) == 0

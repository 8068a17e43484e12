"""The soak in its short form, and that it finds what it is for: wrong bytes, and memory that is kept.

The whole of it is `make soak`. It runs in a process of its own, since it measures the process.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from soak import BOUNDS, Lane, soak


def test_the_short_form() -> None:
    """All answers are exact, and nothing grows."""
    command = [sys.executable, "-m", "soak", "--steps", "1200"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0 and ran.stdout.count("holds") == 5, ran.stdout + ran.stderr


def test_a_wrong_byte_is_found(tmp_path: Path) -> None:
    """A bit of the elements in one slot."""

    def flip(lane: Lane) -> None:
        if lane.counts["steps"] == 100 and lane.engine.running:
            slot = lane.engine.manager.slots(lane.engine.running[0].sequence)[0]
            lane.engine.cache.cache.view("u4")[slot] ^= 1 << 30

    with pytest.raises(AssertionError, match=r"differ|logits have"):
        soak(800, tmp_path, engines=1, before_step=flip)


def test_kept_memory_is_found(tmp_path: Path) -> None:
    """Bytes for each step, of which Python knows nothing, as if a library kept them."""
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    kept = array("Q")
    start, end, _ = soak(600, tmp_path, engines=1, before_step=lambda _: kept.append(libc.malloc(20_000)))
    for address in kept:
        libc.free(address)
    grown = [name for name, most in BOUNDS.items() if end[name] - start[name] > most]
    assert "memory in use" in grown, grown

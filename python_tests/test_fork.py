"""`os.fork`: a child has the memory of its parent's thread pool, but not its threads, and makes threads of its own."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import kvcache_ops
import numpy as np
import pytest
from kvcache_ops import CacheSpec, step_indices

from compare import assert_same_bits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")


def rows() -> np.ndarray:
    """KeyValueCache, 24 MiB of keys and values."""
    spec = CacheSpec(max_tokens=3072, num_kv_heads=8, head_dim=128, dtype="float32")
    current = np.random.default_rng(1).standard_normal((3072, 8, 128), np.float32)
    inputs = (current, -current, *step_indices([3072], [0], cachestarts=[0]))
    return np.stack(kvcache_ops.run(spec, *inputs, *spec.allocate()))


def call_in_a_fork(path: Path, generations: int) -> None:
    """Saves the call's result, and the number of threads after it, from a child; and from its child, and so on."""
    pid = os.fork()
    if pid:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        return
    code = 1
    signal.alarm(60 * generations)  # far more than it needs
    try:
        np.savez(path / f"{generations}.npz", result=rows(), threads=len(os.listdir("/proc/self/task")))
        if generations > 1:
            call_in_a_fork(path, generations - 1)
        code = 0
    finally:
        os._exit(code)


def test_large_calls_in_forked_processes(tmp_path: Path) -> None:
    """In a child, in its child, and in the parent meanwhile: the same bits, on threads of their own."""
    expected = rows()
    call_in_a_fork(tmp_path, generations=2)
    for generation in (1, 2):
        saved = np.load(tmp_path / f"{generation}.npz")
        assert_same_bits("rows", saved["result"], expected)
        assert saved["threads"] > 1, "the child's call has been on one thread"
    assert_same_bits("rows", rows(), expected)

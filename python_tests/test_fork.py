"""`os.fork`: a child has the memory of its parent's thread pool, but not its threads, and makes threads of its own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import kvcache_ops
import numpy as np
import pytest
from kvcache_ops import CacheSpec, step_indices
from kvcache_ops.manager import Append, HostMemory, Manager, Rope

from compare import assert_same_bits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")


def rows() -> np.ndarray:
    """KeyValueCache, 24 MiB of keys and values."""
    spec = CacheSpec(max_tokens=3072, num_kv_heads=8, head_dim=128, dtype="float32")
    current = np.random.default_rng(1).standard_normal((3072, 8, 128), np.float32)
    inputs = (current, -current, *step_indices([3072], [0], cachestarts=[0]))
    return np.stack(kvcache_ops.run(spec, *inputs, *spec.allocate()))


def update() -> np.ndarray:
    """A manager's memory after an edit that rotates 4096 rows."""
    spec = CacheSpec(max_tokens=4096, num_kv_heads=8, head_dim=64, dtype="float32", num_layers=2)
    cache, _ = memory = spec.allocate()
    cache[:] = np.random.default_rng(3).standard_normal(cache.shape, np.float32)
    manager, host = Manager(spec, rope=Rope(64)), HostMemory(spec, *memory)
    seq = manager.create()
    manager.begin_step([Append(seq, n=4096)], host).commit()
    manager.seq_add(seq, 0, -1, 7)
    manager.update(host)
    return cache


def call_in_a_fork(call: Callable[[], np.ndarray], path: Path, generations: int = 1) -> None:
    """Saves the call's result, and the number of threads after it, from a child; and from its child, and so on."""
    pid = os.fork()
    if pid:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        return
    code = 1
    signal.alarm(60 * generations)  # far more than it needs
    try:
        np.savez(path / f"{generations}.npz", result=call(), threads=len(os.listdir("/proc/self/task")))
        if generations > 1:
            call_in_a_fork(call, path, generations - 1)
        code = 0
    finally:
        os._exit(code)


@pytest.mark.parametrize("call", [rows, update], ids=lambda call: call.__name__)
def test_large_calls_in_forked_processes(call: Callable[[], np.ndarray], tmp_path: Path) -> None:
    """In a child, in its child, and in the parent meanwhile: the same bits, on threads of their own."""
    expected = call()
    call_in_a_fork(call, tmp_path, generations=2)
    for generation in (1, 2):
        saved = np.load(tmp_path / f"{generation}.npz")
        assert_same_bits(call.__name__, saved["result"], expected)
        assert saved["threads"] > 1, "the child's call has been on one thread"
    assert_same_bits(call.__name__, call(), expected)

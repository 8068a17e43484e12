"""AddressSanitizer sees the library's accesses to memory that Python gives it."""

from __future__ import annotations

import subprocess
import sys

# Tensors whose memory is smaller than they say: one is read too far, one is written too far.
READS = """
shape = (4096, 2, 8)
key = Exporter(np.ones(shape, np.float32))
key._shape[0] += 1
starts = np.array([0, 4097])
spec = kvcache_ops.CacheSpec(max_tokens=8192, num_kv_heads=2, head_dim=8, dtype="float32")
value = np.ones((4097, 2, 8), np.float32)
kvcache_ops.run(spec, key, value, starts, starts, np.array([0]), np.array([0]), 4097, 4097, *spec.allocate())
"""
WRITES = """
spec = kvcache_ops.CacheSpec(max_tokens=4096, num_kv_heads=2, head_dim=8, dtype="float32")
cache = Exporter(np.zeros(spec.cache_shape, np.float32))
cache._shape[0] += 1
starts = np.array([0, 1])
one = np.ones((1, 2, 8), np.float32)
kvcache_ops.run(spec, one, one, starts, starts, np.array([4096]), np.array([0]), 1, 1, cache)
"""
BEFORE = """
import kvcache_ops
import numpy as np
from borrowed import Exporter
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    """The program in an interpreter like this one."""
    return subprocess.run([sys.executable, "-c", BEFORE + program], capture_output=True, text=True, check=False)


def test_a_read_past_the_end_is_found() -> None:
    """A key that is a row shorter than its shape says."""
    done = run(READS)
    assert done.returncode and "heap-buffer-overflow" in done.stderr and "READ of size" in done.stderr, done.stderr


def test_a_write_past_the_end_is_found() -> None:
    """A cache that is a slot shorter than its shape says."""
    done = run(WRITES)
    assert done.returncode and "heap-buffer-overflow" in done.stderr and "WRITE of size" in done.stderr, done.stderr

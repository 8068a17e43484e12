"""How much of what takes long the tests take."""

from __future__ import annotations

import os


def every(count: int) -> int:
    """Where `KVCACHE_SAMPLE` is set, as by `make test`, one of so many is taken, else every one."""
    return count if "KVCACHE_SAMPLE" in os.environ else 1

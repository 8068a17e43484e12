"""How much of what takes long the tests take."""

from __future__ import annotations

import os


def every(count: int) -> int:
    """Of so many, one is taken; where `KVCACHE_WHOLE` is set (`make test-whole`), every one is."""
    return 1 if "KVCACHE_WHOLE" in os.environ else count

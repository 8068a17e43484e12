"""What mypy says of programs that use `kvcache_ops`; `make lint` runs it."""

from __future__ import annotations

from typing import Any, Literal, assert_type

import kvcache_ops
import numpy as np
from kvcache_ops.manager import Manager
from numpy.typing import NDArray

Number = NDArray[np.number[Any]]


def calls(current: NDArray[np.float16], query: NDArray[np.float16], out: NDArray[np.float16]) -> None:
    """Types by name or numpy's; outputs are those given, or new arrays."""
    spec = kvcache_ops.CacheSpec(64, 2, 8, dtype=np.float16, quant_bit=8)
    kvcache_ops.CacheSpec(64, 2, 8, dtype="fp16")  # type: ignore[arg-type]
    assert_type(spec.dtype, Literal["float32", "float16", "int8", "bfloat16"])
    indices = kvcache_ops.step_indices([1], [0], cachestarts=[0])
    cache = spec.allocate()
    assert_type(kvcache_ops.run(spec, current, current, *indices, *cache), tuple[Number, Number])
    given = kvcache_ops.run(spec, current, current, *indices, *cache, key=out)
    assert_type(given, tuple[NDArray[np.float16], Number])
    attended = kvcache_ops.multi_head_cache_attention(
        spec, query, current, current, **indices.attention(), cache=cache.cache, scale=cache.scale, num_heads=4
    )
    assert_type(attended, NDArray[np.floating[Any]])
    assert_type(Manager(spec, window=4).spec, kvcache_ops.CacheSpec)

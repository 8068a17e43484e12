"""Caches of more than 2^31 elements and more than 2^32 bytes, on memory that has only a few pages."""

from __future__ import annotations

import mmap
from dataclasses import replace

import numpy as np
import pytest
from kvcache_ops import Cache, CacheSpec, step_indices

from compare import assert_same_arrays, assert_same_outputs
from one_node import Node, node

SIZES = dict(layer_idx=1, num_layers=2, head_dim=64, quant_group=32, page_size=4)
NODES = [
    node(cache_layout=0, **SIZES),
    node("float16", cache_layout=1, cache_mode=1, **SIZES),
    node("float16", "int8", "float32", quant_bit=8, cache_layout=2, **SIZES),
    node("float32", "int4", "float16", quant_bit=4, cache_layout=3, cache_mode=1, **SIZES),
]
MAP_NORESERVE = 0x4000  # Linux's; the mmap module of Python 3.11 does not name it


def sparse(spec: CacheSpec) -> Cache:
    """Zeros that take memory only where they are touched."""
    small = replace(spec, max_tokens=1).allocate()
    arrays = []
    for array, nbytes in zip(small, (spec.cache_bytes, spec.scale_bytes)):
        if array is not None:
            memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
            shape = [spec.max_tokens if axis == "MaxT" else n for axis, n in zip(spec.axes, array.shape)]
            arrays.append(np.frombuffer(memory, array.dtype).reshape(shape))
    return Cache(spec, *arrays)


@pytest.mark.parametrize("stored", NODES, ids=str)
def test_both_ends_of_a_large_cache(stored: Node) -> None:
    """A sequence in the first slots and one in the last behave as in a cache of a few slots, byte for byte."""
    # More than 2^32 bytes, and of the types of at least a byte more than 2^31 elements; int4 has more than 2^33 then.
    max_t = max(2**32 * stored.spec.max_tokens // stored.spec.cache_bytes, 2**31 // (2 * 2 * 2 * 64)) + 1000
    seqlens = [7, 6]
    random = np.random.default_rng(17)
    results = []
    rows = [stored.inputs(random, step_indices([n], [0], cachestarts=[0])._asdict()) for n in (sum(seqlens), 2)]
    for size in (max_t, 16):
        spec = replace(stored.spec, max_tokens=size)
        memory, used = sparse(spec), [*range(8), *range(size - 8, size)]
        assert size == 16 or (spec.cache_bytes > 2**32 and size * 2 * 2 * 2 * 64 > 2**31)
        pages = dict(page_slots=[[0, 4], [size - 4, size - 8]], page_size=4)
        places = pages if spec.cache_mode else dict(cachestarts=[0, size - 8])
        outputs = [
            replace(stored, spec=spec).run(current | step_indices(seqlen, start_pos, **places)._asdict(), memory)
            for current, start_pos, seqlen in zip(rows, ([0, 0], seqlens), (seqlens, [1, 1]))
        ]
        results.append((outputs, dict(zip(("cache", "scale"), memory.rows(used)))))
    (outputs, after), (expected_outputs, expected) = results
    assert_same_outputs(outputs, expected_outputs)
    assert all(array.any() for array in expected.values())
    assert_same_arrays(after, expected)

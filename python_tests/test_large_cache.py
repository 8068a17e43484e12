"""Caches of more than 2^31 elements and more than 2^32 bytes, on memory of which only a few pages ever exist."""

from __future__ import annotations

import mmap
from math import prod

import numpy as np
import pytest
from kvcache_ops import step_indices

from compare import assert_same_bits, assert_same_outputs
from kvcache import BITS, LAYOUT_AXES, NUMPY_TYPES, cache_shape
from setting import FLOAT, HALF, INT4, INT8, Memory, Setting

SIZES = dict(num_layer=2, layer_idx=1, num_heads=2, head_dim=64, quant_group=32)
TYPES = [
    dict(t1=FLOAT, t2=FLOAT),
    dict(t1=HALF, t2=HALF),
    dict(t1=HALF, t2=INT8, t3=FLOAT, quant_bit=8),
    dict(t1=FLOAT, t2=INT4, t3=HALF, quant_bit=4),
]
MAP_NORESERVE = 0x4000  # Linux's; the mmap module of Python 3.11 does not name it


def sparse(shape: tuple[int, ...], element_type: int) -> np.ndarray:
    """Zeros that take memory only where they are touched."""
    size = prod(shape) * BITS[element_type] // 8
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    array = np.frombuffer(memory, NUMPY_TYPES[element_type])
    return array if element_type == INT4 else array.reshape(shape)


def memory_of(setting: Setting, max_t: int) -> Memory:
    """Sparse in-out tensors of `max_t` slots."""
    axes = dict(num_layer=setting.num_layer, num_heads=setting.num_heads, max_t=max_t)
    shape = cache_shape(setting.cache_layout, **axes, last=setting.head_dim)
    scale_shape = cache_shape(setting.cache_layout, **axes, last=setting.head_dim // setting.quant_group)
    scale = None if setting.t3 is None else sparse(scale_shape, setting.t3)
    return Memory(sparse(shape, setting.t2), scale, shape if setting.t2 == INT4 else None)


def slots_of(setting: Setting, array: np.ndarray, max_t: int, slots: list[int]) -> np.ndarray:
    """What the array has in these slots of the layer, as (slots, 2, H, row); of int4 a row is Dh / 2 bytes."""
    axes = LAYOUT_AXES[setting.cache_layout][:4]
    sizes = {"MaxT": max_t, "L": setting.num_layer, "2": 2, "H": setting.num_heads}
    rows = array.reshape(*(sizes[axis] for axis in axes), -1)
    return rows.transpose(*(axes.index(axis) for axis in ("MaxT", "L", "2", "H")), 4)[slots, setting.layer_idx]


@pytest.mark.parametrize(
    ("types", "cache_layout"), list(zip(TYPES, range(len(LAYOUT_AXES)))), ids=["float32", "float16", "int8", "int4"]
)
def test_both_ends_of_a_large_cache(types: dict[str, int], cache_layout: int) -> None:
    """A sequence in the first slots and one in the last behave as in a cache of a few slots, byte for byte."""
    cache_mode = cache_layout % 2
    setting = Setting(**types, **SIZES, cache_layout=cache_layout, cache_mode=cache_mode, page_size=4)
    # More than 2^32 bytes, and of the types of at least a byte more than 2^31 elements; int4 has more than 2^33 then.
    slot_elements = 2 * 2 * setting.num_heads * setting.head_dim
    max_t = max(2**35 // BITS[setting.t2], 2**31) // slot_elements + 1000
    assert max_t * slot_elements > 2**31 and max_t * slot_elements * BITS[setting.t2] // 8 > 2**32
    seqlens = [7, 6]
    random = np.random.default_rng(17)
    currents = [setting.current(random, sum(seqlens)), setting.current(random, 2)]
    results = []
    for size in (max_t, 16):
        memory = memory_of(setting, size)
        pages = dict(page_slots=[[0, 4], [size - 4, size - 8]], page_size=4)
        places = pages if cache_mode else dict(cachestarts=[0, size - 8])
        outputs = [
            setting.run(current | step_indices(seqlen, start_pos, **places)._asdict(), memory)
            for current, start_pos, seqlen in zip(currents, ([0, 0], seqlens), (seqlens, [1, 1]))
        ]
        used = list(range(8)) + list(range(size - 8, size))
        results.append((outputs, {name: slots_of(setting, x, size, used) for name, x in memory.arrays.items()}))
    (outputs, stored), (expected_outputs, expected_stored) = results
    assert_same_outputs(outputs, expected_outputs)
    for name, expected in expected_stored.items():
        assert expected.any()
        assert_same_bits(name, stored[name], expected)

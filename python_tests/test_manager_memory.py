"""`HostMemory`: numpy arrays written in place, and what is refused instead of being copied."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from kvcache_ops.manager import Append, HostMemory, Manager

from managed import MODES, make_manager, make_spec, refused

FORMATS = {
    "float32": {},
    "float16": {"dtype": "float16"},
    "int8": {"dtype": "float16", "quant_bit": 8, "quant_group": 2},
    "int4": {"quant_bit": 4, "quant_group": 2},
}


def filled(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Every slot differs from the others; codes, scales and numbers that are finite."""
    for array in arrays:
        array[...] = np.random.default_rng(1).integers(0, 100, array.shape)
    return [array.copy() for array in arrays]


@pytest.mark.parametrize("layout", range(4))
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("mode", MODES)
def test_rows_are_moved_in_place(mode: str, format: str, layout: int) -> None:
    """Codes and scales of all layers, keys and values, by a removal that closes up; no other slot changes."""
    spec = make_spec(mode, cache_layout=layout, **FORMATS[format])
    arrays = [array for array in spec.allocate() if array is not None]
    manager, memory = Manager(spec, mode=mode, key_form="raw"), HostMemory(spec, *arrays)
    assert memory.cache is arrays[0] and (memory.scale is arrays[1] if len(arrays) == 2 else memory.scale is None)
    s, other = manager.create(), manager.create()
    manager.begin_step([Append(other, n=3), Append(s, n=9)], memory).commit()
    before = filled(arrays)
    rows = manager.slots(s)
    manager.seq_rm(s, 2, 5)
    manager.update(memory)
    left = np.delete(np.arange(9), [2, 3, 4])
    for array, old in zip(arrays, before):
        # The axis of slots is the layout's number.
        array, old = np.moveaxis(array, layout, 0), np.moveaxis(old, layout, 0)
        np.testing.assert_array_equal(array[manager.slots(s)], old[rows[left]])
        np.testing.assert_array_equal(array[manager.slots(other)], old[manager.slots(other)])


def test_arrays_of_another_kind() -> None:
    """Each with its name, what was expected and what was given."""
    spec = make_spec(**FORMATS["int8"])
    cache, scale = spec.allocate()
    shape = spec.cache_shape
    wrong_cache = [
        ("tensor_type", "int8", "uint8", cache.astype(np.uint8)),
        ("tensor_type", "int8", "float64", np.zeros(shape)),
        ("tensor_shape", shape, shape[:4], np.zeros(shape[:4], np.int8)),
        ("tensor_shape", shape, (*shape[:4], 5), np.zeros((*shape[:4], 5), np.int8)),
        ("tensor_not_contiguous", "C-contiguous", ..., np.asfortranarray(cache)),
        ("tensor_not_contiguous", "C-contiguous", ..., np.zeros((*shape[:4], 8), np.int8)[..., ::2]),
        ("tensor_not_contiguous", "C-contiguous", ..., cache[::-1]),
        ("tensor_not_contiguous", "C-contiguous", ..., np.broadcast_to(np.int8(0), shape)),
        ("tensor_read_only", "writable", "read-only", np.frombuffer(bytes(cache.nbytes), np.int8).reshape(shape)),
    ]
    for kind, expected, got, array in wrong_cache:
        with refused(kind, name="cache", expected=expected, **({} if got is ... else {"got": got})):
            HostMemory(spec, array, scale)
    wrong_scale = [
        ("scale_missing", "float16", None, None),
        ("tensor_type", "float16", "float32", scale.astype(np.float32)),
        ("tensor_type", "float16", ">f2", scale.astype(">f2")),
        ("tensor_shape", scale.shape, (*scale.shape, 1), scale[..., None]),
    ]
    for kind, expected, got, array in wrong_scale:
        with refused(kind, name="scale", expected=expected, got=got):
            HostMemory(spec, cache, array)
    with refused("scale_unexpected", name="scale", expected=None):
        HostMemory(make_spec(), make_spec().allocate().cache, scale)
    odd = np.zeros(cache.size * 4 + 1, np.uint8)[1:].view(np.float32).reshape(shape)
    with refused("tensor_not_contiguous", name="cache"):
        HostMemory(make_spec(), odd)
    int4 = make_spec(**FORMATS["int4"])
    packed, scale = int4.allocate()
    assert packed.shape[-1] == 2 and int4.cache_shape[-1] == 4
    with refused("tensor_shape", expected=packed.shape, got=int4.cache_shape):
        HostMemory(int4, np.zeros(int4.cache_shape, np.uint8), scale)
    with refused("tensor_type", expected="uint8", got="int8"):
        HostMemory(int4, packed.view(np.int8), scale)
    for array in (None, cache.tolist(), bytes(4), memoryview(cache)):
        with pytest.raises(TypeError, match="cache"):
            HostMemory(spec, array, scale)
    with pytest.raises(TypeError):
        HostMemory(None, cache)


def test_arrays_are_looked_at_again() -> None:
    """One that has been made read-only, or another shape, is refused at its next use."""
    spec = make_spec()
    cache, _ = spec.allocate()
    manager, memory = make_manager(spec), HostMemory(spec, cache)
    s = manager.create()
    cache.flags.writeable = False
    with refused("tensor_read_only"):
        manager.begin_step([Append(s, n=1)], memory)
    cache.flags.writeable = True
    cache.shape = (-1,)
    with refused("tensor_shape", got=(cache.size,)):
        manager.update(memory)
    cache.shape = spec.cache_shape
    manager.begin_step([Append(s, n=1)], memory).commit()


def test_arrays_are_kept() -> None:
    """As long as the memory is there, and no longer."""
    spec = make_spec()

    class Array(np.ndarray):
        """An array that can be referred to weakly."""

    cache = spec.allocate().cache.view(Array)
    alive = weakref.ref(cache)
    memory = HostMemory(spec, cache)
    del cache
    gc.collect()
    assert alive() is memory.cache
    del memory
    gc.collect()
    assert alive() is None

"""What `kvcache_ops.manager` refuses before the planner sees it: ids, numbers, names and types of arguments, and arrays
that `HostMemory` would have to copy."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from kvcache_ops.manager import Append, HostMemory, Manager, Rope, find_slot, n_kv

from managed import MODES, make, make_manager, make_spec, refused, sequence

HUGE = [2**63, 2**64, -(2**63) - 1, 10**400]
TOO_SMALL = {"reserve", "pages", "max_moves", "n", "tokens", "index"}  # where something is counted
NO_INTS = [1.0, "1", None, [1], Decimal(1), np.float64(1), object()]


def calls_with_an_id(manager: Manager, memory) -> list:
    """Every method that takes a sequence, with all else legal."""
    other = manager.create()
    return [
        manager.free,
        manager.fork,
        lambda s: manager.seq_rm(s, 0, 1),
        lambda s: manager.seq_cp(s, other),
        lambda s: manager.seq_cp(other, s),
        manager.seq_keep,
        lambda s: manager.seq_add(s, 0, -1, 1),
        lambda s: manager.seq_div(s, 0, -1, 2),
        manager.seq_len,
        manager.pos_min,
        manager.pos_max,
        manager.positions,
        manager.slots,
        manager.pending,
        lambda s: manager.context_shift(s, 8, 1),
        lambda s: manager.begin_step([Append(s, n=1)], memory),
        lambda s: manager.save_seq("/nowhere/at/all", memory, s),
    ]


@pytest.mark.parametrize("mode", MODES)
def test_ids_that_no_sequence_has(mode: str) -> None:
    """Freed ones, also when their place is taken again; numbers that look like ids; and any other int."""
    manager, memory = make(mode)
    calls = calls_with_an_id(manager, memory)
    live = sequence(manager, memory, 3)
    freed = manager.create()
    manager.free(freed)
    assert manager.create() != freed
    before = manager.stats()
    with pytest.raises(ValueError, match=f"no sequence has the id {freed}: it was freed"):
        manager.free(freed)
    for call in calls:
        for s in (freed, 0, 1, -1, live & 0xFFFFFFFF, live ^ (1 << 32), 2**64 - 1, *HUGE):
            with refused("unknown_seq"):
                call(s)
        for s in NO_INTS:
            if s is not None or call is not calls[2]:  # seq_rm(None, ...) is all sequences
                with pytest.raises(TypeError):
                    call(s)
    assert manager.stats() == before and manager.seq_len(live) == 3
    manager.check()


def test_empty_and_all_sequences() -> None:
    """Positions of nothing are None; None is all sequences, in seq_rm alone."""
    manager, memory = make()
    a, b, empty = sequence(manager, memory, 5), sequence(manager, memory, 3), manager.create()
    assert manager.pos_min(empty) is manager.pos_max(empty) is None
    assert manager.positions(empty).shape == manager.slots(empty).shape == (0,)
    assert manager.seq_rm(None, 2, 4) == 2 + 1
    assert (manager.seq_len(a), manager.seq_len(b)) == (3, 2)
    assert manager.seq_rm(None) == 5
    with pytest.raises(TypeError):
        manager.seq_len(None)


@pytest.mark.parametrize("number", [*HUGE, -1, *NO_INTS])
def test_numbers_of_calls(number) -> None:
    """Beyond 64 bits: refused with the name; what is no int: TypeError. Nothing has changed."""
    manager, memory = make("runs")
    s, empty = sequence(manager, memory, 5), manager.create()
    before = manager.stats()
    calls = dict(
        p0=lambda: manager.seq_rm(s, number),
        p1=lambda: manager.seq_rm(s, 0, number),
        delta=lambda: manager.seq_add(s, 0, -1, number),
        d=lambda: manager.seq_div(s, 0, -1, number),
        reserve=lambda: manager.create(number),
        n_ctx=lambda: manager.context_shift(s, number, 1),
        n_new=lambda: manager.context_shift(s, 5, number),
        n_keep=lambda: manager.context_shift(s, 5, 1, number),
        pages=lambda: manager.compact(number),
        n=lambda: Append(s, n=[number] if number is None else number),
        first_pos=lambda: Append(s, 1, first_pos=[number] if number is None else number),
        tokens=lambda: Append(s, [number]),
        used_max=lambda: n_kv(number, 1, 1),
        head=lambda: find_slot([], number, 0, 1),
        index=lambda: manager.load_seq("/nowhere/at/all", memory, number),
    )
    if number is not None:
        calls |= dict(
            n_discard=lambda: manager.context_shift(s, 5, 1, 0, number), max_moves=lambda: manager.defrag(number)
        )
    for name, call in calls.items():
        if number == -1 and name not in TOO_SMALL:
            continue
        if isinstance(number, int):
            with refused("range", name=name):
                call()
        else:
            with pytest.raises(TypeError):
                call()
    assert manager.stats() == before and manager.seq_len(empty) == 0


def test_appends_that_are_none() -> None:
    """Either tokens or their number, and tokens of ints."""
    for arguments in ({}, {"tokens": [1], "n": 1}):
        with pytest.raises(TypeError, match="either tokens or n"):
            Append(1 << 32 | 1, **arguments)
    for tokens in ("12", [1.5], ["1"], [[1]], np.array([1.0]), np.array([[1]]), dict, 1.5):
        with pytest.raises(TypeError):
            Append(1 << 32 | 1, tokens)
    with pytest.raises(TypeError, match=r"tokens: expected one axis, got an array of shape \[2, 3\]"):
        Append(1 << 32 | 1, np.ones((2, 3), np.int64))
    with pytest.raises(TypeError):
        Append()
    with pytest.raises(TypeError):
        Append(1, 2, 3, 4, 5)


def test_managers_that_are_refused() -> None:
    """Numbers, names and types; each number out of its range is the planner's matter."""
    with refused("spec_range", name="max_pages", got=0, min=1):
        make_manager(make_spec(), max_pages=0)
    for name in ("mode", "key_form", "shift_limit"):
        with refused("spec_name", name=name, got="other"):
            make_manager(make_spec(), **{name: "other"})
    for paged, mode in ((True, "cells"), (False, "paged")):
        with refused("spec_name", name="mode", got=mode):
            Manager(make_spec(cache_mode=int(paged)), mode=mode)
    for changes in (dict(mode=1), dict(fingerprint=b"x"), dict(prefix_sharing="yes"), dict(rope=4)):
        with pytest.raises(TypeError):
            make_manager(make_spec(), **changes)
    with pytest.raises(TypeError, match=r"spec: expected kvcache_ops\.CacheSpec, got NoneType"):
        Manager(None)


def test_ropes() -> None:
    """Odd, too long for a head, of frequencies that are not finite."""
    for n_rot in (0, *HUGE):
        with refused("spec_range", name="n_rot"):
            Rope(n_rot)
    with refused("rope", n_rot=8, head_dim=4):
        Manager(make_spec(), rope=Rope(8))
    for arguments in (dict(base=float("nan")), dict(scale=float("inf")), dict(inv_freq=[1.0, float("-inf")])):
        with refused("rope"):
            Rope(4, **arguments)
    with refused("spec_name", name="style"):
        Rope(4, style="llama")
    with refused("spec_range", name="inv_freq", expected=2, got=1):
        Rope(4, inv_freq=[1.0])
    for arguments in (dict(base="1"), dict(inv_freq=1.0), dict(inv_freq=["a", "b"]), dict(n_rot=4.0)):
        with pytest.raises(TypeError):
            Rope(**{"n_rot": 4} | arguments)


def test_arrays_of_another_kind() -> None:
    """Each with its name, what was expected and what was given."""
    spec = make_spec(dtype="float16", quant_bit=8, quant_group=2)
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
    int4 = make_spec(quant_bit=4, quant_group=2)
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

"""`kvcache_ops.manager`: what is taken from Python and given to it, errors, and steps as context managers.

What the planner makes of arguments is compared with a model in Rust; here they have to reach it, each in its place.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from kvcache_ops import KvCacheError
from kvcache_ops.manager import (
    Append,
    CacheSpec,
    CapacityError,
    HostMemory,
    Manager,
    ManagerError,
    Rope,
    find_slot,
    n_kv,
)

from compare import refused
from managed import make, make_manager, make_spec, sequence

HUGE = [2**63, 2**64, -(2**63) - 1, 10**400]
NO_INTS = [1.0, "1", None, [1], Decimal(1), object()]


def test_errors_are_values_that_can_be_raised_and_pickled() -> None:
    """`kind` and `details` go with them; they are errors of the package."""
    made, memory = make(max_tokens=8)
    s = made.create()
    with pytest.raises(CapacityError) as caught:
        made.begin_step([Append(s, n=9)], memory)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), copy.kind, copy.details) == (CapacityError, "out_of_pages", {"need": 3, "free": 2})
    assert str(copy) == "3 pages are needed, 2 are free" == str(caught.value)
    assert issubclass(CapacityError, ManagerError) and issubclass(ManagerError, KvCacheError)
    assert issubclass(KvCacheError, ValueError)


def calls_with_an_id(manager: Manager, memory: HostMemory) -> list[Callable[[Any], object]]:
    """Every method that takes a sequence, with all else legal."""
    other = manager.create()
    return [
        *(manager.free, manager.fork, manager.seq_keep, manager.seq_len, manager.pos_min, manager.pos_max),
        *(manager.positions, manager.slots, manager.pending),
        lambda s: manager.seq_rm([s] if s is None else s, 0, 1),  # of None, of all sequences
        lambda s: manager.seq_cp(s, other),
        lambda s: manager.seq_cp(other, s),
        lambda s: manager.seq_add(s, 0, -1, 1),
        lambda s: manager.seq_div(s, 0, -1, 2),
        lambda s: manager.context_shift(s, 8, 1),
        lambda s: manager.begin_step([Append(s, n=1)], memory),
        lambda s: manager.save_seq("/nowhere/at/all", memory, s),
    ]


def test_ids_that_no_sequence_has() -> None:
    """Freed ones, also when their place is taken again; numbers that look like ids; and any other int."""
    manager, memory = make()
    calls = calls_with_an_id(manager, memory)
    live, freed = sequence(manager, memory, 3), manager.create()
    manager.free(freed)
    assert manager.create() != freed
    before = manager.stats()
    with pytest.raises(ValueError, match=f"no sequence has the id {freed}: it was freed"):
        manager.free(freed)
    for call in calls:
        for s in (freed, 0, -1, live & 0xFFFFFFFF, live ^ (1 << 32), 2**64 - 1, *HUGE):
            with refused("unknown_seq"):
                call(s)
        for s in NO_INTS:
            with pytest.raises(TypeError):
                call(s)
    assert manager.stats() == before and manager.seq_len(live) == 3


def test_empty_and_all_sequences() -> None:
    """Positions of nothing are None; None is all sequences, in seq_rm alone."""
    manager, memory = make()
    a, b, empty = sequence(manager, memory, 5), sequence(manager, memory, 3), manager.create()
    assert manager.pos_min(empty) is manager.pos_max(empty) is None
    assert manager.positions(empty).shape == manager.slots(empty).shape == (0,)
    assert manager.seq_rm(None, 2, 4) == 2 + 1
    assert (manager.seq_len(a), manager.seq_len(b), manager.seq_rm(None)) == (3, 2, 5)


@pytest.mark.parametrize("number", [*HUGE, -1, *NO_INTS])
def test_numbers_of_calls(number: Any) -> None:
    """A number beyond 64 bits, or a negative count, is refused by name; what is no int is a TypeError."""
    manager, memory = make("runs")
    s = sequence(manager, memory, 5)
    before, given = manager.stats(), [number] if number is None else number  # None is a default of some
    counts = dict(
        reserve=lambda: manager.create(number),
        pages=lambda: manager.compact(number),
        max_moves=lambda: manager.defrag(given),
        n=lambda: Append(s, n=given),
        tokens=lambda: Append(s, [number]),
        index=lambda: manager.load_seq("/nowhere/at/all", memory, number),
    )
    others = dict(
        p0=lambda: manager.seq_rm(s, number),
        p1=lambda: manager.seq_rm(s, 0, number),
        delta=lambda: manager.seq_add(s, 0, -1, number),
        d=lambda: manager.seq_div(s, 0, -1, number),
        n_ctx=lambda: manager.context_shift(s, number, 1),
        n_new=lambda: manager.context_shift(s, 5, number),
        n_keep=lambda: manager.context_shift(s, 5, 1, number),
        n_discard=lambda: manager.context_shift(s, 5, 1, 0, given),
        first_pos=lambda: Append(s, 1, first_pos=given),
        used_max=lambda: n_kv(number, 1, 1),
        head=lambda: find_slot([], number, 0, 1),
    )
    for name, call in (counts if number == -1 else counts | others).items():
        with refused("range", name=name) if isinstance(number, int) else pytest.raises(TypeError):
            call()
    assert manager.stats() == before


@pytest.mark.parametrize("tokens", [np.array([3, 1, 2]), (3, 1, 2), range(1, 4), iter([4, 4]), np.uint32([9])])
def test_tokens_of_any_kind(tokens: Any) -> None:
    """Lists, arrays of any integer type, contiguous or not, and other iterables."""
    manager, memory = make()
    expected = [4, 4] if isinstance(tokens, type(iter([]))) else [int(token) for token in tokens]
    with manager.begin_step([Append(manager.create(), tokens)], memory) as step:
        assert step.token_ids.tolist() == expected
    for kind in ("i1", "u1", "i2", "i4", "u4", "i8", "u8", ">i4", ">i8"):
        assert Append(manager.create(), np.arange(12).astype(kind)[::3]).tokens == [0, 3, 6, 9], kind
    assert Append(manager.create(), np.int64(7)).tokens == Append(manager.create(), np.array(7)).tokens == [7]


def test_appends() -> None:
    """A copy of the tokens, their number, and the position; either tokens or their number, and tokens of ints."""
    tokens, s = [5, 2**32 - 1], 1 << 32 | 1
    append = Append(s, tokens, first_pos=3)
    tokens[0] = 6
    assert (append.s, append.tokens, append.n, append.first_pos) == (s, [5, 2**32 - 1], 2, 3)
    assert repr(append) == f"Append({s}, tokens=[5, 4294967295], first_pos=3)"
    assert (Append(s, n=4).tokens, Append(s, n=4).n) == (None, 4)
    capped = Append(s, n=4, most_cached=2)
    assert (repr(capped), capped.most_cached) == (f"Append({s}, n=4, most_cached=2)", 2)
    for arguments in ({}, {"tokens": [1], "n": 1}):
        with pytest.raises(TypeError, match="either tokens or n"):
            Append(s, **arguments)
    for wrong in ("12", [1.5], ["1"], [[1]], np.array([1.0]), dict, 1.5):
        with pytest.raises(TypeError):
            Append(s, wrong)
    with pytest.raises(TypeError, match=r"tokens: expected one axis, got an array of shape \[2, 3\]"):
        Append(s, np.ones((2, 3), np.int64))
    for arguments in ((), (1, 2, 3, 4, 5)):
        with pytest.raises(TypeError):
            Append(*arguments)


def test_what_is_no_append_is_a_type_error() -> None:
    """What is no Append, or no HostMemory, is a TypeError."""
    manager, memory = make()
    s = manager.create()
    for appends in (None, 5, [s], [Append(s, n=1), (s, 1)], "appends"):
        with pytest.raises(TypeError):
            manager.begin_step(appends, memory)
    for wrong in (None, manager.spec.allocate().cache):
        with pytest.raises(TypeError):
            manager.begin_step([Append(s, n=1)], wrong)
    with refused("memory_spec", expected=(32, 2, 2, 2, 4), got=(64, 2, 2, 2, 4)):
        make(max_tokens=32)[0].begin_step([], memory)


def test_managers_that_are_refused() -> None:
    """Names and types; each number out of its range is the planner's matter."""
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
    """`scale` multiplies frequencies, whichever way they are given; odd sizes and what is not finite are refused."""
    assert Rope(4, base=100.0, scale=0.5).inv_freq == [0.5, 0.05]
    assert Rope(4, inv_freq=np.array([1.0, 0.25]), scale=2.0).inv_freq == [2.0, 0.5]
    assert (Rope(6, style="gptj").style, Rope(6).style, Rope(6).n_rot) == ("gptj", "neox", 6)
    assert Rope(4) == Rope(4, base=1e4) != Rope(4, style="gptj")
    for n_rot in (0, *HUGE):
        with refused("spec_range", name="n_rot"):
            Rope(n_rot)
    with refused("rope"):
        Rope(4, scale=float("inf"))
    with refused("spec_name", name="style"):
        Rope(4, style="llama")
    with refused("spec_range", name="inv_freq", expected=2, got=1):
        Rope(4, inv_freq=[1.0])
    for arguments in (dict(base="1"), dict(inv_freq=1.0), dict(inv_freq=["a", "b"]), dict(n_rot=4.0)):
        with pytest.raises(TypeError):
            Rope(**{"n_rot": 4} | arguments)


INT8 = make_spec(dtype="float16", quant_bit=8, quant_group=2)
INT4 = make_spec(quant_bit=4, quant_group=2)
SHAPE = INT8.cache_shape


@pytest.mark.parametrize(
    ("spec", "kind", "name", "expected", "got", "change"),
    [
        (INT8, "tensor_shape", "cache", SHAPE, (*SHAPE[:4], 8), lambda x: x.repeat(2, -1)),
        (INT8, "tensor_not_contiguous", "cache", "C-contiguous", ..., np.asfortranarray),
        (INT8, "tensor_not_contiguous", "cache", "C-contiguous", ..., lambda x: x.repeat(2, -1)[..., ::2]),
        (INT8, "tensor_not_contiguous", "cache", "C-contiguous", ..., lambda x: x[::-1]),
        (INT8, "tensor_not_contiguous", "cache", "C-contiguous", ..., lambda x: np.broadcast_to(np.int8(0), SHAPE)),
        (INT8, "tensor_read_only", "cache", "writable", "read-only",
            lambda x: np.frombuffer(x.tobytes(), np.int8).reshape(SHAPE)),
        (INT8, "tensor_type", "scale", "float16", ">f2", lambda x: x.astype(">f2")),
        (INT4, "tensor_shape", "cache", (*SHAPE[:4], 2), SHAPE, lambda x: x.repeat(2, -1)),
        (INT4, "tensor_type", "cache", "uint8", "int8", lambda x: x.view(np.int8)),
        (make_spec(), "tensor_not_contiguous", "cache", ..., ...,
            lambda x: np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(SHAPE)),
    ],
)  # fmt: skip
def test_arrays_of_another_kind(spec: CacheSpec, kind: str, name: str, expected: Any, got: Any, change: Any) -> None:
    """The error has the array's name, what was expected and what was given."""
    arrays = dict(zip(("cache", "scale"), spec.allocate()))
    details = {key: value for key, value in dict(expected=expected, got=got).items() if value is not ...}
    with refused(kind, name=name, **details):
        HostMemory(spec, **arrays | {name: change(arrays[name])})


def test_what_is_no_array() -> None:
    """A TypeError; an array that has been made read-only, or another shape, is refused at its next use."""
    spec = make_spec()
    cache, _ = spec.allocate()
    for array in (None, cache.tolist(), bytes(4), memoryview(cache)):
        with pytest.raises(TypeError, match="cache"):
            HostMemory(spec, array)
    with pytest.raises(TypeError):
        HostMemory(None, cache)
    manager, memory = make_manager(spec), HostMemory(spec, cache)
    s = manager.create()
    cache.flags.writeable = False
    with refused("tensor_read_only"):
        manager.begin_step([Append(s, n=1)], memory)
    cache.flags.writeable = True
    cache.shape = (-1,)
    with refused("tensor_shape", got=(cache.size,)):
        manager.update(memory)


def test_arguments_reach_the_planner() -> None:
    """Each argument does what its name says."""
    manager, memory = make(max_tokens=128)
    a = sequence(manager, memory, 10)
    assert manager.seq_rm(a, 2, 5) == 3
    manager.seq_add(a, 5, -1, -3)
    assert manager.positions(a).tolist() == list(range(7)) and manager.pending(a).tolist() == [0, 0] + [-3] * 5
    manager.update(memory)
    assert not manager.pending(a).any()
    b = sequence(manager, memory, 8)
    manager.seq_div(b, 0, 4, 2)
    assert manager.positions(b).tolist() == [0, 0, 1, 1, 4, 5, 6, 7]
    copy, fork = manager.create(), manager.fork(b)
    assert manager.seq_cp(b, copy, 1, 5) == 3 and manager.positions(copy).tolist() == [1, 1, 4]
    assert manager.slots(fork).tolist() == manager.slots(b).tolist()
    c = sequence(manager, memory, 16)
    assert [manager.context_shift(c, n, 0, 2) for n in (17, 16)] == [0, 7] and manager.seq_len(c) == 9
    assert manager.context_shift(c, 10, 1, 1, 3) == 3 and manager.seq_len(c) == 6
    manager.free(a)
    manager.update(memory)
    ((_, dst, length),) = manager.compact(1)
    assert dst == 0 and length <= 4
    manager.update(memory)
    assert len(manager.defrag(1)) <= 1 and manager.stats()["sequences"] == 4
    manager.seq_keep(b)
    assert (manager.seq_len(b), manager.seq_len(c), manager.seq_len(fork)) == (8, 0, 0)


def test_arguments_of_a_manager_reach_the_planner() -> None:
    """Each argument of a manager changes a step or the figures; so do a sequence's salt and reserve."""
    manager, memory = make("runs", window=4, sink=1, slack=1)
    s = manager.create(8)
    manager.begin_step([Append(s, n=3)], memory).commit()
    assert manager.stats()["used"] == 8
    manager.begin_step([Append(s, n=4)], memory).commit()
    assert manager.positions(s).tolist() == [0, 3, 4, 5, 6]
    cells, memory = make("cells", pad=16, defrag_threshold=0.1)
    with cells.begin_step([Append(cells.create(), n=3)], memory) as step:
        assert step.key_positions.shape == (19,) and cells.stats()["n_kv"] == 16
    manager, memory = make(max_pages=5)
    for salt, cached in ((b"", 0), (b"", 8), (b"salt", 0)):
        with manager.begin_step([Append(manager.create(salt=salt), tokens=range(9))], memory) as step:
            assert step.cached.tolist() == [cached] and step.cachestarts.shape == (1, 5)
    manager, memory = make(prefix_sharing=False, shift_limit=1)
    for _ in range(2):
        s = manager.create()
        with manager.begin_step([Append(s, tokens=range(9))], memory) as step:
            assert step.cached.tolist() == [0]
    manager.seq_add(s, 0, -1, 1)
    manager.update(memory)
    with refused("shift_limit", shifts=1, limit=1):
        manager.seq_add(s, 0, -1, 1)
    raw, memory = make(key_form="raw", rope=None)
    s = sequence(raw, memory, 3)
    raw.seq_add(s, 0, -1, 1)
    assert raw.pending(s).tolist() == [0, 0, 0]

"""Steps of `kvcache_ops.manager`: their tensors and masks, and how they end as context managers."""

from __future__ import annotations

import gc
import pickle
from contextlib import suppress

import numpy as np
import pytest
from kvcache_ops.manager import (
    Append,
    CapacityError,
    StateCache,
)

from compare import refused
from managed import make, sequence

TENSORS = [
    *("token_ids", "positions", "seqstarts", "kvstarts", "cachestarts", "start_pos", "max_seqlen", "max_kvlen"),
    *("key_positions", "order", "cached", "decoding_batches"),
]


def test_tensors_of_a_step() -> None:
    """Entries of one token come first; scalars have rank 0; everything is ready to be bound."""
    manager, memory = make()
    a, b, c = (manager.create() for _ in range(3))
    manager.begin_step([Append(b, tokens=[7, 8, 9])], memory).commit()
    step = manager.begin_step([Append(a, tokens=[1, 2]), Append(b, tokens=3), Append(c, n=5, first_pos=10)], memory)
    expected = dict(
        token_ids=[3, 1, 2, -1, -1, -1, -1, -1],
        positions=[3, 0, 1, 10, 11, 12, 13, 14],
        seqstarts=[0, 1, 3, 8],
        kvstarts=[0, 4, 6, 11],
        cachestarts=[[0, -1], [4, -1], [8, 12]],
        start_pos=[3, 0, 0],
        max_seqlen=5,
        max_kvlen=5,
        key_positions=[0, 1, 2, 3, 0, 1, 10, 11, 12, 13, 14],
        order=[1, 0, 2],
        cached=[0, 0, 0],
        decoding_batches=1,
    )
    assert expected.keys() == set(TENSORS)
    for name, numbers in expected.items():
        array = getattr(step, name)
        assert array.dtype == np.int64 and array.flags.c_contiguous and array.flags.aligned, name
        assert array.shape == np.shape(numbers) and (array == numbers).all(), name
    step.commit()
    assert manager.seq_len(c) == 5 and (manager.pos_min(c), manager.pos_max(c)) == (10, 14)
    for by_row in (manager.positions(c), manager.slots(c), manager.pending(c)):
        assert by_row.dtype == np.int64 and by_row.shape == (5,)


def test_masks() -> None:
    """Both types, by name and as numpy's; windows and slopes. (Which keys a mask leaves out: a model in Rust.)"""
    manager, memory = make(window=3)
    step = manager.begin_step([Append(manager.create(), n=6)], memory)
    for dtype in ("float32", "float16", np.float32, np.dtype("float16")):
        for window, seen in (("spec", 3), (None, 6), (2, 2)):
            mask = step.mask(dtype, window=window)
            assert mask.dtype == np.dtype(dtype) and mask.flags.c_contiguous
            assert (mask[5] == 0).tolist() == [False] * (6 - seen) + [True] * seen
    assert step.mask(alibi=[0.5, np.float32(0.25)])[:, 5, 4].tolist() == [-0.5, -0.25]
    for kind, details, arguments in [
        ("spec_name", dict(name="dtype"), dict(dtype="float64")),
        ("spec_name", dict(name="window"), dict(window="wide")),
        ("range", dict(name="window", got=0), dict(window=0)),
        ("range", dict(name="alibi", index=1), dict(alibi=[1.0, float("nan")])),
    ]:
        with refused(kind, **details):
            step.mask(**arguments)
    for wrong in (dict(dtype="no such type"), dict(alibi=0.5)):
        with pytest.raises(TypeError):
            step.mask(**wrong)


def test_a_step_ends_once() -> None:
    """Committed, rolled back, left by an exception, or dropped; an ended step does not end a new one."""
    manager, memory = make()
    s = sequence(manager, memory, 3)
    before = manager.slots(s).tolist(), manager.stats()
    old = manager.begin_step([Append(s, n=2)], memory)
    old.rollback()
    with pytest.raises(ZeroDivisionError), manager.begin_step([Append(s, n=2)], memory):
        _ = 1 / 0
    dropped = manager.begin_step([Append(s, n=2)], memory)
    del dropped
    gc.collect()
    with manager.begin_step([Append(s, n=2)], memory) as step:
        step.rollback()  # by hand: leaving does nothing more
    assert (manager.slots(s).tolist(), manager.stats()) == before
    manager.check()
    new = manager.begin_step([Append(s, n=2)], memory)
    for again in (old.commit, old.rollback, old.mask, lambda old=old: old.key_positions):
        with refused("step_closed"):
            again()
    del old
    gc.collect()
    new.commit()
    with manager.begin_step([Append(s, n=2)], memory) as step:
        step.commit()
    with manager.begin_step([Append(s, n=2)], memory) as step:
        pass
    assert manager.seq_len(s) == 9
    step = manager.begin_step([Append(s, n=3)], memory)
    del manager, memory
    gc.collect()
    assert step.key_positions.tolist() == list(range(12))  # what it has is kept
    step.commit()


def test_arrays_of_a_step_are_its_own() -> None:
    """One that is kept never changes, nor does a view of a view; what is written reaches neither manager nor step."""
    manager, memory = make(max_tokens=512)
    seqs = [manager.create() for _ in range(5)]
    kept = []
    for i in range(30):
        step = manager.begin_step([Append(s, tokens=[i] * (1 + (s + i) % 3)) for s in seqs], memory)
        views = [getattr(step, name)[...].view().reshape(-1)[::-1] for name in TENSORS] + [step.mask()[1:]]
        kept.append((views, [view.copy() for view in views]))
        step.commit()
        del step
    for views, copies in kept:
        for view, copy in zip(views, copies):
            np.testing.assert_array_equal(view, copy)
    manager, memory = make()
    s = manager.create()
    with manager.begin_step([Append(s, n=6)], memory) as step:
        for name in TENSORS:
            getattr(step, name)[...] = 99
    assert manager.slots(s).tolist() == manager.positions(s).tolist() == list(range(6))
    with manager.begin_step([Append(s, n=1)], memory) as step:
        assert step.cachestarts.tolist() == [[0, 4]] and step.key_positions.tolist() == list(range(7))


def test_both_steps_commit_or_neither() -> None:
    """A hybrid model's: rows and a state by one id; an exception rolls both back."""
    manager, memory = make()
    states, s = StateCache(4, 8), manager.create()
    assert states.create(s) == s
    for fails, length in ((False, 3), (True, 3), (False, 6)):
        tail = states.tail(s)
        with suppress(RuntimeError):
            with manager.begin_step([Append(s, n=3)], memory), states.begin_step({s: 3}) as parts:
                ((seqs, n_each, src, dst),) = parts
                assert (list(seqs), n_each) == ([s], 3) and src.dtype == dst.dtype == np.int64
                assert src.tolist() == [-1 if tail is None else tail] != dst.tolist()
                if fails:
                    raise RuntimeError
        assert manager.seq_len(s) == length == states.pos_max(s) + 1
    fork = manager.fork(s)
    assert states.fork(s, fork) == fork and states.tail(fork) == states.tail(s) is not None


def test_states() -> None:
    """A dropped step is rolled back, but a state that is written in place is lost; refusals as the manager's."""
    states = StateCache(1, 8)
    assert (states.size, states.nbytes) == (1, 8)
    a = states.create()
    states.begin_step({a: 5}).commit()
    with refused("partial_state"):
        states.seq_rm(a, 0, 2)
    with pytest.raises(CapacityError):
        states.create()
    step = states.begin_step({a: 1})  # there is no free cell
    assert [(split[1], list(split[2]), list(split[3])) for split in step] == [(1, [0], [0])]
    with refused("step_open"):
        states.free(a)
    del step
    with refused("lost"):
        states.tail(a)
    states.seq_rm(a)
    assert states.tail(a) is None
    with pytest.raises(TypeError):
        pickle.dumps(states)

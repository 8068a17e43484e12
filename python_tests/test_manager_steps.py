"""Steps of `kvcache_ops.manager`: their arrays, their end, and what is refused while one is open."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from kvcache_ops.manager import Append, HostMemory, Manager, Step

from managed import make, refused, sequence
from test_manager_interface import TENSORS


def state(manager: Manager, seqs: list[int]) -> list:
    """What a rollback must restore."""
    rows = [[manager.positions(s).tolist(), manager.slots(s).tolist(), manager.pending(s).tolist()] for s in seqs]
    manager.check()
    return [*rows, manager.stats()]


def contents(step: Step) -> dict[str, np.ndarray]:
    """Copies of all arrays of an open step."""
    return {name: getattr(step, name).copy() for name in TENSORS}


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


@pytest.mark.parametrize("tokens", [np.array([3, 1, 2]), (3, 1, 2), range(1, 4), iter([4, 4]), np.uint32([9])])
def test_tokens_of_any_kind(tokens) -> None:
    """Lists, arrays of any integer type, contiguous or not, and other iterables."""
    manager, memory = make()
    expected = [4, 4] if isinstance(tokens, type(iter([]))) else [int(token) for token in tokens]
    with manager.begin_step([Append(manager.create(), tokens)], memory) as step:
        assert step.token_ids.tolist() == expected
    for kind in ("i1", "u1", "i2", "i4", "u4", "i8", "u8", ">i4", ">i8"):
        array = np.arange(12).astype(kind)[::3]
        assert Append(manager.create(), array).tokens == [0, 3, 6, 9], kind
    assert Append(manager.create(), np.int64(7)).tokens == Append(manager.create(), np.array(7)).tokens == [7]


def test_a_step_ends_once() -> None:
    """Committed, rolled back, left by an exception, or dropped."""
    manager, memory = make()
    s = sequence(manager, memory, 3)
    before = state(manager, [s])

    step = manager.begin_step([Append(s, n=2)], memory)
    step.rollback()
    assert state(manager, [s]) == before
    for again in (step.commit, step.rollback, step.mask):
        with refused("step_closed"):
            again()
    with refused("step_closed"):
        _ = step.key_positions

    with pytest.raises(ZeroDivisionError), manager.begin_step([Append(s, n=2)], memory):
        _ = 1 / 0
    assert state(manager, [s]) == before

    step = manager.begin_step([Append(s, n=2)], memory)
    del step
    gc.collect()
    assert state(manager, [s]) == before

    with manager.begin_step([Append(s, n=2)], memory) as step:
        step.rollback()  # by hand: leaving does nothing more
    assert state(manager, [s]) == before
    with manager.begin_step([Append(s, n=2)], memory) as step:
        step.commit()
    with manager.begin_step([Append(s, n=2)], memory):
        pass
    assert manager.seq_len(s) == 7


def test_an_old_step_does_not_end_a_new_one() -> None:
    """Neither when it is dropped nor when it is asked to."""
    manager, memory = make()
    s = manager.create()
    old = manager.begin_step([Append(s, n=1)], memory)
    old.commit()
    new = manager.begin_step([Append(s, n=1)], memory)
    with refused("step_closed"):
        old.rollback()
    del old
    gc.collect()
    new.commit()
    assert manager.seq_len(s) == 2


def test_a_step_outlives_its_manager() -> None:
    """What it has is kept."""
    manager, memory = make()
    step = manager.begin_step([Append(manager.create(), n=3)], memory)
    del manager, memory
    gc.collect()
    assert step.key_positions.tolist() == [0, 1, 2]
    step.commit()


def test_while_a_step_is_open_only_questions_are_answered(tmp_path) -> None:
    """The manager refuses the rest by one error, also where the binding has work of its own before it asks."""
    manager, memory = make()
    s, path = sequence(manager, memory, 3), tmp_path / "session"
    manager.save(path, memory)
    step = manager.begin_step([Append(s, n=2)], memory)
    during = state(manager, [s])
    for change in [
        manager.create,
        lambda: manager.free(s),
        lambda: manager.seq_rm(None),
        lambda: manager.update(memory),
        lambda: manager.begin_step([Append(s, n=1)], memory),
        lambda: manager.save_seq(path, memory, s),
        lambda: manager.load(path, memory),
    ]:
        with refused("step_open"):
            change()
    assert state(manager, [s]) == during
    step.commit()
    assert manager.seq_len(s) == 5


def test_an_array_that_is_kept_never_changes() -> None:
    """However many steps follow; nor does a view of a view, when the array and the step are gone."""
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


def test_a_step_writes_only_its_own_arrays() -> None:
    """They are writable; what a program writes reaches neither the manager nor a later step."""
    manager, memory = make()
    s = manager.create()
    step = manager.begin_step([Append(s, n=6)], memory)
    for name in TENSORS:
        getattr(step, name)[...] = 99
    step.commit()
    assert manager.slots(s).tolist() == manager.positions(s).tolist() == list(range(6))
    step = manager.begin_step([Append(s, n=1)], memory)
    assert contents(step)["cachestarts"].tolist() == [[0, 4]]
    assert step.key_positions.tolist() == list(range(7))


def test_masks() -> None:
    """Windows and sinks; both types, by name and as numpy's; slopes."""
    manager, memory = make(window=3, sink=1)
    step = manager.begin_step([Append(manager.create(), n=6)], memory)
    distance = np.arange(6)[:, None] - np.arange(6)
    for window, seen in [("spec", (distance < 3) | (np.arange(6) == 0)), (None, True), (2, distance < 2)]:
        visible = (distance >= 0) & (seen | (np.arange(6) == 0))
        for dtype in ("float32", "float16", np.float32, np.dtype("float16")):
            mask = step.mask(dtype, window=window)
            assert mask.dtype == np.dtype(dtype) and mask.flags.c_contiguous
            np.testing.assert_array_equal(mask, np.where(visible, 0, -np.inf).astype(dtype))
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


def test_what_is_no_append_is_a_type_error() -> None:
    """So is memory that is none."""
    manager, memory = make()
    s = manager.create()
    for appends in (None, 5, [s], [Append(s, n=1), (s, 1)], "appends"):
        with pytest.raises(TypeError):
            manager.begin_step(appends, memory)
    for wrong in (None, manager.spec.allocate().cache):
        with pytest.raises(TypeError):
            manager.begin_step([Append(s, n=1)], wrong)
    other, _ = make(max_tokens=32)
    with refused("memory_spec", expected=(32, 2, 2, 2, 4), got=(64, 2, 2, 2, 4)):
        other.begin_step([], memory)
    assert isinstance(memory, HostMemory) and manager.stats()["used"] == 0

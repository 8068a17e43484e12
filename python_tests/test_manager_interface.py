"""Values and errors of `kvcache_ops.manager`. (That names and signatures are those of the stubs, mypy tells.)"""

from __future__ import annotations

import inspect
import pickle
from contextlib import suppress

import numpy as np
import pytest
from kvcache_ops.manager import (
    Append,
    CacheSpec,
    CapacityError,
    HostMemory,
    Manager,
    ManagerError,
    Rope,
    StateCache,
    Step,
    self_extend_positions,
)

from managed import make, refused, sequence

TENSORS = [
    *("token_ids", "positions", "seqstarts", "kvstarts", "cachestarts", "start_pos", "max_seqlen", "max_kvlen"),
    *("key_positions", "order", "cached", "decoding_batches"),
]


def test_every_attribute_has_a_docstring() -> None:
    """Those of arguments are described where they are given."""
    for kind in (Manager, Step, HostMemory, Append):
        for name in dir(kind):
            if not name.startswith("_"):
                assert inspect.getdoc(getattr(kind, name)), f"{kind.__name__}.{name}"


def test_a_rope_has_its_frequencies() -> None:
    """`scale` multiplies them, whichever way they are given."""
    assert Rope(4, base=100.0, scale=0.5).inv_freq == [0.5, 0.05]
    assert Rope(4, inv_freq=np.array([1.0, 0.25]), scale=2.0).inv_freq == [2.0, 0.5]
    assert (Rope(6, style="gptj").style, Rope(6).style, Rope(6).n_rot) == ("gptj", "neox", 6)
    assert Rope(4) == Rope(4, base=1e4) != Rope(4, style="gptj")


def test_errors_are_values_that_can_be_raised_and_pickled() -> None:
    """`kind` and `details` go with them."""
    made, memory = make(max_tokens=8)
    s = made.create()
    with pytest.raises(CapacityError) as caught:
        made.begin_step([Append(s, n=9)], memory)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), copy.kind, copy.details) == (CapacityError, "out_of_pages", {"need": 3, "free": 2})
    assert str(copy) == "3 pages are needed, 2 are free" == str(caught.value)
    assert issubclass(CapacityError, ManagerError) and issubclass(ManagerError, ValueError)


def test_appends_tell_what_they_append() -> None:
    """A copy of the tokens, their number, and the position."""
    tokens = [5, 2**32 - 1]
    append = Append(4294967297, tokens, first_pos=3)
    tokens[0] = 6
    assert (append.s, append.tokens, append.n, append.first_pos) == (4294967297, [5, 2**32 - 1], 2, 3)
    assert repr(append) == "Append(4294967297, tokens=[5, 4294967295], first_pos=3)"
    assert (Append(4294967297, n=4).tokens, Append(4294967297, n=4).n) == (None, 4)


def test_arguments_reach_the_planner() -> None:
    """Each in its place. (What the planner makes of them is compared with the model of the tests in Rust.)"""
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
    manager.check()


def test_arguments_of_a_manager_reach_the_planner() -> None:
    """Those that a step or the figures show; a salt and a reserve, too."""
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
    assert manager.stats()["prefix_hits"] == 8
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


def test_both_steps_commit_or_neither() -> None:
    """A hybrid model's: rows and a state by one id; an exception rolls both back. (Scripts in Rust have the rest.)"""
    spec = CacheSpec(max_tokens=64, num_kv_heads=1, head_dim=8, dtype="float32", cache_mode=1, page_size=4)
    memory, manager, states = HostMemory(spec, *spec.allocate()), Manager(spec), StateCache(4, 8)
    s = manager.create()
    assert states.create(s) == s
    for fails, length in ((False, 3), (True, 3), (False, 6)):
        with suppress(RuntimeError):
            with manager.begin_step([Append(s, n=3)], memory), states.begin_step({s: 3}) as parts:
                ((seqs, n_each, src, dst),) = parts
                assert (list(seqs), n_each) == ([s], 3) and src.dtype == dst.dtype == np.int64
                if fails:
                    raise RuntimeError
        assert manager.seq_len(s) == length == states.pos_max(s) + 1
    fork = manager.fork(s)
    assert states.fork(s, fork) == fork and states.tail(fork) == states.tail(s) is not None


def test_a_dropped_step_is_rolled_back_and_a_written_state_is_lost() -> None:
    """Where no cell is free a state is written in place."""
    states = StateCache(1, 8)
    a = states.create()
    states.begin_step({a: 3}).commit()
    step = states.begin_step({a: 1})  # there is no free cell
    assert [(split[1], list(split[2]), list(split[3])) for split in step] == [(1, [0], [0])]
    del step
    with refused("lost"):
        states.tail(a)
    states.seq_rm(a)
    assert states.tail(a) is None


def test_refusals() -> None:
    """Each by its kind."""
    states = StateCache(2, 8)
    assert (states.size, states.nbytes) == (2, 16)
    a = states.create()
    with states.begin_step({a: 5}):
        for call in (states.create, lambda: states.fork(a), lambda: states.free(a), lambda: states.begin_step({})):
            with refused("step_open"):
                call()
    kinds = {
        "partial_state": lambda: states.seq_rm(a, 0, 2),
        "range": lambda: states.begin_step({a: -1}),
        "position_overflow": lambda: states.seq_add(a, -1, -1, 2**40),
        "group_width": lambda: self_extend_positions(9, 4, 6),
    }
    for kind, call in kinds.items():
        with refused(kind):
            call()
    states.fork(a)
    with pytest.raises(CapacityError):
        states.create()
    with pytest.raises(TypeError):
        pickle.dumps(states)
    states.seq_rm(a, 0, 5)
    assert states.tail(a) is None

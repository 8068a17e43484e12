"""A hybrid model: attention over a cache, and a recurrent layer, whose steps are committed together or not at all."""

from __future__ import annotations

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
    StateCache,
    self_extend_positions,
)


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
    with pytest.raises(ManagerError) as lost:
        states.tail(a)
    assert lost.value.kind == "lost"
    states.seq_rm(a)
    assert states.tail(a) is None


def test_refusals() -> None:
    """Each by its kind."""
    states = StateCache(2, 8)
    assert (states.size, states.nbytes) == (2, 16)
    a = states.create()
    with states.begin_step({a: 5}) as step:
        for call in (states.create, lambda: states.fork(a), lambda: states.free(a), lambda: states.begin_step({})):
            with pytest.raises(ManagerError) as refused:
                call()
            assert refused.value.kind == "step_open"
    kinds = {
        "step_closed": step.commit,
        "partial_state": lambda: states.seq_rm(a, 0, 2),
        "known_seq": lambda: states.create(a),
        "unknown_seq": lambda: states.tail(7),
        "empty_append": lambda: states.begin_step({a: 0}),
        "range": lambda: states.begin_step({a: -1}),
        "spec_range": lambda: StateCache(0, 8),
        "position_overflow": lambda: states.seq_add(a, -1, -1, 2**40),
        "group_width": lambda: self_extend_positions(9, 4, 6),
    }
    for kind, call in kinds.items():
        with pytest.raises(ManagerError) as refused:
            call()
        assert refused.value.kind == kind
    states.fork(a)
    with pytest.raises(CapacityError):
        states.create()
    with pytest.raises(TypeError):
        pickle.dumps(states)
    states.seq_rm(a, 0, 5)
    assert states.tail(a) is None


def test_self_extend() -> None:
    """The manager against the pure function."""
    spec = CacheSpec(max_tokens=64, num_kv_heads=1, head_dim=8, dtype="float32", cache_mode=1, page_size=4)
    memory, manager = HostMemory(spec, *spec.allocate()), Manager(spec, key_form="raw")
    s = manager.create()
    for _ in range(19):
        manager.self_extend(s, 4, 8)
        with manager.begin_step([Append(s, n=1)], memory):
            pass
    positions, n_past, ga_i = self_extend_positions(19, 4, 8)
    assert list(manager.positions(s)) == positions.tolist()
    assert (manager.self_extend(s, 4, 8), n_past, ga_i) == (7, 7, 4)

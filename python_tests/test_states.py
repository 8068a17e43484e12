"""A hybrid model: attention over a cache, and a recurrent layer, whose steps are committed together or not at all."""

from __future__ import annotations

import pickle
import random

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

SIZE = 6


class Hybrid:
    """Rows and a state for each sequence; a layer's state is a polynomial of the tokens, and so are the rows."""

    def __init__(self) -> None:
        self.spec = CacheSpec(max_tokens=256, num_kv_heads=1, head_dim=8, dtype="float32", cache_mode=1, page_size=4)
        self.cache = self.spec.allocate()
        self.memory, self.manager = HostMemory(self.spec, *self.cache), Manager(self.spec)
        self.states = StateCache(SIZE, 8)
        self.cells = np.full((SIZE, 1), -1, np.int64)
        self.tokens: dict[int, list[int]] = {}

    def create(self) -> None:
        """Adds a sequence, in both by one id."""
        s = self.manager.create()
        assert self.states.create(s) == s
        self.tokens[s] = []

    def fork(self, s: int) -> None:
        """Adds one with the tokens of another."""
        to = self.manager.fork(s)
        assert self.states.fork(s, to) == to
        self.tokens[to] = list(self.tokens[s])

    def free(self, s: int) -> None:
        """Removes a sequence."""
        self.manager.free(s)
        self.states.free(s)
        del self.tokens[s]

    def step(self, new: dict[int, list[int]], *, fails: bool) -> None:
        """Appends tokens, or writes states and then fails."""
        appends = [Append(s, tokens=tokens) for s, tokens in new.items()]
        counts = {s: len(tokens) for s, tokens in new.items()}
        left = {s: list(tokens) for s, tokens in new.items()}
        try:
            with self.manager.begin_step(appends, self.memory), self.states.begin_step(counts) as parts:
                for seqs, n_each, src, dst in parts:
                    assert src.dtype == dst.dtype == np.int64
                    states = np.where(src[:, None] < 0, 0, self.cells[src])
                    for _ in range(n_each):
                        states = (states * 31 + [[left[s].pop(0)] for s in seqs]) % 1000003
                    self.cells[dst] = states
                if fails:
                    raise RuntimeError
        except RuntimeError:
            return
        assert not any(left.values())
        for s, tokens in new.items():
            self.tokens[s] += tokens

    def check(self) -> None:
        """Rows and states are those of the tokens that were committed."""
        for s, tokens in self.tokens.items():
            state = 0
            for token in tokens:
                state = (state * 31 + token) % 1000003
            tail = self.states.tail(s)
            assert self.manager.seq_len(s) == len(tokens)
            assert (tail is None) == (not tokens)
            if tail is not None:
                assert (self.cells[tail, 0], self.states.pos_max(s)) == (state, len(tokens) - 1)


@pytest.mark.parametrize("seed", range(20))
def test_a_hybrid_model_commits_both_or_neither(seed: int) -> None:
    """At most half of the cells are of sequences, so that every step finds free ones."""
    rng, hybrid = random.Random(seed), Hybrid()
    for _ in range(60):
        sequences = list(hybrid.tokens)
        chosen = rng.sample(sequences, rng.randint(0, len(sequences)))
        what = rng.random()
        if what < 0.2 and len(sequences) < SIZE // 2:
            hybrid.create()
        elif what < 0.4 and sequences and len(sequences) < SIZE // 2:
            hybrid.fork(rng.choice(sequences))
        elif what < 0.5 and sequences:
            hybrid.free(rng.choice(sequences))
        else:
            new = {s: [rng.randrange(99) for _ in range(rng.randint(1, 4))] for s in chosen}
            hybrid.step(new, fails=rng.random() < 0.3)
        hybrid.check()


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

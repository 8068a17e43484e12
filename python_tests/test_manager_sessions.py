"""Sessions through `kvcache_ops.manager`: saved in one form, loaded in another, refused when damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kvcache_ops.manager import Append, HostMemory, Manager

from managed import make, make_manager, make_spec, refused


def saved(path: Path, mode: str = "paged") -> tuple[Manager, np.ndarray, list[int]]:
    """A session of two sequences with a common beginning, its manager and its cache."""
    spec = make_spec(mode)
    cache, _ = spec.allocate()
    cache[...] = np.random.default_rng(3).standard_normal(cache.shape)
    manager, memory = make_manager(spec, mode), HostMemory(spec, cache)
    a = manager.create(salt=b"salt")
    manager.begin_step([Append(a, tokens=range(100, 110))], memory).commit()
    b = manager.fork(a)
    manager.begin_step([Append(b, tokens=[7, 8, 9], first_pos=20)], memory).commit()
    manager.save(path, memory)
    return manager, cache, [a, b]


def test_one_sequence_of_a_session(tmp_path: Path) -> None:
    """Saved or loaded by itself, beside others; without the index, the first."""
    manager, cache, (a, b) = saved(tmp_path / "all")
    memory = HostMemory(manager.spec, cache)
    manager.save_seq(tmp_path / "one", memory, b)
    for path, index, expected in [("one", 0, b), ("all", 1, b), ("all", 0, a)]:
        s = manager.load_seq(tmp_path / path, memory, index)
        assert manager.positions(s).tolist() == manager.positions(expected).tolist()
        np.testing.assert_array_equal(cache[manager.slots(s)], cache[manager.slots(expected)])
    assert manager.seq_len(manager.load_seq(tmp_path / "all", memory)) == manager.seq_len(a)
    with refused("no_sequence", index=1, sequences=1):
        manager.load_seq(tmp_path / "one", memory, 1)
    with refused("not_empty", sequences=6):
        manager.load(tmp_path / "all", memory)


def test_what_is_not_saved(tmp_path: Path) -> None:
    """Queued edits, no such folder, no such sequence, no path."""
    manager, memory = make()
    s = manager.create()
    manager.begin_step([Append(s, n=5)], memory).commit()
    manager.seq_add(s, 0, -1, 1)
    with refused("update_pending", copies=0, sequences=1):
        manager.save(tmp_path / "session", memory)
    manager.update(memory)
    for path in (tmp_path / "no/such/folder/session", tmp_path):
        with refused("io"):
            manager.save(path, memory)
        with refused("io"):
            manager.load_seq(path, memory)
    for path in (None, 5, b"bytes", ["x"]):
        with pytest.raises(TypeError):
            manager.save(path, memory)
    assert list(tmp_path.iterdir()) == []

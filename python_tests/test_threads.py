"""Threads: the GIL is free while bytes move, calls on one object wait for each other, and what is read is read once."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import kvcache_ops
import numpy as np
import pytest
from kvcache_ops import CacheSpec, KvCacheError, step_indices
from kvcache_ops.manager import Append, HostMemory, ManagerError

from managed import MODES, make, make_manager, make_spec, sequence


def on_threads(work: Callable[[int], None], interval: float) -> None:
    """Does it on four threads, each with its number, switching that often; raises what one of them has raised."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
    finally:
        sys.setswitchinterval(before)


def longest_pause(call: Callable[[], object]) -> tuple[float, float]:
    """How long a call takes, and how long meanwhile a thread of pure Python did not run."""
    ticks, done = [time.perf_counter()], threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())

    thread, interval = threading.Thread(target=tick), sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    thread.start()
    begin = time.perf_counter()
    call()
    end = time.perf_counter()
    done.set()
    thread.join()
    sys.setswitchinterval(interval)
    ticks = [begin, *(tick for tick in ticks if begin < tick < end), end]
    return end - begin, float(np.diff(ticks).max())


def test_other_threads_run_while_bytes_move(tmp_path: Path) -> None:
    """A call of the operator, copies and rotations, saving and loading: a small part at most holds the GIL."""
    spec = make_spec("runs", max_tokens=6500, num_layers=8, num_kv_heads=8, head_dim=64)
    manager, memory = make_manager(spec), HostMemory(spec, *spec.allocate())
    s, saved, path = sequence(manager, memory, 5000), sequence(manager, memory, 1000), tmp_path / "session"
    manager.seq_rm(s, 2000, 2500)
    manager.seq_add(s, 2500, -1, -500)
    loaded, elsewhere = make_manager(spec), HostMemory(spec, *spec.allocate())
    large = CacheSpec(max_tokens=40_000, num_kv_heads=4, head_dim=64, dtype="float32")
    current, indices = np.ones((40_000, 4, 64), np.float32), step_indices([40_000], [0], cachestarts=[0])
    cache = large.allocate().cache
    for name, call in dict(
        run=lambda: kvcache_ops.run(large, current, current, *indices, cache),
        update=lambda: manager.update(memory),
        save=lambda: manager.save_seq(path, memory, saved),
        load=lambda: loaded.load(path, elsewhere),
    ).items():
        took, pause = longest_pause(call)
        assert took > 0.01, f"{name} took {took} s, too little to tell"
        assert pause < took / 2, f"{name}: no other thread ran for {pause} of {took} s"


def test_others_use_a_manager_while_it_saves(tmp_path: Path) -> None:
    """Steps begin and end while a sequence is written; one that changes meanwhile is refused, and nothing is left."""
    spec = make_spec("paged", max_tokens=2400, num_layers=8, num_kv_heads=8, head_dim=64)
    manager, memory = make_manager(spec), HostMemory(spec, *spec.allocate())
    s, other, made = sequence(manager, memory, 2000), sequence(manager, memory, 8), 0
    with ThreadPoolExecutor(1) as pool:
        saved = pool.submit(manager.save_seq, tmp_path / "session", memory, s)
        while not saved.done():
            before = [file.name for file in tmp_path.iterdir()]
            with manager.begin_step([Append(other, 1)], memory):
                pass
            made += len(before) == 1 and before != ["session"] and before == [f.name for f in tmp_path.iterdir()]
            manager.seq_rm(other, 8)
        saved.result()
        assert made > 3
        written = (tmp_path / "session").read_bytes()
        saved = pool.submit(manager.save_seq, tmp_path / "session", memory, s)
        while len(list(tmp_path.iterdir())) < 2:
            assert not saved.done()
        manager.seq_rm(s, 1000)
        with pytest.raises(ManagerError) as caught:
            saved.result()
    assert caught.value.kind == "changed"
    assert [file.name for file in tmp_path.iterdir()] == ["session"] and (tmp_path / "session").read_bytes() == written


def test_indices_may_change_meanwhile() -> None:
    """They decide addresses, so a call reads them once: each is either refused or writes the slots that it has read."""
    spec = CacheSpec(max_tokens=64, num_kv_heads=1, head_dim=64, dtype="float32")
    current = np.ones((16, 1, 64), np.float32)
    indices = step_indices([16], [0], cachestarts=[8])
    cache, stop = spec.allocate().cache, threading.Event()

    def change() -> None:
        for start in cycle((2**40, 8)):
            indices.cachestarts[:] = start
            if stop.is_set():
                return

    thread, done = threading.Thread(target=change), {"made": 0, "cache_range": 0}
    thread.start()
    try:
        end = time.perf_counter() + 10
        while min(done.values()) == 0 and time.perf_counter() < end:
            try:
                kvcache_ops.run(spec, current, current, *indices, cache)
                done["made"] += 1
            except KvCacheError as error:
                done[error.kind] += 1
    finally:
        stop.set()
        thread.join()
    assert min(done.values()) > 0
    assert cache[8:24].all() and not cache[:8].any() and not cache[24:].any()


@pytest.mark.parametrize("mode", MODES)
def test_threads_share_a_manager(mode: str) -> None:
    """Each edits sequences of its own; of steps one is open at a time. All that they lose is a refusal."""
    manager, memory = make(mode, max_tokens=2048)
    first, kinds = [manager.create() for _ in range(4)], set()

    def work(number: int) -> None:
        random = np.random.default_rng(number)
        seqs = [first[number]]
        for _ in range(300):
            s = seqs[random.integers(len(seqs))]
            try:
                match random.integers(6):
                    case 0:
                        manager.seq_rm(s, int(random.integers(8)), int(random.integers(20)))
                    case 1:
                        seqs.append(manager.fork(s))
                    case 2 if len(seqs) > 1:
                        manager.free(s)
                        seqs.remove(s)
                    case 3:
                        manager.update(memory)
                    case _:
                        with manager.begin_step([Append(s, n=int(random.integers(1, 5)))], memory) as step:
                            assert step.key_positions.size == step.kvstarts[-1]
            except ManagerError as error:
                kinds.add(error.kind)

    on_threads(work, 1e-6)
    assert kinds <= {"step_open", "out_of_pages", "no_slot"}, kinds
    manager.check()


def test_threads_share_memory() -> None:
    """Managers on one HostMemory wait for each other instead of failing."""
    spec = make_spec("runs", max_tokens=600, num_layers=4, num_kv_heads=8, head_dim=64)
    memory = HostMemory(spec, *spec.allocate())

    def work(_number: int) -> None:
        manager = make_manager(spec)
        for _ in range(20):
            s = sequence(manager, memory, 500)
            manager.seq_rm(s, 100, 200)
            manager.update(memory)
            manager.free(s)
        manager.check()

    on_threads(work, sys.getswitchinterval())


def test_arguments_that_use_the_manager() -> None:
    """Python code that runs within a call may use the same objects: nothing is locked then."""
    manager, memory = make()

    def appends() -> Iterator[Append]:
        """Appends that are made while they are counted."""
        yield Append(manager.create(), [7])
        manager.update(memory)
        sequence(manager, memory, 1)
        yield Append(manager.create(), n=1)

    with manager.begin_step(appends(), memory) as step:
        assert step.token_ids.tolist() == [7, -1]
    manager.check()

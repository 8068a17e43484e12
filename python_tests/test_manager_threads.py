"""Threads: the GIL is free while bytes move, and calls on one object wait for each other."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from kvcache_ops.manager import Append, HostMemory, Manager, ManagerError

from managed import MODES, make, make_manager, make_spec, sequence


def on_threads(work: Callable[[int], None], interval: float) -> None:
    """Does it on four threads, each with its number, switching that often; raises what one of them has raised."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    with ThreadPoolExecutor(4) as pool:
        done = list(map(pool.submit, [work] * 4, range(4)))
    sys.setswitchinterval(before)
    for each in done:
        each.result()


def longest_pause(call) -> tuple[float, float]:
    """How long a call takes, and how long meanwhile a thread of pure Python did not run."""
    ticks, done = [time.perf_counter()], threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    interval = sys.getswitchinterval()
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


def test_other_threads_run_while_bytes_move(tmp_path) -> None:
    """Copies and rotations of an update, saving and loading: of each, a small part at most holds the GIL."""
    spec = make_spec("runs", max_tokens=6500, num_layers=8, num_kv_heads=8, head_dim=64)
    manager, memory = make_manager(spec), HostMemory(spec, *spec.allocate())
    s, saved = sequence(manager, memory, 5000), sequence(manager, memory, 1000)
    path = tmp_path / "session"

    def edit() -> None:
        manager.seq_rm(s, 2000, 2500)
        manager.seq_add(s, 2500, -1, -500)

    loaded, elsewhere = make_manager(spec), HostMemory(spec, *spec.allocate())
    edit()
    calls = dict(
        update=lambda: manager.update(memory),
        save=lambda: manager.save_seq(path, memory, saved),
        load=lambda: loaded.load(path, elsewhere),
    )
    for name, call in calls.items():
        took, pause = longest_pause(call)
        assert took > 0.01, f"{name} took {took} s, too little to tell"
        assert pause < took / 2, f"{name}: no other thread ran for {pause} of {took} s"


@pytest.mark.parametrize("mode", MODES)
def test_threads_share_a_manager(mode: str) -> None:
    """Each edits sequences of its own; of steps one is open at a time. All that they lose is a refusal."""
    manager, memory = make(mode, max_tokens=2048)
    kinds = set()

    def work(number: int) -> None:
        random = np.random.default_rng(number)
        seqs: list[int] = []
        for _ in range(300):
            s = seqs[random.integers(len(seqs))] if seqs else None
            try:
                match 6 if s is None else random.integers(7):
                    case 6:
                        seqs.append(manager.create())
                    case 0:
                        manager.seq_rm(s, int(random.integers(8)), int(random.integers(20)))
                    case 1:
                        seqs.append(manager.fork(s))
                    case 2:
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


class Meddler:
    """An int whose conversion uses the manager."""

    def __init__(self, manager: Manager, memory: HostMemory):
        self.manager, self.memory, self.called = manager, memory, 0

    def __index__(self) -> int:
        self.called += 1
        s = self.manager.create()
        self.manager.begin_step([Append(s, n=1)], self.memory).commit()
        self.manager.free(s)
        return 1


def test_arguments_that_use_the_manager() -> None:
    """Python code that runs within a call may use the same objects: nothing is locked then."""
    manager, memory = make()
    s = sequence(manager, memory, 5)
    meddler = Meddler(manager, memory)
    assert manager.seq_rm(s, meddler, 3) == 2
    manager.seq_add(s, 0, -1, meddler)
    manager.create(meddler)

    def appends():
        """Appends that are made while they are counted."""
        yield Append(s, [meddler], first_pos=meddler.called + 10)
        manager.update(memory)
        yield Append(manager.create(), n=meddler)

    with manager.begin_step(appends(), memory) as step:
        assert step.token_ids.tolist() == [1, -1]
    assert meddler.called == 5
    manager.check()

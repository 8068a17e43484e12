"""The engine's thread: readers, interrupts, forks, failures and ends of programs."""

from __future__ import annotations

import _thread
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from weakref import ref

import numpy as np
import pytest

from compare import refused
from engines import PROMPTS, alone, engine, idle, on_draw, path, soon, stepped

__all__ = ["alone", "path"]  # fixtures


def test_an_answer_that_nobody_reads(path: Path, alone: list[list[int]]) -> None:
    """Is computed all the same; who reads late, again or together with others gets all of it, in larger pieces."""
    shared = engine(path)
    request = shared.submit(PROMPTS[1], max_new_tokens=12)
    soon(lambda: request.finish is not None)
    assert request.answer == alone[1] and request._state._news.qsize() <= 2  # what nobody reads does not pile up
    assert list(request) == [request.text] == list(request)
    request, texts = shared.submit(PROMPTS[1], max_new_tokens=200), list[str]()
    readers = [Thread(target=lambda: texts.append("".join(request))) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    assert texts == [request.text] * 3 and request.finish == "length"


def test_an_interrupt_ends_the_readers_request_alone(
    path: Path, alone: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes in the main thread, which reads; other answers go on, and the next ones begin."""
    shared, drawn = engine(path), list[int]()
    other = shared.submit(PROMPTS[1], max_new_tokens=12)
    soon(lambda: other.finish is not None)
    other = shared.submit(PROMPTS[1], max_new_tokens=300)

    def interrupt() -> None:
        drawn.append(1)
        if len(drawn) == 9:
            _thread.interrupt_main()

    on_draw(monkeypatch, interrupt)
    read = shared.submit(PROMPTS[0], max_new_tokens=10**6, keep=1)
    with pytest.raises(KeyboardInterrupt):
        for _ in read:
            pass
    assert read.finish == "cancelled" and "".join(other) == other.text and other.answer[:12] == alone[1]
    drawn.clear()
    with pytest.raises(KeyboardInterrupt):
        shared.generate(PROMPTS, max_new_tokens=10**6, keep=1)
    assert shared.generate(PROMPTS[:1], max_new_tokens=12)[0].answer == alone[0]
    assert idle(shared)


def test_a_step_that_fails(path: Path, alone: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Is the error of all in it; the next requests are answered, also those that have waited."""
    for shared in (engine(path, max_batch=2, token_budget=64), stepped(path, max_batch=2, token_budget=64)):
        run, submitted, steps = shared._scheduler._run, Event(), list[int]()

        def failing(*arguments: object) -> np.ndarray:
            assert submitted.wait(60)  # noqa: B023
            steps.append(1)  # noqa: B023
            if len(steps) < 3:  # noqa: B023
                return run(*arguments)  # noqa: B023
            monkeypatch.undo()
            raise MemoryError("of the session")

        monkeypatch.setattr(shared._scheduler, "_run", failing)
        requests = [shared.submit(prompt, max_new_tokens=12) for prompt in PROMPTS[:3]]
        submitted.set()
        for request in requests[:2]:
            with refused("step_failed", "a step failed: of the session"):
                list(request)
            assert request.finish == "error" and isinstance(request.error.__cause__, MemoryError)
        assert "".join(requests[2]) and requests[2].answer == alone[2]
        assert shared._scheduler._run == run and shared.loop.failure is None
        assert idle(shared)


def test_a_thread_that_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All open requests have its error, which the engine says from then on, to each call by name."""
    shared = engine(path, max_batch=1, token_budget=64)
    begun, fail, told = Event(), Event(), list[object]()
    shared.watch(lambda _, changed: told.extend(state.tag for state in changed if state.finish is not None))

    def failing(*_: object) -> None:
        begun.set()
        assert fail.wait(60)
        raise MemoryError("of the session")

    def broken(_: int) -> None:
        raise RuntimeError("the manager is broken")

    monkeypatch.setattr(shared._scheduler, "_run", failing)
    monkeypatch.setattr(shared._scheduler, "_free", broken)
    running, waiting = (shared.submit(prompt, max_new_tokens=12, tag=prompt) for prompt in PROMPTS[:2])
    assert begun.wait(60)
    late = shared.submit(PROMPTS[2], tag=PROMPTS[2])
    fail.set()
    for request in (running, waiting, late):
        with refused("engine_ended", "the engine has ended: the manager is broken"):
            list(request)
    soon(lambda: all(prompt in told for prompt in PROMPTS[:3]))
    assert shared.loop.failure is not None
    for call in (lambda: shared.submit("a"), lambda: shared.generate(["a"]), shared.step, lambda: list(running)):
        with refused("engine_ended"):
            call()
    waiting.cancel()
    assert (running.finish, waiting.finish) == ("error", "error")


def test_an_engine_that_nobody_has(path: Path) -> None:
    """Its thread ends, and its memory is free; a request keeps it."""
    shared = engine(path)
    pieces = iter(shared.submit(PROMPTS[0], max_new_tokens=30))
    [thread], session = shared.loop._executor._threads, ref(shared._scheduler)
    shared.close()
    del shared
    assert next(pieces) and thread.is_alive()
    list(pieces)  # to its end
    del pieces
    gc.collect()
    thread.join(60)
    assert not thread.is_alive() and session() is None


def test_what_a_server_is_told(path: Path, alone: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step's news, and each end, also where a client goes while its answer ends by itself."""
    shared, told = engine(path), list[tuple[object, int, str | None]]()
    end = shared.watch(
        lambda _, changed: told.extend((state.tag, len(state.answer), state.finish) for state in changed)
    )
    request = shared.submit(PROMPTS[0], max_new_tokens=12, tag="mine")
    assert list(request) and not shared.step()
    assert told == [*(("mine", count, None) for count in range(1, 12)), ("mine", 12, "length")]
    told.clear()
    on_draw(monkeypatch, lambda: shared.running[0].cancel())
    request = shared.submit(PROMPTS[0], max_new_tokens=1, tag="gone")
    soon(lambda: ("gone", 1, "cancelled") in told)
    monkeypatch.undo()
    end()
    told.clear()
    assert shared.generate(PROMPTS[:1], max_new_tokens=12)[0].answer == alone[0] and not told


def in_a_fork(call: Callable[[], object]) -> int:
    """The exit status of a child that makes a call: 0 where it returns true."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        status = 0 if call() else 2
    finally:
        os._exit(status)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forks(path: Path, alone: list[list[int]]) -> None:
    """An engine that has begun refuses in a child, and nothing waits for ever; one that has not answers there."""
    shared, fresh = engine(path), engine(path)
    open_one = shared.submit(PROMPTS[1], max_new_tokens=2000, keep=1)

    def refuses() -> bool:
        for call in (lambda: shared.submit("a"), lambda: list(open_one), shared.step):
            with refused("engine_forked", "first used after the fork"):
                call()
        open_one.cancel()
        return True

    assert in_a_fork(refuses) == 0
    assert in_a_fork(lambda: fresh.generate(PROMPTS[:1], max_new_tokens=12)[0].answer == alone[0]) == 0
    assert open_one.finish is None and shared.generate(PROMPTS[:1], max_new_tokens=12)[0].answer == alone[0]


@pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "raise SystemExit", "signal.raise_signal(signal.SIGINT)"])
def test_a_program_ends_within_an_answer(path: Path, end: str) -> None:
    """Without a word, and soon, wherever the step is; also where another thread still waits for its answer."""
    program = f"""
import signal, sys, threading
from kvcache_ops.engine import Engine
engine, reads = Engine({str(path)!r}, max_tokens=256, threads=1, keep=1), threading.Event()
def read():
    try:
        for _ in engine.submit([5, 6], max_new_tokens=10**8):
            reads.set()
    except ValueError as error:
        print(error.kind)
threading.Thread(target=read, daemon=True).start()
reads.wait()
try:
    for piece in engine.submit([7], max_new_tokens=10**8):
        {end}
        break
except KeyboardInterrupt:
    print("interrupted")
"""
    begin = time.perf_counter()
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr) == (0, "") and time.perf_counter() - begin < 60
    # The other thread may end with the program before it prints the last word.
    printed = ["interrupted"] if "SIGINT" in end else []
    assert run.stdout.split() in (printed, [*printed, "engine_ended"])

"""Where an engine's steps are made: in its one thread, or in the caller's.

thread: while nothing is to be computed, wait for a command
        run the commands that have come, in their order
        make a step
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from time import perf_counter
from typing import TypeVar
from weakref import WeakSet

from kvcache_ops._errors import KvCacheError
from kvcache_ops._interrupt import postponed_interrupt
from kvcache_ops.engine._request import RequestState
from kvcache_ops.engine._scheduler import Scheduler

LOG = logging.getLogger("kvcache_ops.engine")
_T = TypeVar("_T")


class Loop:
    """Runs commands of all threads on a scheduler, and its steps, one after the other.

    The thread begins with the first request. Nothing here keeps an engine alive: its end stops the thread.
    """

    def __init__(self, scheduler: Scheduler, threaded: bool) -> None:
        self.threaded = threaded
        self.failure: KvCacheError | None = None
        self.began: float | None = None  # perf_counter, where a step runs
        self._scheduler = scheduler
        self._commands: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._thread: Thread | None = None
        self._starting, self._stopped = Lock(), False

    def submit(self, state: RequestState) -> None:
        """Sends a request to the scheduler. Raises KvCacheError "engine_failed", "engine_ended" and "engine_forked"."""
        self._check()
        self._send(partial(self._scheduler.add, state))

    def forget(self, state: RequestState) -> None:
        """Sends word that a request was cancelled. Takes no lock: garbage collection may call it at any place."""
        self._send(partial(self._scheduler.forget, state))

    def wait(self, state: RequestState) -> None:
        """Waits until a request has more to read, or makes a step. Raises as `submit`."""
        self._check()
        if self.threaded:
            state.wait()
        else:
            self.call(self._scheduler.step)

    def call(self, function: Callable[[], _T]) -> _T:
        """What a function returns or raises that is called between two steps. Raises as `submit`."""
        if current_thread() is self._thread:
            return function()
        self._check()
        if not self.threaded:
            with postponed_interrupt():
                self._run_commands()
                return function()
        called: SimpleQueue[tuple[list[_T], BaseException | None]] = SimpleQueue()

        def report() -> None:
            try:
                self._check_failure()
                called.put(([function()], None))
            except BaseException as error:
                called.put(([], error))

        self._send(report)
        found, error = called.get()
        if error is not None:
            raise error
        return found[0]

    def stop(self) -> None:
        """Ends the thread after the step that runs. Requests that are open then end with an error."""
        self._stopped = True
        self._commands.put(bool)  # which wakes it

    def join(self) -> None:
        """Waits for the end of the thread, after `stop`."""
        if self._thread is not None:
            self._thread.join()

    def _check(self) -> None:
        """Has a thread, or raises what keeps this process from having one."""
        if not self.threaded:
            return
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    thread = Thread(target=self._run, name="engine", daemon=True)
                    thread.start()
                    _LOOPS.add(self)
                    self._thread = thread
        alive = self._thread.is_alive()
        self._check_failure()
        if not alive:
            message = "the engine's thread is in another process, expected an engine that was first used after the fork"
            raise KvCacheError(message, "engine_forked")

    def _check_failure(self) -> None:
        if self.failure is not None:
            raise KvCacheError(str(self.failure), self.failure.kind) from self.failure

    def _send(self, command: Callable[[], object]) -> None:
        self._commands.put(command)
        if self.failure is not None:  # perhaps it came too late for the thread
            self._run_commands()

    def _run_next(self) -> None:
        command = self._commands.get()  # which is gone when this returns: it may have the engine
        self.began = perf_counter()
        command()

    def _run_commands(self) -> None:
        try:
            while True:
                self._commands.get_nowait()()
        except Empty:
            pass

    def _run(self) -> None:
        failure = KvCacheError("the engine has ended", "engine_ended")
        try:
            while not self._stopped:
                if self._scheduler.idle:
                    self._run_next()
                self.began = perf_counter()
                self._run_commands()
                self._scheduler.step()
                self.began = None
        except BaseException as error:  # also a panic of what is in Rust: who waits hears of it
            LOG.exception("the engine has failed")
            failure = KvCacheError(f"the engine has failed: {error}", "engine_failed")
            failure.__cause__ = error
        self.began = None
        self._scheduler.close(failure)
        self.failure = failure
        self._run_commands()


_LOOPS: WeakSet[Loop] = WeakSet()  # which have threads


@atexit.register
def _end() -> None:
    """Ends all threads while Python can still run them: what is in ONNX Runtime then does not return to nothing."""
    loops = list(_LOOPS)
    for loop in loops:
        loop.stop()
    for loop in loops:
        loop.join()

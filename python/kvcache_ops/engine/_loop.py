"""Where an engine's steps are made: in its one thread, as tasks of an executor, or in the caller's.

a request: join the scheduler; if no step is to come, the last task is one
a step:    forget what was cancelled, compute; if there is more to compute, the next task is another one
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TypeVar

from kvcache_ops._errors import KvCacheError
from kvcache_ops._interrupt import postponed_interrupt
from kvcache_ops.engine._request import RequestState
from kvcache_ops.engine._scheduler import Scheduler

LOG = logging.getLogger("kvcache_ops.engine")
_T = TypeVar("_T")


class Loop:
    """Lets one thread alone use a scheduler. It begins with the first request, and ends with the engine or the program.

    failure: why the engine answers no more; None while it answers. began: `time.perf_counter()` when the step began
    that the thread is in; None where it is in none.
    """

    def __init__(self, scheduler: Scheduler, threaded: bool) -> None:
        self.threaded = threaded
        self.failure: KvCacheError | None = None
        self.began: float | None = None
        self._scheduler, self._turning = scheduler, False
        self._executor = ThreadPoolExecutor(1, "engine")
        self._cancelled: deque[RequestState] = deque()
        self._process: int | None = None  # which has the thread

    def submit(self, state: RequestState) -> None:
        """Sends a request to the scheduler. Raises KvCacheError "engine_ended" and "engine_forked"."""
        self.check()
        if not self.threaded:
            return self._scheduler.add(state)
        try:
            self._executor.submit(self._add, state)
        except RuntimeError as error:
            raise KvCacheError(f"the engine has ended: {error}", "engine_ended") from error

    def check(self) -> None:
        """Raises KvCacheError "engine_ended" and "engine_forked"."""
        self._check_process()
        if self.failure is not None:
            raise KvCacheError(str(self.failure), self.failure.kind) from self.failure

    def forget(self, state: RequestState) -> None:
        """Makes the next step free a request's place. Takes no lock: garbage collection may call it at any place."""
        self._cancelled.append(state)

    def wait(self, state: RequestState) -> None:
        """Waits until a request has more to read, or makes a step. Raises KvCacheError "engine_forked"."""
        self._check_process()
        if self.threaded:
            state.wait()
        else:
            self.call(self.step)

    def call(self, function: Callable[[], _T]) -> _T:
        """Calls a function between two steps; its result or exception. Raises KvCacheError "engine_forked"."""
        self._check_process()
        if self.threaded:
            try:
                called = self._executor.submit(self._run, function)
            except RuntimeError:  # the program ends, and the thread has ended
                return function()
            return called.result()
        with postponed_interrupt():
            return self._run(function)

    def step(self) -> bool:
        """Makes a step, as an argument of `call`; whether anything is left to do."""
        self.began = perf_counter()
        try:
            return self._scheduler.step()
        finally:
            self.began = None

    def wake(self) -> None:
        """Starts the steps again, as an argument of `call`."""
        if self.threaded and not self._turning and self.failure is None:
            self._go_on()

    def _run(self, function: Callable[[], _T]) -> _T:
        while self._cancelled:
            self._scheduler.forget(self._cancelled.popleft())
        return function()

    def _add(self, state: RequestState) -> None:
        self._scheduler.add(state)
        self.wake()

    def _go_on(self) -> None:
        self._turning = True
        try:
            self._executor.submit(self._turn)
        except RuntimeError as error:
            self._end(error)  # the program

    def _turn(self) -> None:
        self._turning = False
        try:
            self._run(self.step)
        except BaseException as error:  # also a panic in Rust: all readers get it
            LOG.exception("the engine has ended")
            self._end(error)
        else:
            if not self._scheduler.idle:
                self._go_on()

    def _end(self, error: BaseException) -> None:
        self.failure = KvCacheError(f"the engine has ended: {error}", "engine_ended")
        self.failure.__cause__ = error
        self._scheduler.close(self.failure)

    def _check_process(self) -> None:
        if self.threaded and (self._process or os.getpid()) != os.getpid():
            message = "the engine's thread is in another process, expected an engine that was first used after the fork"
            raise KvCacheError(message, "engine_forked")
        self._process = os.getpid()

"""The one thread that owns an engine, and the path of requests to it and of answers back to asyncio."""

from __future__ import annotations

import asyncio
import atexit
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import perf_counter
from typing import Any

from kvcache_ops._errors import KvCacheError
from kvcache_ops.engine import Engine, Request, TokenLogprobs
from kvcache_ops.serve._call import LARGEST_SEED
from kvcache_ops.serve._metrics import Metrics
from kvcache_ops.serve._refusal import OVERLOADED, SHUTTING_DOWN

LOG = logging.getLogger("uvicorn.error")
"""Where the server says what happens."""


@dataclass(frozen=True)
class Piece:
    """A piece of the answer of choice `index`; `finish` and `error` as a Request has them.

    `logprobs`: those of tokens that have begun in its text or in pieces before it, if they were asked for.
    """

    index: int
    text: str
    logprobs: list[TokenLogprobs]
    finish: str | None
    error: KvCacheError | None


class Job:
    """A prompt on its way. Its pieces come through a queue; `request` is there once it is `accepted`.

    `echo`: what the answer begins with.
    """

    def __init__(self, index: int, echo: str | None, pieces: asyncio.Queue[Piece | None]) -> None:
        self.index, self.echo, self.pieces = index, echo, pieces
        self.loop = asyncio.get_running_loop()
        self.accepted: asyncio.Future[None] = self.loop.create_future()
        self.request: Request | None = None
        # The thread's:
        self.begin = perf_counter()
        self.said = self.counted = self.scored = 0  # characters of the answer after its echo, tokens, logprobs
        self.told = False  # the echo


class EngineThread:
    """Runs an engine's steps while there is something to do.

    It begins with `start`, or with the first request, where nothing calls that: a parent application need not say when
    its parts start. Answers go to the loops that asked for them.
    """

    def __init__(self, engine: Engine, metrics: Metrics, max_requests: int) -> None:
        self._engine, self._metrics, self._max_requests = engine, metrics, max_requests
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._jobs: dict[Job, None] = {}
        self._news: dict[Job, None] = {}  # those that there is more to tell of
        self._thread: Thread | None = None
        self._lock, self._closed, self._count = Lock(), False, 0
        self._deadline: float | None = None  # the thread's
        self._began: float | None = None  # the step, or what else the thread does, if it does something
        self._sent: float | None = None  # the oldest news that the loop has not taken
        metrics.watch(engine, lambda: self._count, self.stuck)

    def start(self) -> None:
        """Begins, if it has not begun; after a `close` it waits for the end, and begins again."""
        if self._closed:
            self.join()
        with self._lock:
            if self._thread is None or self._closed:
                self._inbox, self._deadline = SimpleQueue(), None  # without what came too late for the last thread
                self._closed, self._sent = False, None
                self._thread = Thread(target=self._run, name="engine", daemon=True)
                self._thread.start()

    def alive(self) -> bool:
        """Whether requests are taken and answered."""
        return not self._closed and (self._thread is None or self._thread.is_alive())

    def stuck(self) -> float:
        """For how many seconds neither a step has ended nor the loop has taken what it was sent."""
        now = perf_counter()
        return max(now - (begin or now) for begin in (self._began, self._sent))

    def reserve(self, count: int) -> None:
        """Takes places for that many requests. Raises KvCacheError "shutting_down" and "overloaded"."""
        if not self.alive():
            raise KvCacheError("the server is shutting down", SHUTTING_DOWN)
        with self._lock:
            if self._count + count > self._max_requests:
                message = f"{self._count} requests run or wait, expected at most {self._max_requests} with {count} more"
                raise KvCacheError(message, OVERLOADED)
            self._count += count
        if self._thread is None:
            self.start()
            atexit.register(self._exit)  # nothing says when it is to end

    def release(self, count: int) -> None:
        """Returns places that no prompt was submitted for."""
        with self._lock:
            self._count -= count

    def submit(self, job: Job, tokens: list[int], sampling: dict[str, Any]) -> None:
        """Sends a prompt, for which a place is reserved. Raises KvCacheError "shutting_down"."""
        with self._lock:
            if not self.alive():
                raise KvCacheError("the server is shutting down", SHUTTING_DOWN)
            self._inbox.put(partial(self._start, job, tokens, sampling))

    def cancel(self, job: Job) -> None:
        """Ends a job's answer if it is running, and frees its place in the cache."""
        self._inbox.put(partial(self._cancel, job))

    def close(self, grace: float) -> None:
        """Takes no more prompts; answers that have not ended in `grace` seconds end with an error."""
        with self._lock:
            self._closed = True
            self._inbox.put(partial(self._close, perf_counter() + grace))

    def join(self) -> None:
        """Waits for the thread to end, after `close`."""
        if self._thread is not None:
            self._thread.join()

    def _exit(self) -> None:
        self.close(0)
        self.join()

    def _run(self) -> None:
        busy = False
        while self._deadline is None or (busy and perf_counter() < self._deadline):
            for command in self._commands(wait=not busy):
                self._began = perf_counter()
                command()
            self._began = begin = perf_counter()
            try:
                busy = self._engine.step()
            except BaseException as error:  # ONNX Runtime's, of all that are in the step, or a panic of what is in Rust
                LOG.exception("a step failed")
                self._end(self._engine.running, KvCacheError(f"a step failed: {error}", "step_failed"))
                busy = True
            if self._jobs:
                self._metrics.step.observe(perf_counter() - begin)
            self._tell()
            self._began = None
        self._end([job.request for job in self._jobs], KvCacheError("the server is shutting down", SHUTTING_DOWN))
        self._tell()
        self._engine.close()

    def _commands(self, wait: bool) -> Iterator[Callable[[], None]]:
        if wait:
            yield self._inbox.get()
        while True:
            try:
                yield self._inbox.get_nowait()
            except Empty:
                return

    def _start(self, job: Job, tokens: list[int], sampling: dict[str, Any]) -> None:
        try:
            job.request = self._engine.submit(tokens, **sampling)
        except KvCacheError as error:
            self._refuse(job, error)
        except BaseException as error:  # or a panic of what is in Rust
            LOG.exception("a request failed")
            self._refuse(job, KvCacheError(f"the request failed: {error}", "answer_failed"))
        else:
            self._jobs[job] = None
            job.request.changed = partial(self._news.__setitem__, job, None)
            self._call([job], _accept, job)

    def _cancel(self, job: Job) -> None:
        if job.request is not None:
            job.request.cancel()

    def _close(self, deadline: float) -> None:
        self._deadline = deadline

    def _end(self, requests: list[Request | None] | list[Request], error: KvCacheError) -> None:
        for request in requests:
            if request is not None:
                self._engine.end(request, "error", error)

    def _tell(self) -> None:
        """Sends what is new of each answer, all of a step at once."""
        news: dict[asyncio.AbstractEventLoop, list[tuple[Job, Piece]]] = {}
        changed = list(self._news)
        self._news.clear()
        for job in changed:
            request = job.request
            assert request is not None  # it is, of those that were started
            if request.answer and not job.counted:
                self._metrics.first_token.observe(perf_counter() - job.begin)
            self._metrics.generated.inc(len(request.answer) - job.counted)
            text = request.text[job.said :]
            if job.echo and not job.told and (request.answer or request.finish is not None):
                text, job.told = job.echo + text, True
            job.counted = len(request.answer)
            if text or request.finish is not None:
                job.said = len(request.text)
                piece = Piece(job.index, text, self._logprobs(job, request), request.finish, request.error)
                news.setdefault(job.loop, []).append((job, piece))
            if request.finish is not None:
                request.changed = None
                del self._jobs[job]
                self.release(1)
                self._metrics.ended(request, perf_counter() - job.begin)
        for pieces in news.values():
            self._sent = self._sent or perf_counter()
            if not self._call([job for job, _ in pieces], self._deliver, pieces):
                self._sent = None

    def _logprobs(self, job: Job, request: Request) -> list[TokenLogprobs]:
        """The next tokens': to the end of what is said, and at an answer's end of all but what is in its stop."""
        echo, prompt = job.echo or "", [] if job.echo is None else request.prompt_logprobs
        whole, said, next_ones = request.finish not in (None, "stop"), len(echo) + job.said, list[TokenLogprobs]()
        while job.scored < len(prompt) + len(request.logprobs):
            if job.scored < len(prompt):
                token = prompt[job.scored]
            else:
                token = request.logprobs[job.scored - len(prompt)]
                token = replace(token, offset=len(echo) + token.offset) if echo else token
            if not whole and token.offset >= said:
                break
            next_ones.append(token)
            job.scored += 1
        return next_ones

    def _call(self, jobs: list[Job], function: Callable[..., object], *arguments: object) -> bool:
        """Calls in the jobs' loop; whether there is one."""
        try:
            jobs[0].loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # it is closed: nobody listens
            for job in jobs:
                self._cancel(job)
            return False
        return True

    def _deliver(self, pieces: list[tuple[Job, Piece]]) -> None:
        if (sent := self._sent) is not None:  # of several loops, another may have taken it
            self._metrics.loop.observe(perf_counter() - sent)
            self._sent = None
        for job, piece in pieces:
            job.pieces.put_nowait(piece)

    def _refuse(self, job: Job, error: KvCacheError) -> None:
        self.release(1)
        self._call([job], _accept, job, error)


def _accept(job: Job, error: KvCacheError | None = None) -> None:
    if job.accepted.done():  # nobody waits for it any more
        return
    if error is None:
        job.accepted.set_result(None)
    else:
        job.accepted.set_exception(error)


class Answers:
    """The answers to the prompts of one call, `n` to each: choices in the order of the prompts.

    They have their places from the beginning, before a prompt is tokenized, until `cancel` or their ends.
    """

    def __init__(self, thread: EngineThread, prompts: int, n: int) -> None:
        """Raises KvCacheError "shutting_down" and "overloaded"."""
        thread.reserve(prompts * n)
        self._thread, self._n, self._reserved = thread, n, prompts * n
        self._pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        self._jobs: list[Job] = []

    async def begin(self, prompts: list[list[int]], echoes: list[str | None], sampling: dict[str, Any]) -> None:
        """Sends the prompts; when it returns, all of them have been accepted. Raises what has refused one.

        Answers begin with their prompts' `echoes`.

        The engine computes equal prompts once. With a seed, each answer to one has a seed of its own.
        """
        seed = sampling["seed"]
        try:
            for i in range(len(prompts) * self._n):
                job = Job(i, echoes[i // self._n], self._pieces)
                prompt, choice = prompts[i // self._n], i % self._n
                seeded = {"seed": None if seed is None else (seed + choice) % LARGEST_SEED}
                self._thread.submit(job, prompt, sampling | seeded)
                self._reserved -= 1
                self._jobs.append(job)
        finally:
            refused = await asyncio.gather(*(job.accepted for job in self._jobs), return_exceptions=True)
        for error in refused:
            if error is not None:
                raise error

    async def pieces(self, quiet: float | None = None) -> AsyncIterator[Piece | None]:
        """As they come, of all prompts, to the last one's end; None after `quiet` seconds without one, or a `nudge`."""
        left = len(self._jobs)
        while left:
            try:
                piece = await asyncio.wait_for(self._pieces.get(), quiet)
            except asyncio.TimeoutError:  # noqa: UP041, of Python 3.10
                piece = None
            left -= piece is not None and piece.finish is not None
            yield piece

    def nudge(self) -> None:
        """Has `pieces` give None."""
        self._pieces.put_nowait(None)

    def cancel(self) -> None:
        """Ends those that have not ended, also those that have not begun."""
        self._thread.release(self._reserved)
        self._reserved = 0
        for job in self._jobs:
            self._thread.cancel(job)

    def usage(self) -> dict[str, object]:
        """How many tokens it took, of requests that have ended; a prompt counts once."""
        requests = [job.request for job in self._jobs if job.request is not None]
        prompt, answer = sum(len(r.prompt) for r in requests[:: self._n]), sum(len(r.answer) for r in requests)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
            "prompt_tokens_details": {"cached_tokens": sum(r.cached for r in requests[:: self._n])},
        }

"""The server's open requests: how many there may be, and how answers come from the engine's thread to asyncio."""

from __future__ import annotations

import asyncio
import atexit
import logging
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from math import isfinite
from threading import RLock, Timer
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary, WeakMethod, WeakSet, finalize

from kvcache_ops._errors import KvCacheError
from kvcache_ops.engine import Engine, Request, TokenLogprobs
from kvcache_ops.engine._request import RequestState
from kvcache_ops.serve._call import LARGEST_SEED
from kvcache_ops.serve._metrics import Metrics
from kvcache_ops.serve._refusal import OVERLOADED, SHUTTING_DOWN

LOG = logging.getLogger("uvicorn.error")
"""Where the server says what happens."""


@dataclass(frozen=True)
class Piece:
    """A piece of the answer of choice `index`; `finish` and `error` as a Request has them.

    `logprobs`: of tokens that have begun in its text or in pieces before it, if they were asked for.
    """

    index: int
    text: str
    logprobs: list[TokenLogprobs]
    finish: str | None
    error: KvCacheError | None


class Choice:
    """One answer to a call, and how much of it has been sent. It is the tag of its request.

    `echo`: the text of the prompt, if the answer begins with it. `news`: gets the request once there is more to send;
    a reader that is slow gets larger pieces, not more of them. `owner`: of its dispatcher, which others may share the
    engine with.
    """

    def __init__(
        self,
        index: int,
        echo: str | None,
        loop: asyncio.AbstractEventLoop,
        news: asyncio.Queue[RequestState | None],
        owner: object,
    ) -> None:
        self.loop, self.news, self.owner, self._index, self._echo = loop, news, owner, index, echo
        self._said = self._scored = 0  # characters of the answer after its echo, and logprobs, that were sent
        self._told = self._ended = False  # the echo; the last piece
        self.queued = False  # in `news`
        # Counted in the engine's thread:
        self.begin, self.tokens, self.closed = perf_counter(), 0, False

    def next_piece(self, state: RequestState) -> Piece | None:
        """The part of the answer that has not been sent, if there is one."""
        self.queued = False
        finish = state.finish  # first: at the end, all else is whole
        text = state.text[self._said :]
        self._said += len(text)
        if self._echo and not self._told and (state.answer or finish is not None):
            text, self._told = self._echo + text, True
        if self._ended or not (text or finish is not None):
            return None
        self._ended = finish is not None
        return Piece(self._index, text, self._logprobs(state, finish), finish, state.error)

    def _logprobs(self, state: RequestState, finish: str | None) -> list[TokenLogprobs]:
        """Logprobs of the tokens that begin in the text so far; at an end without a stop, of all the rest."""
        echo, prompt = self._echo or "", [] if self._echo is None else state.prompt_logprobs
        whole, said, next_ones = finish not in (None, "stop"), len(echo) + self._said, list[TokenLogprobs]()
        while self._scored < len(prompt) + len(state.logprobs):
            if self._scored < len(prompt):
                token = prompt[self._scored]
            else:
                token = state.logprobs[self._scored - len(prompt)]
                token = replace(token, offset=len(echo) + token.offset) if echo else token
            if not whole and token.offset >= said:
                break
            next_ones.append(token)
            self._scored += 1
        return next_ones


class Dispatcher:
    """Admits requests to an engine, and sends the pieces of their answers to the event loops that asked for them.

    It may be closed, and start again. Where nothing closes it (a parent application need not say when its parts start
    and end), the program's end does.
    """

    def __init__(self, engine: Engine, metrics: Metrics, max_requests: int) -> None:
        self.engine, self._metrics, self._max_requests = engine, metrics, max_requests
        self._lock, self._count = RLock(), 0  # a signal may close it at any place
        self._open: WeakSet[Answers] = WeakSet()
        self._started = self._closed = False
        self._timer: Timer | None = None
        self._sent: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()  # what it has not taken
        self.owner = object()
        on_step = WeakMethod(self._on_step)  # the engine's thread keeps nobody alive
        finalize(self, engine.watch(lambda *step: (method := on_step()) and method(*step)))
        metrics.watch(engine, lambda: self._count, self.stuck)

    def start(self) -> None:
        """Takes requests, also after a `close`."""
        self._started, self._closed = True, False
        self._sent.clear()
        if self._timer is not None:
            self._timer.cancel()

    def alive(self) -> bool:
        """Whether requests are taken and answered."""
        return not self._closed and self.engine.loop.failure is None

    def stuck(self) -> float:
        """For how many seconds neither a step has ended nor a loop, if it is open, has taken what it was sent."""
        now = perf_counter()
        sent = (begin for loop, begin in list(self._sent.items()) if not loop.is_closed())
        return max(now - (begin or now) for begin in (self.engine.loop.began, *sent))

    def reserve(self, answers: Answers, count: int) -> None:
        """Takes places for that many requests. Raises KvCacheError "shutting_down" and "overloaded"."""
        with self._lock:
            if self._closed:
                raise KvCacheError("the server is shutting down", SHUTTING_DOWN)
            if self._count + count > self._max_requests:
                message = f"{self._count} requests run or wait, expected at most {self._max_requests} with {count} more"
                raise KvCacheError(message, OVERLOADED)
            self._count += count
            self._open.add(answers)
            if not self._started:
                self.start()
                atexit.register(self.end)  # nothing says when it is to end

    def release(self, count: int) -> None:
        """Returns places."""
        with self._lock:
            self._count -= count

    def close(self, grace: float) -> None:
        """Takes no more prompts; answers that have not ended in `grace` seconds end with an error."""
        self._closed = True
        if grace <= 0:
            self._end_answers()
        elif isfinite(grace):
            self._timer = Timer(grace, self._end_answers)
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        """Closes, and stores the engine's prefixes in its tiers."""
        self.close(0)
        self.engine.close()

    def _end_answers(self) -> None:
        with self._lock:
            answers = list(self._open)
        for each in answers:
            each.cancel(KvCacheError("the server is shutting down", SHUTTING_DOWN))

    def _on_step(self, seconds: float, changed: list[RequestState]) -> None:
        """Updates the metrics, and sends all news of a step at once. Called in the engine's thread."""
        self._metrics.step.observe(seconds)
        news: dict[asyncio.AbstractEventLoop, list[RequestState]] = defaultdict(list)
        for state in changed:
            choice = state.tag
            if not isinstance(choice, Choice) or choice.owner is not self.owner or choice.closed:
                continue
            if state.answer and not choice.tokens:
                self._metrics.first_token.observe(perf_counter() - choice.begin)
            self._metrics.generated.inc(len(state.answer) - choice.tokens)
            choice.tokens = len(state.answer)
            if state.finish is not None:
                choice.closed = True
                self.release(1)
                self._metrics.ended(state, perf_counter() - choice.begin)
            news[choice.loop].append(state)
        for loop, states in news.items():
            self._sent.setdefault(loop, perf_counter())
            try:
                loop.call_soon_threadsafe(self._deliver, loop, states)
            except RuntimeError:  # it is closed: nobody listens
                for state in states:
                    state.cancel()

    def _deliver(self, loop: asyncio.AbstractEventLoop, states: list[RequestState]) -> None:
        if (sent := self._sent.pop(loop, None)) is not None:  # of several deliveries, the first takes it
            self._metrics.loop.observe(perf_counter() - sent)
        for state in states:
            if not state.tag.queued:
                state.tag.queued = True
                state.tag.news.put_nowait(state)


class Answers:
    """The answers to the prompts of one call, `n` to each: choices in the order of the prompts.

    They have their places from the beginning, before a prompt is tokenized, until `cancel` or their ends.
    """

    def __init__(self, dispatcher: Dispatcher, prompts: int, n: int) -> None:
        """Raises KvCacheError "shutting_down" and "overloaded"."""
        self._dispatcher, self._n, self._reserved = dispatcher, n, prompts * n
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Queue[RequestState | None] = asyncio.Queue()
        self._lock, self._cancelled = RLock(), False
        self._requests: list[Request] = []
        dispatcher.reserve(self, prompts * n)

    def submit(self, prompts: list[list[int]], echoes: list[str | None], sampling: dict[str, Any]) -> None:
        """Submits the prompts, whose answers begin with their `echoes`. Raises what `Engine.submit` raises.

        The engine computes equal prompts once. With a seed, each answer to one has a seed of its own.
        """
        seed = sampling["seed"]
        for i in range(len(prompts) * self._n):
            choice = Choice(i, echoes[i // self._n], self._loop, self._news, self._dispatcher.owner)
            seeded = {"seed": None if seed is None else (seed + i % self._n) % LARGEST_SEED}
            with self._lock:
                if self._cancelled:
                    raise KvCacheError("the server is shutting down", SHUTTING_DOWN)
                request = self._dispatcher.engine.submit(prompts[i // self._n], tag=choice, **sampling | seeded)
                self._requests.append(request)
                self._reserved -= 1

    async def pieces(self, quiet: float | None = None) -> AsyncIterator[Piece | None]:
        """The pieces of all answers, until the last one ends; None after `quiet` seconds without one, or a `nudge`."""
        left = len(self._requests)
        while left:
            try:
                state = await asyncio.wait_for(self._news.get(), quiet)
            except asyncio.TimeoutError:  # noqa: UP041, of Python 3.10
                state = None
            if state is None:
                yield None
            elif (piece := state.tag.next_piece(state)) is not None:
                left -= piece.finish is not None
                yield piece

    def nudge(self) -> None:
        """Makes `pieces` give None."""
        self._news.put_nowait(None)

    def cancel(self, error: KvCacheError | None = None) -> None:
        """Ends the answers that have not ended, with an error if there is one; others do not begin."""
        with self._lock:
            self._cancelled = True
            self._dispatcher.release(self._reserved)
            self._reserved = 0
            for request in self._requests:
                request.cancel(error)

    def usage(self) -> dict[str, object]:
        """How many tokens it took, of requests that have ended; a prompt counts once."""
        first = self._requests[:: self._n]
        prompt, answer = sum(len(r.prompt) for r in first), sum(len(r.answer) for r in self._requests)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
            "prompt_tokens_details": {"cached_tokens": sum(r.cached for r in first)},
        }

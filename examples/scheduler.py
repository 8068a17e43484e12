"""Continuous batching: who is in the batch of each step. Where rows lie is the business of the cache manager.

Requests join and leave between steps. A step runs the whole prompt of a request that has just joined (less what the
manager finds cached) and one token of every other. Where the cache has no room for all, also not after its rows have
been brought together, the youngest gives its place up and waits at the head of the queue until another leaves; the
pages that it filled stay in the prefix index as long as nobody needs them, so little is computed again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from kvcache_ops.manager import Append, CapacityError, HostMemory, Manager, Step


def logits_by_append(step: Step, lengths: list[int], logits: np.ndarray) -> list[np.ndarray]:
    """The logits of each append's computed tokens, in the order of the appends; `lengths`: how many tokens each had.

    A step puts entries of one token first and leaves out what is cached.
    """
    first, rows = 0, [logits[:0]] * len(lengths)
    for append, cached in zip(step.order, step.cached):
        end = first + lengths[append] - cached
        rows[append] = logits[first:end]
        first = end
    return rows


def likeliest(logits: np.ndarray) -> int:
    """The token of the largest logit."""
    return int(logits.argmax())


@dataclass(eq=False)
class Request:
    """A prompt and what has been generated for it; `logits` keeps every step's output, with its first token's index."""

    name: str
    prompt: list[int]
    max_new_tokens: int
    arrives: int = 0
    choose: Callable[[np.ndarray], int] = likeliest  # from the last token's logits to the next token
    tokens: list[int] = field(init=False)
    seq: int | None = None  # its sequence in the manager while it runs
    stored: int = 0  # how many of its tokens the sequence has
    found: int = 0  # how many were found in the cache when it joined last
    computed: int = 0  # how many were computed, over all the times that it joined
    logits: list[tuple[int, np.ndarray]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def finished(self) -> bool:
        """Whether all of its tokens are there."""
        return len(self.tokens) == len(self.prompt) + self.max_new_tokens

    @property
    def answer(self) -> tuple[list[int], list[tuple[int, np.ndarray]]]:
        """Its stored tokens and their logits: all but the last token, which is never run."""
        return self.tokens[:-1], self.logits


class Scheduler:
    """Decides step by step which requests run."""

    def __init__(self, manager: Manager, memory: HostMemory, max_batch: int):
        self.manager = manager
        self.memory = memory
        self.max_batch = max_batch
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # the youngest last
        self._crowded = False  # somebody was preempted, and nobody has left since

    def serve(self, requests: list[Request], run: Callable[[Step], np.ndarray]) -> Iterator[int]:
        """Steps until all requests are finished; how many ran in each."""
        self.waiting.extend(requests)
        now = 0
        while self.waiting or self.running:
            yield self.step(now, run)
            now += 1

    def step(self, now: int, run: Callable[[Step], np.ndarray]) -> int:
        """One step of all that run: `run` gives the logits of the step's tokens, each chooses its next one."""
        self._join(now)
        if not self.running:
            return 0
        step = self._begin()
        with step:
            logits = run(step)
        lengths = [len(request.tokens) - request.stored for request in self.running]
        for append, cached in zip(step.order, step.cached):
            self.running[append].stored += int(cached)
            self.running[append].found += int(cached)
        for request, rows in zip(self.running, logits_by_append(step, lengths, logits)):
            request.logits.append((request.stored, rows))
            request.computed += len(rows)
            request.stored = len(request.tokens)
            request.tokens.append(request.choose(rows[-1]))
        batch = len(self.running)
        self._leave()
        return batch

    def _join(self, now: int) -> None:
        """Lets requests in that have arrived, in order, as long as there are places."""
        while self.waiting and self.waiting[0].arrives <= now and len(self.running) < self.max_batch:
            if self._crowded:
                break
            request = self.waiting.popleft()
            request.seq, request.stored, request.found = self.manager.create(), 0, 0
            self.running.append(request)

    def _begin(self) -> Step:
        """Opens a step for all that run; where there is no room, the youngest goes until there is."""
        while True:
            appends = [Append(request.seq, tokens=request.tokens[request.stored :]) for request in self.running]
            try:
                return self.manager.begin_step(appends, self.memory)
            except CapacityError as error:
                if error.kind == "no_slot" and self.manager.defrag():  # there may be room, in pieces
                    continue
                if len(self.running) == 1:  # it would not fit later either
                    raise
                youngest = self.running.pop()
                self._free(youngest)
                self.waiting.appendleft(youngest)
                self._crowded = True

    def _leave(self) -> None:
        """Lets those go that are finished."""
        left = [request for request in self.running if request.finished]
        self.running = [request for request in self.running if not request.finished]
        for request in left:
            self._free(request)
            self._crowded = False

    def _free(self, request: Request) -> None:
        self.manager.free(request.seq)
        request.seq = None

"""The steps of the case `decode`, made by the scheduler that there was before the manager."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns, thread_time_ns

import numpy as np

from measure import Contender
from native import Measured, WrongAnswer
from scheduler_peer import Batch, PagePool, Request, Scheduler

PAGE_SIZE = 16
STEPS = 16  # that are measured in one go: each sequence takes one page meanwhile
SPREAD = PAGE_SIZE  # as in the library


def lengths(batch: int, kvlen: int) -> list[int]:
    """The rows of each sequence when a measurement begins."""
    return [kvlen + i % SPREAD for i in range(batch)]


def measured_steps(before: Callable[[int], None], step: Callable[[], object], after: Callable[[], None]) -> Measured:
    """The time of a step, between what comes before it, given its number, and after it."""
    wall = cpu = 0
    for number in range(STEPS):
        before(number)
        wall_begin, cpu_begin = perf_counter_ns(), thread_time_ns()
        step()
        cpu += thread_time_ns() - cpu_begin
        wall += perf_counter_ns() - wall_begin
        after()
    return Measured(cpu / STEPS, cpu / wall)


class SchedulerPeer:
    """Requests that run, each with one token that is not stored yet."""

    def __init__(self, batch: int, kvlen: int) -> None:
        self._lengths = lengths(batch, kvlen)
        pages = batch * ((kvlen + SPREAD + STEPS) // PAGE_SIZE + 1)
        self._scheduler = Scheduler(PagePool(pages), PAGE_SIZE, batch)
        for i, length in enumerate(self._lengths):
            request = Request(f"{i}", [i, *range(1, length)], max_new_tokens=2 * STEPS)
            request.cached = length
            self._scheduler.running.append(request)
        self._scheduler.batch()  # takes the pages of the prompts

    def contender(self) -> Contender:
        """Only `batch()` is measured, of all that the scheduler does in a step: pages are taken, tensors are made."""
        return Contender("scheduler.py", "manager", 1, lambda _turn, _iterations: self._sample())

    def batch(self) -> Batch:
        """The tensors of a step of one token each."""
        self._append(0)
        batch = self._scheduler.batch()
        self._cut_back()
        return batch

    def _sample(self) -> Measured:
        measured = measured_steps(self._append, self._scheduler.batch, self._advance)
        self._cut_back()
        return measured

    def _append(self, token: int) -> None:
        for request in self._scheduler.running:
            request.tokens.append(token)

    def _advance(self) -> None:
        for request in self._scheduler.running:
            request.cached += 1

    def _cut_back(self) -> None:
        for request, length in zip(self._scheduler.running, self._lengths):
            del request.tokens[length:]
            request.cached = length
            while (len(request.pages) - 1) * PAGE_SIZE >= length:
                self._scheduler.pool.release(request.pages.pop())


def check_same_step(batch: Batch, tensors: list[np.ndarray]) -> None:
    """Raises `WrongAnswer` unless a step of the library has the scheduler's tensors, but for which page is which."""
    seqstarts, kvstarts, start_pos, cachestarts, _token_ids, _positions, max_lens = tensors
    expected = {
        "seqstarts": (batch.seqstarts, seqstarts),
        "kvstarts": (batch.kvstarts, kvstarts),
        "start_pos": (batch.start_pos, start_pos),
        "max_seqlen, max_kvlen": (np.stack([batch.max_seqlen, batch.max_kvlen]), max_lens),
        "cachestarts": (in_order_of_appearance(batch.cachestarts), in_order_of_appearance(cachestarts)),
    }
    for name, (theirs, ours) in expected.items():
        if not np.array_equal(theirs, ours):
            raise WrongAnswer(f"decode: {name} is {ours}, the scheduler's is {theirs}")


def in_order_of_appearance(starts: np.ndarray) -> np.ndarray:
    """Pages by the order in which they first appear; unused entries stay."""
    flat = starts.reshape(-1)
    _, first, inverse = np.unique(flat, return_index=True, return_inverse=True)
    order = np.empty_like(first)
    order[np.argsort(first)] = np.arange(len(first))
    return np.where(flat < 0, flat, order[inverse])

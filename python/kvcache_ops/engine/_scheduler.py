"""Which requests run, and what each of them gets of a step.

step: while there is room, waiting requests join those that run
      each running one gets its part of the token budget (_parts)
      open a step of the manager; without room for all, the youngest gives up its place (_begin)
      run the session, and draw the next token of each that has all of its context stored
      free what has ended, and tell who reads
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from functools import cache, partial
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcache_ops._errors import CapacityError, KvCacheError, ManagerError
from kvcache_ops.engine._request import PromptLookup, RequestState
from kvcache_ops.manager import Append, Step
from kvcache_ops.models._grouped_manager import Caches, GroupsStep, StepInputs

LOG = logging.getLogger("kvcache_ops.engine")
_SCORED_BYTES = 64 << 20  # of logits of prompts in a step


class Scheduler:
    """The requests of an engine, and its steps. One thread at a time calls its methods, but for `running`."""

    def __init__(
        self,
        session: Any,
        caches: Caches,
        vocab_size: int,
        context_length: int,
        max_batch: int,
        token_budget: int,
        prompt_lookup: int,
    ) -> None:
        self._session, self._caches, self._manager, self._memory = session, caches, caches.manager, caches.memory
        self._context_length, self._max_batch = context_length, max_batch
        self._budget, self._lookup, self._page = token_budget, prompt_lookup, caches.caches[0].spec.page_size
        self._inputs = StepInputs(session)
        # A step costs what runs, however many wait.
        self._waiting: OrderedDict[RequestState, None] = OrderedDict()
        self._running: dict[RequestState, None] = {}  # the youngest last
        self._changed: dict[RequestState, None] = {}  # in this step
        self._passed = 0  # requests that have passed the first one that waits
        self._most_scored = max(_SCORED_BYTES // (4 * vocab_size), 1)
        self._logits = np.empty((max_batch, vocab_size), np.float32)
        self._binding = session.io_binding()
        caches.bind(self._binding)
        self._asked: set[RequestState] = set()  # in this step, what of them is cached
        self._closed: KvCacheError | None = None
        self.idle = True  # a further step would compute nothing
        self.watchers: dict[object, Callable[[float, list[RequestState]], None]] = {}

    @property
    def running(self) -> list[RequestState]:
        """The requests that steps compute now, the youngest last; others wait. Any thread may ask."""
        return list(self._running)

    def add(self, state: RequestState) -> None:
        """Lets a request wait for a place, unless it was cancelled before."""
        if self._closed is not None:
            state.end("error", self._closed)
            self._changed[state] = None
            self._tell(0.0)
        elif state.finish is None:
            self._waiting[state] = None
        else:
            self._changed[state] = None  # the next step tells its end

    def forget(self, state: RequestState) -> None:
        """Frees the place of a request that was cancelled."""
        self._waiting.pop(state, None)
        self._free(state)
        self._changed[state] = None

    def close(self, error: KvCacheError) -> None:
        """Ends all requests with an error, and every later one."""
        self._closed = error
        for state in [*self._running, *self._waiting]:
            state.end("error", error)
            self._changed[state] = None
        self._tell(0.0)

    def step(self) -> bool:
        """One step of all that run. Returns whether anything is left to do.

        What it raises ends the requests that run, with the error "step_failed"; without any, it is raised.
        """
        begin = perf_counter()
        self._asked.clear()
        try:
            for state in self.running:
                if state.finish is not None:  # cancelled by a thread that has not yet said `forget`
                    self.forget(state)
            self._join()
            computed = self._advance()
        except BaseException as error:  # of ONNX Runtime, or a panic in Rust
            if not self._running:
                raise
            LOG.exception("a step failed")
            failed, computed = KvCacheError(f"a step failed: {error}", "step_failed"), True
            failed.__cause__ = error
            for state in self.running:
                self._end(state, "error", failed)
        left = bool(self._running or self._waiting)
        self.idle = not (left and computed)
        self._tell(perf_counter() - begin)
        return left

    def _tell(self, seconds: float) -> None:
        """Wakes the readers of changed requests, once the step is done."""
        changed, self._changed = list(self._changed), {}
        for state in changed:
            state.tell()
        if changed or self._running:
            for on_step in list(self.watchers.values()):
                on_step(seconds, changed)

    def _join(self) -> None:
        """Lets requests run in their order. A preempted request waits until all of it fits.

        Meanwhile requests whose whole answers fit may pass it, at most four times `max_batch`.
        """
        blocked, free = False, cache(self._caches.free)  # which a sequence without rows does not change
        for state in list(islice(self._waiting, 4 * self._max_batch)):
            if len(self._running) == self._max_batch:
                return
            if blocked:
                whole = min(len(state.context) + state.sampling.max_new_tokens, self._context_length)
                if self._passed == 4 * self._max_batch or not self._has_room(whole, free()):
                    continue
                self._passed += 1
            elif state.preempted and self._running and not self._has_room(len(state.context), free()):
                blocked = True
                continue
            else:
                self._passed = 0
            # Nobody has pages of a salt of its own.
            state.sequence = self._manager.create(salt=os.urandom(16) if state.scoring else b"")
            del self._waiting[state]
            self._running[state] = None
            self._find(state)  # short ones come first, and what is cached is not computed

    def _find(self, state: RequestState) -> None:
        """Asks what of a prompt is cached, once in a step: tiers read it."""
        if state not in self._asked and not state.scoring:  # what would be found in the cache has no logits
            self._asked.add(state)
            state.found = self._manager.find_prefix(Append(state.sequence, tokens=state.context))

    def _has_room(self, tokens: int, free: list[int]) -> bool:
        return self._caches.has_room(tokens, len(self._running), free)

    def _free(self, state: RequestState) -> None:
        if state in self._running:
            del self._running[state]
            self._manager.free(state.sequence)
        state.stored = state.found = state.awaited = 0
        state.guess = []

    def _end(self, state: RequestState, finish: str, error: KvCacheError | None = None) -> None:
        self._free(state)  # first: who sees the end finds the place free
        state.end(finish, error)
        self._changed[state] = None

    def _preempt(self, state: RequestState) -> None:
        """Takes a request's place; it is the next to run, and its tokens that are not cached are computed again."""
        state.preempted |= state.stored > 0
        self._free(state)
        self._waiting[state] = None
        self._waiting.move_to_end(state, last=False)

    def _advance(self) -> bool:
        """Stores each request's part of the step; a request with all of its tokens stored draws the next one.

        Returns False where all running requests are being saved: there is nothing to compute.
        """
        for state in [s for s in self._running if s.stored == len(s.context) - 1 == self._context_length]:
            self._shift(state)
        opened = self._begin()
        if opened is None:
            return not self._running
        step, parts = opened
        order = [int(a) for a in step.order]
        done = [e for e, a in enumerate(order) if parts[a][0].stored + parts[a][1] == len(parts[a][0].context)]
        starts = [int(start) for start in step.seqstarts]
        scored = [e for e, a in enumerate(order) if parts[a][0].scoring]
        with step:
            drawn = [range(starts[e + 1] - 1 - len(parts[order[e]][0].guess), starts[e + 1]) for e in done]
            wanted = [*drawn, *(range(starts[e], starts[e + 1]) for e in scored)]
            logits = self._run(step, [row for rows in wanted for row in rows])
            cached = [int(n) for n in step.cached]
        for a, n in zip(order, cached):
            if not parts[a][0].preempted:
                parts[a][0].cached += n
        of_part = np.split(logits, np.cumsum([len(rows) for rows in wanted])[:-1]) if wanted else []
        for e, rows in zip(scored, of_part[len(done) :]):
            state = parts[order[e]][0]
            self._answer(state, partial(state.score, state.stored + 1, rows))
        for state, n in parts:
            state.stored += n
        for e, rows in zip(done, of_part):
            self._draw(parts[order[e]][0], rows)
        return True

    def _draw(self, state: RequestState, logits: NDArray[np.float32]) -> None:
        """The next token and the correct part of a guess; the sequence loses the rest."""
        (guess, state.guess), before = (state.guess, []), state.guessed
        for row, right in zip(logits, [*guess, None]):
            self._answer(state, partial(state.take, row))
            if state.finish is not None:
                return
            if state.context[-1] != right:
                break
            state.stored += 1
            state.guessed += 1
        if wrong := len(guess) - (state.guessed - before):
            last = self._manager.pos_max(state.sequence)
            assert last is not None  # the sequence has the guess's tokens
            self._manager.seq_rm(state.sequence, last - wrong + 1)

    def _answer(self, state: RequestState, take: Callable[[], str | None]) -> None:
        """Gives a request its logits, unless it has ended meanwhile. An exception ends this request alone."""
        if state.finish is not None:
            return
        try:
            finish = take()
        except KvCacheError as error:
            self._end(state, "error", error)
        except BaseException as error:  # also a panic in Rust: it ends this request alone
            self._end(state, "error", KvCacheError(f"the answer failed: {error}", "answer_failed"))
        else:
            self._changed[state] = None
            if finish is not None:
                self._end(state, finish)

    def _begin(self) -> tuple[Step | GroupsStep, list[tuple[RequestState, int]]] | None:
        """Opens a step, and gives it with its parts. Without room for all, the youngest requests wait."""
        lookup = self._lookup
        while self._running:
            parts, awaited = self._parts(lookup)
            if not parts:  # all running requests are being saved
                return None
            appends = [Append(s.sequence, tokens=s.context[s.stored : s.stored + n] + s.guess) for s, n in parts]
            found = [s for s, _ in parts if not s.stored and s.found]
            try:
                step = self._manager.begin_step(appends, self._memory)
            except CapacityError as error:
                if any(state.guess for state, _ in parts):
                    lookup = 0
                elif found:  # perhaps there is room for a chunk of it
                    for state in found:
                        state.found = 0
                elif error.kind == "no_slot" and self._manager.defrag():
                    pass  # there may be room, in pieces
                elif len(self._running) == 1:
                    self._end(self.running[0], "error", error)
                else:
                    self._preempt(next(s for s in self.running[::-1] if s.missing))
                continue
            if len(step.token_ids) <= self._budget:
                for state, end in awaited.items():
                    state.awaited = end
                return step, parts
            step.rollback()  # a prefix was evicted for another request of this step
            for a, cached in zip(step.order, step.cached):
                state, _ = parts[int(a)]
                state.found = min(state.found, int(cached))
        return None

    def _parts(
        self, lookup: int, reserve: bool = True
    ) -> tuple[list[tuple[RequestState, int]], dict[RequestState, int]]:
        """The requests of the step, each with its number of tokens, cached ones included; and the pages awaited.

        reserve: whether the oldest prompt gets half of the budget. The rest of the budget goes to guesses.
        """
        oldest = next((s for s in self._running if s.missing > 1), None) if reserve else None
        left = self._budget - sum(s.missing == 1 for s in self._running)
        reserved = 0 if oldest is None else min(oldest.missing, (left + 1) // 2)
        left, parts, scored = self._budget - reserved, list[tuple[RequestState, int]](), self._most_scored
        awaited = dict[RequestState, int]()
        for state in sorted(self._running, key=lambda s: s.missing):
            if not state.stored:
                if left or state is oldest:
                    self._find(state)
                if (end := self._awaits(state, parts)) is not None:
                    if state is oldest:  # others get its half
                        return self._parts(lookup, reserve=False)
                    awaited[state] = end
                    continue
            computed = 0
            if state is oldest:
                computed = min(reserved, state.missing)
                left += reserved - computed
            more = min(state.missing - computed, left)
            left -= more
            computed += more
            if state.scoring:
                computed = min(computed, scored)
                scored -= computed
            if computed:
                parts.append((state, len(state.context) - state.missing - state.stored + computed))
        for state, _ in parts:
            state.guess = []
            if state.stored == len(state.context) - 1:
                room = min(self._context_length - len(state.context), state.missing_answer - 1, left, lookup)
                state.guess = state.lookup.guess(state.context, room) if room > 0 else []
                left -= len(state.guess)
        return parts, awaited

    def _awaits(self, state: RequestState, parts: list[tuple[RequestState, int]]) -> int | None:
        """The end of a new prompt's next page, if it waits for that: the step computes it for another request.

        The next step finds it. No page is awaited twice: where requests do not share, the second step computes it.
        """
        end = state.found + self._page
        others = (other.context for other, n in parts if other.stored < end <= other.stored + n)
        waits = state.awaited < end < len(state.context)
        return end if waits and any(other[:end] == state.context[:end] for other in others) else None

    def _shift(self, state: RequestState) -> None:
        """Drops tokens after the first `keep` of a full context, or ends the request."""
        if state.keep is None:
            return self._end(state, "length")
        try:
            removed = self._manager.context_shift(state.sequence, self._context_length, 1, n_keep=state.keep)
        except ManagerError as error:
            if error.kind not in ("shift_limit", "not_shiftable") and not isinstance(error, CapacityError):
                return self._end(state, "error", error)
            removed = (self._context_length - state.keep) // 2  # the rest is computed again
            self._preempt(state)
        state.stored = max(state.stored - removed, 0)
        state.shifted, state.lookup = state.shifted + removed, PromptLookup()
        del state.context[state.keep : state.keep + removed]

    def _run(self, step: Step | GroupsStep, rows: list[int]) -> NDArray[np.float32]:
        """Runs an open step; the logits (rows, vocabulary) of these tokens, valid until the next run."""
        feeds = self._inputs(step, rows)  # which the binding does not keep
        for name, array in feeds.items():
            self._binding.bind_cpu_input(name, array)
        if len(rows) > len(self._logits):  # of prompts whose logprobs somebody wants
            self._logits = np.empty((len(rows), self._logits.shape[1]), np.float32)
        logits = self._logits[: len(rows)]
        self._binding.bind_output("logits", "cpu", 0, np.float32, logits.shape, logits.ctypes.data)
        self._session.run_with_iobinding(self._binding)
        return logits

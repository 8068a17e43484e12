"""Continuous batching over a paged cache: who is in the batch, and which pages hold whose tokens.

Requests join and leave between steps. A step runs the whole prompt of a request that has just joined (less what it
shares) and one token of every other; the operator takes them packed. Pages are counted: requests with a common
beginning share the full pages of it, and a page returns to the pool with its last reader. Sharing works from the step
in which the first owner stores the page, as a call stores everything before it loads anything.

This was examples/scheduler.py up to commit 39b38cf, before the manager counted pages. It stays as it was, as a peer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np


class PagePool:
    """Hands out the pages of a cache and counts their users."""

    def __init__(self, num_pages: int):
        self.num_pages = num_pages
        self.allocations = 0
        self._free = list(range(num_pages))
        self._users = [0] * num_pages

    def allocate(self) -> int:
        """A free page, the latest freed first."""
        page = self._free.pop()
        self._users[page] = 1
        self.allocations += 1
        return page

    def share(self, page: int) -> None:
        """One more user for a page in use."""
        self._users[page] += 1

    def release(self, page: int) -> bool:
        """One user less; true if it was the last and the page is free again."""
        self._users[page] -= 1
        if self._users[page] == 0:
            self._free.append(page)
        return self._users[page] == 0

    @property
    def free(self) -> int:
        """How many pages are free."""
        return len(self._free)


@dataclass
class Request:
    """A prompt and what has been generated for it; `logits` keeps every step's output for comparison."""

    name: str
    prompt: list[int]
    max_new_tokens: int
    arrives: int = 0
    tokens: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    cached: int = 0
    shared: int = 0
    logits: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def finished(self) -> bool:
        """Whether all of its tokens are there."""
        return len(self.tokens) == len(self.prompt) + self.max_new_tokens


@dataclass(frozen=True)
class Batch:
    """The packed inputs of one step, all but cache and scale."""

    token_ids: np.ndarray
    seqstarts: np.ndarray
    kvstarts: np.ndarray
    cachestarts: np.ndarray
    start_pos: np.ndarray
    max_seqlen: np.ndarray
    max_kvlen: np.ndarray

    @classmethod
    def pack(cls, requests: list[Request], page_size: int) -> Batch:
        """The tokens of each request that are not cached yet; pages as the slots where they begin, padded with -1."""
        new = [request.tokens[request.cached :] for request in requests]
        seqlen = np.array([len(tokens) for tokens in new], np.int64)
        start_pos = np.array([request.cached for request in requests], np.int64)
        kvlen = start_pos + seqlen
        max_pages = max((len(request.pages) for request in requests), default=0)
        cachestarts = np.full((len(requests), max_pages), -1, np.int64)
        for row, request in zip(cachestarts, requests):
            row[: len(request.pages)] = np.array(request.pages) * page_size
        return cls(
            token_ids=np.array([token for tokens in new for token in tokens], np.int64),
            seqstarts=np.concatenate([[0], np.cumsum(seqlen)]).astype(np.int64),
            kvstarts=np.concatenate([[0], np.cumsum(kvlen)]).astype(np.int64),
            cachestarts=cachestarts,
            start_pos=start_pos,
            max_seqlen=np.array(seqlen.max(initial=0)),
            max_kvlen=np.array(kvlen.max(initial=0)),
        )


class Scheduler:
    """Decides step by step which requests run, and where their tokens go."""

    def __init__(self, pool: PagePool, page_size: int, max_batch: int):
        self.pool = pool
        self.page_size = page_size
        self.max_batch = max_batch
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._prefixes: dict[tuple[int, ...], int] = {}  # tokens from the beginning to a page's end -> that page
        self._page_prefix: dict[int, tuple[int, ...]] = {}

    def submit(self, request: Request) -> None:
        """Puts a request into the queue."""
        needed = self._pages_for(request)
        if needed > self.pool.num_pages:
            raise ValueError(f"{request.name} needs {needed} pages, the cache has {self.pool.num_pages}")
        self.waiting.append(request)

    def join(self, step: int) -> list[Request]:
        """Lets requests in that have arrived, in order, as long as places and pages last; returns them."""
        joined = []
        while self.waiting and self.waiting[0].arrives <= step and len(self.running) < self.max_batch:
            request = self.waiting[0]
            shared = self._find_prefix(request)
            promised = sum(self._pages_for(other) - len(other.pages) for other in self.running)
            if self._pages_for(request) - len(shared) > self.pool.free - promised:
                break
            self.waiting.popleft()
            for page in shared:
                self.pool.share(page)
            request.pages = shared
            request.cached = request.shared = len(shared) * self.page_size
            self._grow(request)
            self._remember_prefix(request)
            self.running.append(request)
            joined.append(request)
        return joined

    def batch(self) -> Batch:
        """The inputs of this step for all that run."""
        for request in self.running:
            self._grow(request)
        return Batch.pack(self.running, self.page_size)

    def advance(self, batch: Batch, logits: np.ndarray) -> list[Request]:
        """Takes a step's logits: one more token, the likeliest, for each; returns those that are finished and leave."""
        for request, first, end in zip(self.running, batch.seqstarts, batch.seqstarts[1:]):
            request.logits.append(logits[first:end])
            request.cached = len(request.tokens)
            request.tokens.append(int(logits[end - 1].argmax()))
        left = [request for request in self.running if request.finished]
        self.running = [request for request in self.running if not request.finished]
        for request in left:
            self._release(request)
        return left

    def _pages_for(self, request: Request) -> int:
        """The pages that a request ends up with; its last token is never stored."""
        return -(-(len(request.prompt) + request.max_new_tokens - 1) // self.page_size)

    def _grow(self, request: Request) -> None:
        """Gives a request the pages for all its present tokens."""
        while len(request.pages) * self.page_size < len(request.tokens):
            request.pages.append(self.pool.allocate())

    def _find_prefix(self, request: Request) -> list[int]:
        """Pages in use that hold the beginning of the prompt, and leave at least one of its tokens to compute."""
        pages = []
        for end in range(self.page_size, len(request.prompt), self.page_size):
            page = self._prefixes.get(tuple(request.prompt[:end]))
            if page is None:
                break
            pages.append(page)
        return pages

    def _remember_prefix(self, request: Request) -> None:
        """Offers the full pages of a prompt to later requests."""
        for index in range(len(request.prompt) // self.page_size):
            prefix = tuple(request.prompt[: (index + 1) * self.page_size])
            if prefix not in self._prefixes:
                self._prefixes[prefix] = request.pages[index]
                self._page_prefix[request.pages[index]] = prefix

    def _release(self, request: Request) -> None:
        """Gives a request's pages back; those that nobody else reads are forgotten."""
        for page in request.pages:
            if self.pool.release(page) and page in self._page_prefix:
                del self._prefixes[self._page_prefix.pop(page)]
        request.pages = []

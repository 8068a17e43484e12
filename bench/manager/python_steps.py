"""The steps of the case `decode`, made through the manager's Python binding."""

from __future__ import annotations

from time import perf_counter_ns, thread_time_ns

import numpy as np
from kvcache_ops.manager import Append, CacheSpec, HostMemory, Manager, Step

from measure import Contender
from native import Measured, WrongAnswer

PAGE_SIZE = 16
STEPS = 16  # that are measured in one go: each sequence takes one page meanwhile
SPREAD = PAGE_SIZE  # as in the library
TENSORS = "token_ids", "seqstarts", "kvstarts", "cachestarts", "start_pos", "max_seqlen", "max_kvlen"


class PythonSteps:
    """Sequences that decode in a cache of two values a row, which nobody reads."""

    def __init__(self, batch: int, kvlen: int) -> None:
        self._lengths = [kvlen + i % SPREAD for i in range(batch)]
        pages = batch * ((kvlen + SPREAD + STEPS) // PAGE_SIZE + 1)
        spec = CacheSpec(2 * pages * PAGE_SIZE, 1, 2, dtype="float32", cache_mode=1, page_size=PAGE_SIZE)
        self._manager, self._memory = Manager(spec), HostMemory(spec, np.zeros(spec.cache_shape, np.float32))
        self._seqs = [self._manager.create() for _ in self._lengths]
        for i, (seq, length) in enumerate(zip(self._seqs, self._lengths)):
            self._manager.begin_step([Append(seq, [i, *range(1, length)])], self._memory).commit()
        self._token = 0
        self._check()

    def contender(self) -> Contender:
        """All that a step takes: its appends are made, it is planned, its tensors are asked for, it is committed."""
        return Contender("manager from Python", 1, lambda _turn, _iterations: self._sample())

    def _sample(self) -> Measured:
        wall = cpu = 0
        for _ in range(STEPS):
            self._token = (self._token + 1) % 30000  # so that no page is found in the prefix index
            tokens = [self._token] * len(self._seqs)
            wall_begin, cpu_begin = perf_counter_ns(), thread_time_ns()
            step = self._begin(tokens)
            for name in TENSORS:
                getattr(step, name)
            step.commit()
            cpu += thread_time_ns() - cpu_begin
            wall += perf_counter_ns() - wall_begin
        self._cut_back()
        return Measured(cpu / STEPS, cpu / wall)

    def _begin(self, tokens: list[int]) -> Step:
        appends = [Append(seq, token) for seq, token in zip(self._seqs, tokens)]
        return self._manager.begin_step(appends, self._memory)

    def _check(self) -> None:
        """Raises `WrongAnswer` unless a step's tensors are those of sequences of these lengths."""
        step = self._begin([0] * len(self._seqs))
        kvlens = np.array(self._lengths) + 1
        right = {
            "seqstarts": np.arange(len(kvlens) + 1),
            "kvstarts": np.concatenate([[0], np.cumsum(kvlens)]),
            "start_pos": kvlens - 1,
            "max_kvlen": kvlens.max(),
        }
        wrong = [name for name, expected in right.items() if not np.array_equal(getattr(step, name), expected)]
        used = np.sort(step.cachestarts[step.cachestarts >= 0])
        if wrong or len(np.unique(used)) != len(used) or len(used) != np.sum(-(-kvlens // PAGE_SIZE)):
            raise WrongAnswer(f"a step from Python: {wrong or 'its pages'}")
        step.commit()
        self._cut_back()

    def _cut_back(self) -> None:
        for seq, length in zip(self._seqs, self._lengths):
            self._manager.seq_rm(seq, length)

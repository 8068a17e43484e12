"""The steps of the case `decode`, made by the manager's Python binding."""

from __future__ import annotations

import numpy as np
from kvcache_ops.manager import Append, CacheSpec, HostMemory, Manager, Step

from measure import Contender
from native import Measured
from scheduler_peer import Batch
from scheduler_steps import PAGE_SIZE, SPREAD, STEPS, check_same_step, lengths, measured_steps


class ManagerPeer:
    """The manager's binding, with a cache of two values a row, which nobody reads."""

    def __init__(self, batch: int, kvlen: int) -> None:
        self._lengths = lengths(batch, kvlen)
        pages = batch * ((kvlen + SPREAD + STEPS) // PAGE_SIZE + 1)
        shape = dict(num_layer=1, num_heads=1, head_dim=2, max_t=2 * pages * PAGE_SIZE)
        spec = CacheSpec(**shape, cache_type="float32", mode="paged", page_size=PAGE_SIZE)
        self._manager, self._memory = Manager(spec), HostMemory(spec, np.zeros(spec.cache_shape, np.float32))
        self._seqs = [self._manager.create() for _ in self._lengths]
        for i, (seq, length) in enumerate(zip(self._seqs, self._lengths)):
            self._manager.begin_step([Append(seq, [i, *range(1, length)])], self._memory).commit()
        self._token = 0
        self._sampled(0)

    def contender(self) -> Contender:
        """All that a step takes: its appends are made, it is planned, its tensors are asked for, it is committed."""
        return Contender("manager from Python", "manager", 1, lambda _turn, _iterations: self._sample())

    def batch(self) -> Batch:
        """The tensors of a step of one token each."""
        step = self._begin()
        batch = Batch(**{name: np.array(value) for name, value in self._tensors(step).items()})
        step.commit()
        self._cut_back()
        return batch

    def _sample(self) -> Measured:
        measured = measured_steps(self._sampled, self._step, lambda: None)
        self._cut_back()
        return measured

    def _sampled(self, _number: int) -> None:
        self._token = (self._token + 1) % 30000  # so that no page is found in the prefix index
        self._tokens = [self._token] * len(self._seqs)

    def _step(self) -> None:
        step = self._begin()
        self._tensors(step)
        step.commit()

    def _begin(self) -> Step:
        appends = [Append(seq, token) for seq, token in zip(self._seqs, self._tokens)]
        return self._manager.begin_step(appends, self._memory)

    @staticmethod
    def _tensors(step: Step) -> dict[str, np.ndarray | int]:
        return dict(
            token_ids=step.token_ids,
            seqstarts=step.seqstarts,
            kvstarts=step.kvstarts,
            cachestarts=step.cachestarts,
            start_pos=step.start_pos,
            max_seqlen=step.max_seqlen,
            max_kvlen=step.max_kvlen,
        )

    def _cut_back(self) -> None:
        for seq, length in zip(self._seqs, self._lengths):
            self._manager.seq_rm(seq, length)


def check_same_batch(expected: Batch, batch: Batch) -> None:
    """Raises `WrongAnswer` unless a step's tensors are the scheduler's, but for which page is which."""
    lens = np.stack([batch.max_seqlen, batch.max_kvlen])
    check_same_step(expected, [batch.seqstarts, batch.kvstarts, batch.start_pos, batch.cachestarts, [], [], lens])

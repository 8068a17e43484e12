"""Selecting blocks by queries against a bare pass of dot products; steps over long sequences against short ones."""

from __future__ import annotations

from mmap import mmap
from time import perf_counter_ns, thread_time_ns
from typing import Any

import kvcache_ops
import numpy as np
from kvcache_ops import CacheSpec
from kvcache_ops.manager import Append, HostMemory, InfLlm, Manager

from figures import Contender, Measured, Row, quotient
from native import WrongAnswer

BLOCKS, HEADS, HEAD_DIM, TOPK, CHUNK = 8192, 8, 128, 16, 1024
MILLION, LAYERS = 10**6, 16


class Selection:
    """A sequence with many blocks of one token, whose representative is the token's key."""

    def __init__(self) -> None:
        spec = CacheSpec(4 * CHUNK, HEADS, HEAD_DIM, dtype="float32", cache_mode=1, page_size=1)
        self.memory = HostMemory(spec, *spec.allocate())
        self.infllm = InfLlm(spec, init=0, local=1, block=1, topk=TOPK, repr_topk=1)
        self.seq, self.random = self.infllm.create(), np.random.default_rng(1)
        self.keys = np.empty((0, HEADS * HEAD_DIM), np.float32)
        for _ in range(BLOCKS // CHUNK):
            self.step(CHUNK)
            self.infllm.select(0, np.zeros((CHUNK, HEADS, HEAD_DIM), np.float32))
        # In pages of the same size: numpy's own memory is in large ones.
        self.numbers = np.frombuffer(mmap(-1, self.keys.nbytes), np.float32).reshape(self.keys.shape)
        self.numbers[:] = self.keys

    def step(self, n: int) -> None:
        """Appends keys, of which all but the last become blocks."""
        with self.infllm.begin_step({self.seq: n}, self.memory) as step:
            new = self.random.standard_normal((n, HEADS, HEAD_DIM)).astype(np.float32)
            table, start = step.cachestarts()[0], int(step.start_pos[0])
            self.memory.cache[table[start : start + n], 0, 0] = new
            self.infllm.observe(0, np.zeros((HEADS, int(step.kvstarts[-1])), np.float32))
        self.keys = np.concatenate((self.keys, new.reshape(n, -1)))

    def select(self, _turn: int, _iterations: int) -> Measured:
        """By the query of one new token; the blocks are those of the largest products."""
        self.step(1)
        query = self.random.standard_normal((1, HEADS, HEAD_DIM)).astype(np.float32)
        wall, cpu = perf_counter_ns(), thread_time_ns()
        self.infllm.select(0, query)
        wall, cpu = perf_counter_ns() - wall, thread_time_ns() - cpu
        products = self.keys[:-1] @ query.reshape(-1)
        if sorted(np.argsort(-products)[:TOPK]) != self.infllm.blocks(self.seq).tolist():
            raise WrongAnswer("other blocks than those of the largest products are selected")
        return Measured(cpu, cpu / wall)

    def bare(self, _turn: int, _iterations: int) -> Measured:
        """The products alone, by BLAS."""
        query = self.random.standard_normal(HEADS * HEAD_DIM).astype(np.float32)
        wall, cpu = perf_counter_ns(), thread_time_ns()
        np.matmul(self.numbers, query)
        wall, cpu = perf_counter_ns() - wall, thread_time_ns() - cpu
        return Measured(cpu, cpu / wall)


class LongSteps:
    """A token of a sequence of a million tokens, and one of a manager's sequence of as many rows as that sees.

    With attention as often as in a model of some layers, which are one and the same here: a million rows of each are
    gigabytes.
    """

    def __init__(self) -> None:
        page = 16
        spec = CacheSpec(4 * 4096, 2, 64, dtype="float16", cache_mode=1, page_size=page)
        self.memories = [HostMemory(spec, *spec.allocate()) for _ in range(2)]
        self.infllm = InfLlm(spec, init=page, local=1024, block=page, topk=64, score="page_bounds", num_repeat=8)
        self.spec, self.manager = spec, Manager(spec)
        self.long, self.rows = self.infllm.create(), 0
        self.short = self.manager.create()
        for first in range(0, MILLION, 4096):
            n = min(4096, MILLION - first)
            with self.infllm.begin_step({self.long: n}, self.memories[0]):
                pass
            self.infllm.select(0, np.zeros((n, 16, 64), np.float32))

    def long_step(self, _turn: int, _iterations: int) -> Measured:
        """Of the sequence that is long; the selection stays."""
        return self._step(self.infllm, {self.long: 1}, self.memories[0])

    def short_step(self, _turn: int, _iterations: int) -> Measured:
        """Of the manager's sequence."""
        have = self.manager.seq_len(self.short)
        if have >= self.rows:
            self.manager.seq_rm(self.short, self.rows - 1)
        elif self.rows - have > 1:
            self.manager.begin_step([Append(self.short, n=self.rows - have - 1)], self.memories[1]).commit()
        return self._step(self.manager, [Append(self.short, n=1)], self.memories[1])

    def _step(self, planner: Any, appends: Any, memory: HostMemory) -> Measured:
        query, token = np.ones((1, 16, 64), np.float16), np.ones((1, 2, 64), np.float16)
        wall, cpu = perf_counter_ns(), thread_time_ns()
        with planner.begin_step(appends, memory) as step:
            cachestarts = step.cachestarts if planner is self.manager else step.cachestarts()
            starts = step.seqstarts, step.kvstarts, cachestarts, step.start_pos
            bounds = 1, step.max_seqlen, step.max_kvlen
            tensors = query, token, token, *starts, *bounds, memory.cache
            for _ in range(LAYERS):
                kvcache_ops.multi_head_cache_attention(self.spec, *tensors, num_heads=16)
        wall, cpu = perf_counter_ns() - wall, thread_time_ns() - cpu
        self.rows = int(starts[1][-1]) if planner is self.infllm else self.rows
        return Measured(cpu, cpu / wall)


def long_steps() -> list[Row]:
    """What a sequence's length costs."""
    case = LongSteps()
    contenders = [Contender("long", 1, case.long_step), Contender("short", 1, case.short_step)]
    name = "a step over a million tokens, of one over as many rows as it sees"
    return [Row(name, contenders, quotient, at_most=1.2)]


def selection() -> list[Row]:
    """One token's selection."""
    case = Selection()
    contenders = [Contender("select", 1, case.select), Contender("bare pass", 1, case.bare)]
    name = f"selection over {BLOCKS} blocks, {HEADS} heads of {HEAD_DIM}, of a bare pass"
    return [Row(name, contenders, quotient, at_most=1.5)]

"""Selecting blocks by queries against a bare pass of dot products over as many numbers."""

from __future__ import annotations

from mmap import mmap
from time import perf_counter_ns, thread_time_ns

import numpy as np
from kvcache_ops import CacheSpec
from kvcache_ops.manager import HostMemory, InfLlm

from figures import Row, quotient
from measure import Contender
from native import Measured, WrongAnswer

BLOCKS, HEADS, HEAD_DIM, TOPK, CHUNK = 8192, 8, 128, 16, 1024


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


def selection() -> list[Row]:
    """One token's selection."""
    case = Selection()
    contenders = [Contender("select", 1, case.select), Contender("bare pass", 1, case.bare)]
    name = f"selection over {BLOCKS} blocks, {HEADS} heads of {HEAD_DIM}, of a bare pass"
    return [Row(name, contenders, quotient, at_most=1.5)]

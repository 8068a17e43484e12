"""The manager's benchmark: steps against memcpy and other sizes, rotations and sessions against the operator and files.

    bench_manager.py                     everything; writes manager.md and manager.json in target/bench
    bench_manager.py --quick             fewer rounds
    bench_manager.py --filter decode     only the groups whose names contain a word

Contenders are measured in turn, in one process; figures are taken within a round, and are medians with quartiles. Where
one thread works, its processor time is what counts. An answer that is wrong ends the benchmark.
"""

from __future__ import annotations

import os
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kvcache_ops
import numpy as np
from kvcache_ops import CacheSpec, step_indices
from kvcache_ops.manager import Append, HostMemory, InfLlm, Manager, Rope

from harness import Contender, Groups, Row, WrongAnswer, arguments, microseconds, quotient, run
from native import module
from tensors import allocate

BATCH, KVLEN, LONG_KVLEN = 256, 2048, 32768
IDLE = 10000  # sequences that are in no step
PAGE_SIZE = 16
NS_PER_SEQUENCE = 60
QUANT_BITS = {"float16": 0, "int8": 8, "int4": 4}
ROWS = 2048  # that are rotated, saved and loaded
TENSORS = "token_ids", "seqstarts", "kvstarts", "cachestarts", "start_pos", "max_seqlen", "max_kvlen"


def one_thread(name: str, run: Any, **more: Any) -> Contender:
    """What the calling thread does, by its processor time."""
    return Contender(name, [run], by_processor=True, **more)


def steps_of(batch: int, kvlen: int, max_t: int = 0, idle: int = 0) -> dict[str, Contender]:
    """Sequences that decode, in a cache with room for as many pages again."""
    steps = module().Steps(batch, kvlen, max_t or 2 * batch * (kvlen + 96) + idle * PAGE_SIZE, idle)

    def contender(name: str, run: Any, prepare: Any) -> Contender:
        return one_thread(f"{name}, {batch} of {kvlen}", run, prepare=prepare, iterations=steps.STEPS)

    return {
        "same": contender("step, same batch", steps.run, partial(steps.prepare, False)),
        "changed": contender("step, changed batch", steps.run, partial(steps.prepare, True)),
        "memcpy": contender("memcpy", steps.copy, steps.prepare_copy),
    }


def decode() -> list[Row]:
    """Steps of 256 sequences."""
    short, long = (steps_of(BATCH, kvlen) for kvlen in (KVLEN, LONG_KVLEN))
    crowded = steps_of(BATCH, KVLEN, idle=IDLE)
    small, large = (steps_of(8, 900, max_t=max_t) for max_t in (10**5, 10**7))
    step, changed, memcpy = short["same"], short["changed"], short["memcpy"]

    def of_budget(step: float, memcpy: float) -> float:
        return step / (3 * memcpy + NS_PER_SEQUENCE * BATCH)

    return [
        microseconds(step),
        Row("step, same batch, of memcpy of its tensors", [step, memcpy], quotient),
        Row("step, same batch, kvlen 32768 of 2048", [long["same"], step], quotient, at_most=1.2),
        Row("step, same batch, beside 10000 other sequences of none", [crowded["same"], step], quotient, at_most=1.2),
        microseconds(changed),
        Row("step, changed batch, of 3 memcpy + 60 ns a sequence", [changed, memcpy], of_budget, at_most=1),
        *(
            Row(f"step, {name} batch, MaxT 10^7 of 10^5", [large[name], small[name]], quotient, at_most=1.2)
            for name in ("same", "changed")
        ),
        microseconds(step_from_python()),
    ]


def step_from_python() -> Contender:
    """Such a step through the binding: appends are made, planned, the tensors asked for, committed."""
    spec = CacheSpec(2 * BATCH * (KVLEN + 96), 1, 2, dtype="float32", cache_mode=1, page_size=PAGE_SIZE)
    manager, memory, steps = Manager(spec), HostMemory(spec, *spec.allocate()), 16
    seqs = [manager.create() for _ in range(BATCH)]
    manager.begin_step([Append(seq, n=KVLEN) for seq in seqs], memory).commit()

    def run() -> None:
        for i in range(steps):
            step = manager.begin_step([Append(seq, i) for seq in seqs], memory)
            for name in TENSORS:
                getattr(step, name)
            step.commit()

    def cut_back() -> None:
        if any(manager.seq_rm(seq, KVLEN) != steps for seq in seqs):
            raise WrongAnswer("a step from Python has not appended a row to each sequence")

    return one_thread("step from Python, same batch", run, check=cut_back, iterations=steps)


class Selection:
    """A sequence with many blocks of one token, whose representative is the token's key."""

    BLOCKS, HEADS, HEAD_DIM, TOPK, CHUNK = 8192, 8, 128, 16, 1024

    def __init__(self) -> None:
        spec = CacheSpec(4 * self.CHUNK, self.HEADS, self.HEAD_DIM, dtype="float32", cache_mode=1, page_size=1)
        self.memory = HostMemory(spec, *spec.allocate())
        self.infllm = InfLlm(spec, init=0, local=1, block=1, topk=self.TOPK, repr_topk=1)
        self.seq, self.random = self.infllm.create(), np.random.default_rng(1)
        self.keys = np.empty((0, self.HEADS * self.HEAD_DIM), np.float32)
        for _ in range(self.BLOCKS // self.CHUNK):
            self.step(self.CHUNK)
            self.infllm.select(0, np.zeros((self.CHUNK, self.HEADS, self.HEAD_DIM), np.float32))
        # In pages of the same size: numpy's own memory is in large ones.
        self.numbers = allocate(self.keys.nbytes, huge_pages=False).view(np.float32).reshape(self.keys.shape)
        self.numbers[:] = self.keys

    def step(self, n: int = 1) -> None:
        """Appends keys, of which all but the last become blocks, and draws the next query."""
        with self.infllm.begin_step({self.seq: n}, self.memory) as step:
            new = self.random.standard_normal((n, self.HEADS, self.HEAD_DIM)).astype(np.float32)
            table, start = step.cachestarts()[0], int(step.start_pos[0])
            self.memory.cache[table[start : start + n], 0, 0] = new
            self.infllm.observe(0, np.zeros((self.HEADS, int(step.kvstarts[-1])), np.float32))
        self.keys = np.concatenate((self.keys, new.reshape(n, -1)))
        self.query = self.random.standard_normal((1, self.HEADS, self.HEAD_DIM)).astype(np.float32)

    def check(self) -> None:
        """Raises `WrongAnswer` unless the selected blocks have the largest products."""
        products = self.keys[:-1] @ self.query.reshape(-1)
        if sorted(np.argsort(-products)[: self.TOPK]) != self.infllm.blocks(self.seq).tolist():
            raise WrongAnswer("the selected blocks do not have the largest products")


def selection() -> list[Row]:
    """One token's selection, against its dot products alone, by BLAS."""
    case = Selection()
    select = one_thread("select", lambda: case.infllm.select(0, case.query), prepare=case.step, check=case.check)
    bare = one_thread("bare pass", lambda: np.matmul(case.numbers, case.query.reshape(-1)))
    name = f"selection over {case.BLOCKS} blocks, {case.HEADS} heads of {case.HEAD_DIM}, of a bare pass"
    return [Row(name, [select, bare], quotient, at_most=1.5)]


class LongSteps:
    """A token of a sequence of a million tokens, and one of a manager's sequence of as many rows as that sees.

    With attention as often as in a model of some layers, which are one and the same here: a million rows of each are
    gigabytes.
    """

    MILLION, LAYERS = 10**6, 16

    def __init__(self) -> None:
        page = 16
        spec = CacheSpec(4 * 4096, 2, 64, dtype="float16", cache_mode=1, page_size=page)
        self.memories = [HostMemory(spec, *spec.allocate()) for _ in range(2)]
        self.infllm = InfLlm(spec, init=page, local=1024, block=page, topk=64, score="page_bounds", num_repeat=8)
        self.spec, self.manager = spec, Manager(spec)
        self.long, self.short, self.rows = self.infllm.create(), self.manager.create(), 0
        for first in range(0, self.MILLION, 4096):
            n = min(4096, self.MILLION - first)
            with self.infllm.begin_step({self.long: n}, self.memories[0]):
                pass
            self.infllm.select(0, np.zeros((n, 16, 64), np.float32))

    def long_step(self) -> None:
        """A step of the long sequence, whose selection stays."""
        with self.infllm.begin_step({self.long: 1}, self.memories[0]) as step:
            self.attend(step, step.cachestarts(), self.memories[0])
            self.rows = int(step.kvstarts[-1])

    def fill(self) -> None:
        """Gives the manager's sequence the rows that the long one saw last, but one."""
        have = self.manager.seq_len(self.short)
        if have >= self.rows:
            self.manager.seq_rm(self.short, self.rows - 1)
        elif self.rows - have > 1:
            self.manager.begin_step([Append(self.short, n=self.rows - have - 1)], self.memories[1]).commit()

    def short_step(self) -> None:
        """A step of the manager's sequence."""
        with self.manager.begin_step([Append(self.short, n=1)], self.memories[1]) as step:
            self.attend(step, step.cachestarts, self.memories[1])

    def attend(self, step: Any, cachestarts: np.ndarray, memory: HostMemory) -> None:
        """The layers' attention."""
        query, token = np.ones((1, 16, 64), np.float16), np.ones((1, 2, 64), np.float16)
        starts = step.seqstarts, step.kvstarts, cachestarts, step.start_pos
        tensors = query, token, token, *starts, 1, step.max_seqlen, step.max_kvlen, memory.cache
        for _ in range(self.LAYERS):
            kvcache_ops.multi_head_cache_attention(self.spec, *tensors, num_heads=16)


def long_steps() -> list[Row]:
    """What a sequence's length costs."""
    case = LongSteps()
    contenders = [one_thread("long", case.long_step), one_thread("short", case.short_step, prepare=case.fill)]
    name = "a step over a million tokens, of one over as many rows as it sees"
    return [Row(name, contenders, quotient, at_most=1.2)]


class Rows:
    """A sequence in pages all over a cache whose keys can be rotated, and a folder, in memory where there is one."""

    def __init__(self, cache_layout: int, quant_bit: int) -> None:
        types = dict(dtype="float16", num_layers=4, cache_layout=cache_layout, quant_bit=quant_bit)
        self.spec = CacheSpec(2 * ROWS, 8, 128, **types, cache_mode=1, page_size=PAGE_SIZE)
        self.arrays = [array for array in self.spec.allocate() if array is not None]
        self.manager = Manager(self.spec, rope=Rope(128), shift_limit=None)
        self.memory = HostMemory(self.spec, *self.arrays)
        other, self.seq = self.manager.create(), self.manager.create()
        for _ in range(ROWS // PAGE_SIZE):  # every other page is the sequence's
            appends = [Append(seq, n=PAGE_SIZE) for seq in (other, self.seq)]
            self.manager.begin_step(appends, self.memory).commit()
        self.manager.free(other)
        pages = self.manager.slots(self.seq)[::PAGE_SIZE]
        self.indices = step_indices([ROWS], [0], page_slots=[pages], page_size=PAGE_SIZE)
        self.current = np.random.default_rng(1).standard_normal((ROWS, 8, 128)).astype(np.float16)
        self.outputs = [np.empty_like(self.current) for _ in range(2)]
        self.folder = TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.path, self.copy = Path(self.folder.name, "session"), Path(self.folder.name, "copy")
        self.store_and_load()
        self.check()
        self.content = self.read()

    def check(self) -> None:
        """Raises `WrongAnswer` unless rotating there and back, and saving and loading, keep the rows."""
        rows = self.arrays[0].copy()
        for delta in (50, -50):
            self.queue(delta)
            self.rotate_keys()
        near = np.allclose(rows.astype(float), self.arrays[0].astype(float), rtol=0, atol=0.02)
        if self.spec.quant_bit == 0 and not near:
            raise WrongAnswer("keys that were rotated there and back are others")
        self.save()
        axis, slots = self.spec.axes.index("MaxT"), self.manager.slots(self.seq)
        rows = [np.take(array, slots, axis) for array in self.arrays]
        for array in self.arrays:
            array[:] = 0
        loaded = self.load()
        if not all(np.array_equal(np.take(array, loaded, axis), old) for array, old in zip(self.arrays, rows)):
            raise WrongAnswer("other rows are loaded than were saved")

    def store_and_load(self) -> None:
        """The operator, on each layer."""
        key, value = self.outputs
        for layer in range(4):
            inputs = self.current, self.current, *self.indices, *self.arrays
            kvcache_ops.run(self.spec, *inputs, key=key, value=value, layer_idx=layer)

    def queue(self, delta: int = 50) -> None:
        """Queues a rotation of all keys."""
        self.manager.seq_add(self.seq, 0, -1, delta)

    def rotate_keys(self) -> None:
        """Rotates the keys of all layers."""
        self.manager.update(self.memory)

    def save(self) -> None:
        """Saves the sequence."""
        self.manager.save_seq(self.path, self.memory, self.seq)

    def load(self) -> np.ndarray:
        """Loads the sequence into a new manager; its slots there."""
        manager = Manager(self.spec, rope=Rope(128), shift_limit=None)
        return manager.slots(manager.load_seq(self.path, self.memory))

    def write(self) -> None:
        """Writes a file of the session's bytes."""
        with self.copy.open("wb") as file:
            file.write(self.content)
            os.fsync(file.fileno())

    def read(self) -> bytes:
        """Reads the session's file."""
        return self.path.read_bytes()


def by_layout(cache_layout: int, name: str) -> list[Row]:
    """What is done to the rows of a cache, against the operator and bare files."""
    case, end = Rows(cache_layout, QUANT_BITS[name]), f"layout {cache_layout}, {name}"
    rotate, operator = Contender("rotate_keys", [case.rotate_keys], prepare=case.queue), case.store_and_load
    rows = [Row(f"rotate_keys of store_and_load, {end}", [rotate, Contender("operator", [operator])], quotient, 1.5)]
    for bare, session in ((case.write, case.save), (case.read, case.load)):
        contenders = [Contender(each.__name__, [each]) for each in (bare, session)]
        rows.append(Row(f"{bare.__name__} of {session.__name__}, {end}", contenders, quotient))
    return rows


def groups() -> Groups:
    """All groups by name."""
    yield "decode", decode
    yield "selection", selection
    yield "long steps", long_steps
    for cache_layout, name in product(range(4), QUANT_BITS):
        yield f"rows layout {cache_layout} {name}", partial(by_layout, cache_layout, name)


if __name__ == "__main__":
    run(groups(), "manager", arguments(__doc__, rounds=31, quick_rounds=5).parse_args())

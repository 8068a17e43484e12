"""The manager's benchmark: steps against memcpy and other sizes, rotations and sessions against the operator and files.

    bench_manager.py                     everything; writes manager.md and manager.json in target/bench
    bench_manager.py --quick             fewer rounds
    bench_manager.py --filter decode     only the groups whose names contain a word

Contenders are measured in turn, in one process; figures are taken within a round, and are medians with quartiles. Where
one thread works, its processor time is what counts. An answer that is wrong ends the benchmark before it is measured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter_ns, thread_time_ns

import kvcache_ops
import numpy as np
from kvcache_ops import CacheSpec, step_indices
from kvcache_ops.manager import Append, HostMemory, Manager, Rope

from figures import Contender, Measured, Row, arguments, microseconds, quotient, run
from native import Native, WrongAnswer
from selection import long_steps, selection

BATCH, KVLEN, LONG_KVLEN = 256, 2048, 32768
IDLE = 10000  # sequences that are in no step
PAGE_SIZE = 16
NS_PER_SEQUENCE = 60
QUANT_BITS = {"float16": 0, "int8": 8, "int4": 4}
ROWS = 2048  # that are rotated, saved and loaded
TENSORS = "token_ids", "seqstarts", "kvstarts", "cachestarts", "start_pos", "max_seqlen", "max_kvlen"


def steps_of(native: Native, batch: int, kvlen: int, max_t: int = 0, idle: int = 0) -> dict[str, Contender]:
    """Sequences that decode, in a cache with room for as many pages again."""
    slots = max_t or 2 * batch * (kvlen + 96) + idle * PAGE_SIZE
    steps = native.module.Steps(batch, kvlen, slots, idle)
    samples = dict(same=partial(steps.measure, False), changed=partial(steps.measure, True), memcpy=steps.memcpy)
    return {
        name: Contender(name, 1, lambda _turn, _iterations, sample=sample: Measured(*sample()))
        for name, sample in samples.items()
    }


def decode(native: Native) -> list[Row]:
    """Steps of 256 sequences."""
    short, long = (steps_of(native, BATCH, kvlen) for kvlen in (KVLEN, LONG_KVLEN))
    crowded = steps_of(native, BATCH, KVLEN, idle=IDLE)
    small, large = (steps_of(native, 8, 900, max_t=max_t) for max_t in (10**5, 10**7))
    step, changed, memcpy = short["same"], short["changed"], short["memcpy"]

    def of_budget(step: float, memcpy: float) -> float:
        return step / (3 * memcpy + NS_PER_SEQUENCE * BATCH)

    return [
        microseconds("step, same batch", step),
        Row("step, same batch, of memcpy of its tensors", [step, memcpy], quotient),
        Row("step, same batch, kvlen 32768 of 2048", [long["same"], step], quotient, at_most=1.2),
        Row("step, same batch, beside 10000 other sequences of none", [crowded["same"], step], quotient, at_most=1.2),
        microseconds("step, changed batch", changed),
        Row("step, changed batch, of 3 memcpy + 60 ns a sequence", [changed, memcpy], of_budget, at_most=1),
        *(
            Row(f"step, {name} batch, MaxT 10^7 of 10^5", [large[name], small[name]], quotient, at_most=1.2)
            for name in ("same", "changed")
        ),
        microseconds("step from Python, same batch", Contender("step from Python", 1, PythonSteps().sample)),
    ]


class PythonSteps:
    """Such sequences, decoded through the binding: appends are made, planned, the tensors asked for, committed."""

    def __init__(self) -> None:
        spec = CacheSpec(2 * BATCH * (KVLEN + 96), 1, 2, dtype="float32", cache_mode=1, page_size=PAGE_SIZE)
        self.manager, self.memory = Manager(spec), HostMemory(spec, *spec.allocate())
        self.seqs = [self.manager.create() for _ in range(BATCH)]
        self.manager.begin_step([Append(seq, n=KVLEN) for seq in self.seqs], self.memory).commit()

    def sample(self, _turn: int, _iterations: int) -> Measured:
        """16 steps, after which the sequences are cut back."""
        wall, cpu = perf_counter_ns(), thread_time_ns()
        for i in range(16):
            step = self.manager.begin_step([Append(seq, i) for seq in self.seqs], self.memory)
            for name in TENSORS:
                getattr(step, name)
            step.commit()
        wall, cpu = perf_counter_ns() - wall, thread_time_ns() - cpu
        for seq in self.seqs:
            if self.manager.seq_rm(seq, KVLEN) != 16:
                raise WrongAnswer("a step from Python has not appended a row to each sequence")
        return Measured(cpu / 16, cpu / wall)


class Bytes:
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
        self.current = np.random.default_rng(1).standard_normal((ROWS, 8, 128)).astype(np.float16)
        starts = self.manager.slots(self.seq)[::PAGE_SIZE]
        self.indices = step_indices([ROWS], [0], page_slots=[starts], page_size=PAGE_SIZE)
        self.outputs = [np.empty_like(self.current) for _ in range(2)]
        self.folder = TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.path, self.copy = Path(self.folder.name, "session"), Path(self.folder.name, "copy")
        self.store_and_load()
        self.check()

    def check(self) -> None:
        """Raises `WrongAnswer` unless rotating there and back, and saving and loading, keep the rows."""
        rows = self.arrays[0].copy()
        for delta in (50, -50):
            self.manager.seq_add(self.seq, 0, -1, delta)
            self.manager.update(self.memory)
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

    def rotate_keys(self) -> None:
        """Those of all layers."""
        self.manager.update(self.memory)

    def save(self) -> None:
        """The sequence."""
        self.manager.save_seq(self.path, self.memory, self.seq)

    def load(self) -> np.ndarray:
        """It, by a new manager: its slots."""
        manager = Manager(self.spec, rope=Rope(128), shift_limit=None)
        return manager.slots(manager.load_seq(self.path, self.memory))

    def write(self) -> None:
        """A file of the same bytes."""
        with self.copy.open("wb") as file:
            file.write(self.content)
            os.fsync(file.fileno())

    def read(self) -> bytes:
        """That file."""
        return self.path.read_bytes()

    def contender(self, name: str) -> Contender:
        """One of these, timed; before each rotation one is queued."""
        self.content, run = self.read(), getattr(self, name)

        def sample(turn: int, _iterations: int) -> Measured:
            if name == "rotate_keys":
                self.manager.seq_add(self.seq, 0, -1, 50)
            begin = perf_counter_ns()
            run()
            return Measured(perf_counter_ns() - begin, nan)

        return Contender(name, 1, sample)


# Contenders, of which the first one's time is divided by the second's, and the goal.
GOALS = [
    ("rotate_keys", "store_and_load", dict(at_most=1.5)),
    ("write", "save", {}),
    ("read", "load", {}),
]


def by_layout(cache_layout: int, name: str) -> list[Row]:
    """What is done to the rows of a cache."""
    case = Bytes(cache_layout, QUANT_BITS[name])
    return [
        Row(
            f"{above} of {below}, layout {cache_layout}, {name}",
            list(map(case.contender, (above, below))),
            quotient,
            **goal,
        )
        for above, below, goal in GOALS
    ]


def groups(native: Native) -> Iterator[tuple[str, Callable[[], list[Row]]]]:
    """All groups by name."""
    yield "decode", partial(decode, native)
    yield "selection", selection
    yield "long steps", long_steps
    for cache_layout in range(4):
        for name in QUANT_BITS:
            yield f"rows layout {cache_layout} {name}", partial(by_layout, cache_layout, name)


def main() -> int:
    """Runs the benchmark."""
    run(groups(Native()), "manager", arguments(__doc__, rounds=31, quick_rounds=5).parse_args())
    return 0


if __name__ == "__main__":
    sys.exit(main())

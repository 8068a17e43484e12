"""The soak test: answers of engines on several threads, over and over, while memory, threads and files are counted.

Every answer, and the logprob of each of its tokens, must be what a new engine gives to its prompt alone, to the last
bit. Caches are so small that requests are preempted, computed again, and find the prefixes that others have left;
some are cancelled, some go on past the context, and sessions are saved and loaded. `make soak` is the whole of it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import numpy as np
from kvcache_ops import models
from kvcache_ops.engine import Engine, Request
from kvcache_ops.manager import CapacityError

from tiny_models import random_tensors, write_gguf

PAGE, MIB = os.sysconf("SC_PAGE_SIZE"), 2**20
SIZES = dict(hidden=64, ffn=96, heads=2, kv_heads=1, head_dim=32, layers=2)
# Each format of cache, both modes, all layouts, one operator or two; the last one's calls are split among threads.
ENGINES = [
    dict(cache="float32", cache_layout=0, attention="fused"),
    dict(cache="float16", cache_layout=1, attention="packed", cache_mode=0),
    dict(cache="int8", cache_layout=2, attention="packed"),
    dict(cache="int4", cache_layout=3, attention="fused"),
    dict(cache="int8", cache_layout=3, attention="fused"),
]
PROMPTS = [[(7 * i + len(begin)) % 200 for i in range(length)] for begin in ("a", "bc") for length in (1, 9, 30, 60)]
ANSWER = 24
CANCEL, SAVE = 30, 5  # of 1000 steps
WARM_UP, LEAST_WARM_UP = 0.2, 1000  # of the steps, and where there are few, half of them at most


class _MallInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


_LIBC = ctypes.CDLL(None)
_LIBC.mallinfo2.restype = _MallInfo
_LIBC.malloc_trim.argtypes = [ctypes.c_size_t]


# How much more there may be at the end, however many the steps are. Resident memory: arenas of as many threads hold
# pieces of pages. Memory in use: what malloc has given, to all libraries. Python's blocks: requests have a few each.
BOUNDS = {"resident memory": 16 * MIB, "memory in use": 4 * MIB, "Python's blocks": 4000, "threads": 0, "files": 0}
Sample = dict[str, int]


def quiet_sample() -> Sample:
    """The process while nothing runs: without garbage, and with free memory given back to the system."""
    gc.collect()
    _LIBC.malloc_trim(0)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    info = _LIBC.mallinfo2()
    threads, files = (len(os.listdir(f"/proc/self/{name}")) for name in ("task", "fd"))
    return dict(zip(BOUNDS, (resident, info.uordblks + info.hblkhd, sys.getallocatedblocks(), threads, files)))


class Lane:
    """A thread's requests to an engine, which other lanes may share."""

    def __init__(self, engine: Engine, expected: dict[int, list[Request]], seed: int) -> None:
        self.engine, self._expected, self._random = engine, expected, np.random.default_rng(seed)
        self._running: list[tuple[int, int, Request]] = []
        self.counts: Counter[str] = Counter()

    def step(self, directory: Path) -> None:
        """New requests where some have ended; a step; the answers that have come."""
        while len(self._running) < 3:
            i, keeps = int(self._random.integers(len(PROMPTS))), int(self._random.integers(2))
            options = dict(max_new_tokens=ANSWER + 60 * keeps, logprobs=0, keep=4 if keeps else None)
            self._running.append((i, keeps, self.engine.submit(PROMPTS[i], **options)))
        self.engine.step()
        if self._random.integers(1000) < CANCEL:
            self._running[0][2].cancel()
        if self._random.integers(1000) < SAVE:
            path, tokens = directory / f"{id(self)}.session", PROMPTS[int(self._random.integers(len(PROMPTS)))]
            try:
                self.engine.save(path, tokens[:30])
                self.engine.load(path)
                self.counts["sessions"] += 1
            except CapacityError:  # requests have it all
                self.counts["sessions without room"] += 1
        self.counts["steps"] += 1
        self.end([request for _, _, request in self._running if request.finish is not None])

    def end(self, ended: list[Request]) -> None:
        """Checks these answers; one that is preempted after a shift is computed without what has left the context."""
        for i, keeps, request in [entry for entry in self._running if entry[2] in ended]:
            expected = self._expected[i][keeps]
            assert request.error is None, f"{request.error}"
            length = min(len(request.answer), len(expected.answer))
            length = length if not keeps else min(length, self.engine.context_length - len(request.prompt))
            assert request.answer[:length] == expected.answer[:length], f"answers to prompt {i} differ"
            assert request.logprobs[:length] == expected.logprobs[:length], f"logprobs of prompt {i} differ"
            self.counts |= Counter({"tokens checked": self.counts["tokens checked"] + length})
            self.counts[request.finish or ""] += 1
        self._running = [entry for entry in self._running if entry[2] not in ended]

    def close(self) -> None:
        """Cancels what runs; its beginning is checked."""
        requests = [request for _, _, request in self._running]
        for request in requests:
            request.cancel()
        self.end(requests)


def lanes_of(directory: Path) -> list[Lane]:
    """A lane on each engine, and another one on the first."""
    source = write_gguf(directory / "tiny.gguf", tensors=random_tensors(sizes=SIZES), sizes=SIZES)
    lanes = []
    for i, options in enumerate(ENGINES):
        path = models.build(source, directory / str(i), page_size=4, quant_group=8, **options)
        sizes = dict(max_tokens=128, threads=1 + (i == len(ENGINES) - 1))

        def alone(prompt: list[int], keep: int | None, path: Path = path, sizes: dict[str, int] = sizes) -> Request:
            wanted = ANSWER if keep is None else ANSWER + 60
            [request] = Engine(path, keep=keep, **sizes).generate([prompt], max_new_tokens=wanted, logprobs=0)
            return request

        expected = {j: [alone(prompt, keep) for keep in (None, 4)] for j, prompt in enumerate(PROMPTS)}
        engine = Engine(path, max_batch=4, token_budget=16, **sizes)
        lanes += [Lane(engine, expected, len(lanes) + lane) for lane in range(2 if i == 0 else 1)]
    return lanes


def soak(steps: int, directory: Path) -> tuple[Sample, Sample, Counter[str]]:
    """The process before and after the measured steps, and what has happened; raises what a thread has found."""
    lanes = lanes_of(directory)
    with ThreadPoolExecutor(len(lanes)) as pool:

        def run(steps: int) -> None:
            turns = count()

            def work(lane: Lane) -> None:
                while next(turns) < steps:
                    try:
                        lane.step(directory)
                    except BaseException:
                        for _ in range(steps):  # the others end, too
                            next(turns)
                        raise

            list(pool.map(work, lanes))

        warm_up = max(int(steps * WARM_UP), min(LEAST_WARM_UP, steps // 2))
        run(warm_up)
        start = quiet_sample()
        run(steps - warm_up)
        end = quiet_sample()
    counts: Counter[str] = Counter()
    for lane in lanes:
        lane.close()
        counts += lane.counts
    for lane in lanes:
        lane.engine.manager.check()
        assert lane.engine.manager.stats()["used"] == 0
    return start, end, counts


def grown(start: Sample, end: Sample) -> list[str]:
    """What has grown beyond its bound."""
    return [name for name, most in BOUNDS.items() if end[name] - start[name] > most]


def test_nothing_grows(tmp_path: Path) -> None:
    """All answers are exact; `KVCACHE_SOAK_STEPS` says for how many steps."""
    start, end, counts = soak(int(os.environ.get("KVCACHE_SOAK_STEPS", 1200)), tmp_path)
    for name, most in BOUNDS.items():
        print(f"{name:<22}{start[name]:,} at the start, {end[name]:,} at the end; bound: {most:,} more")
    print(*(f"{name:<22}{n:,}" for name, n in sorted(counts.items())), sep="\n")
    assert not grown(start, end)

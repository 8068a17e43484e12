"""Times torch's indexing on a device benchmark's cases.

    KVCACHE_BENCH_OUT=rows.json target/gpu/bench && python bench/device/torch_peer.py rows.json

A peer keeps keys and values in two caches of one row a token, as its own kernels want them. `index_copy_` stores and
`index_select` loads; both know the slots beforehand, and neither repeats heads, converts or quantizes, so only cases of
one type without repeats have a peer. As in the benchmark, a figure is the median of graph replays over rotated sets.

The exit code is 77 if there is no torch with a GPU.
"""

from __future__ import annotations

import json
import sys
from math import gcd
from pathlib import Path
from statistics import median

SAMPLES = 21
SAMPLE_US = 300.0


def not_run(reason: object) -> None:
    """Ends the program with a code of its own."""
    print(f"NOT RUN, torch's indexing is not measured: {reason}")
    sys.exit(77)


try:
    import torch
except ImportError as error:
    not_run(error)
if not torch.cuda.is_available():
    not_run("torch sees no GPU")

TYPES = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}
PAGE_SIZE = 128


def median_us(work: list) -> float:
    """The median time of one piece of work, all of them in one graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for piece in work:
            piece()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for piece in work:
            piece()

    def sample(replays: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / replays

    for _ in range(3):
        sample(1)
    replays = int(min(max(SAMPLE_US / sample(1), 1), 200))
    return median(sample(replays) for _ in range(SAMPLES)) / len(work)


class Case:
    """A case's tensors, several sets of them."""

    def __init__(self, row: dict):
        self.row = row
        self.heads = (row["num_heads"], row["head_dim"])
        self.kvlen = row["past"] + row["current"]
        self.pages = -(-self.kvlen // PAGE_SIZE)
        count = row["batch"] * self.pages
        # As in case.rs: each page once, all over the cache.
        step = next(s for s in range(count * 5 // 8, count + 1) if gcd(s, count) == 1)
        self.table = torch.arange(count, device="cuda") * step % count
        starts = (self.table * PAGE_SIZE).reshape(row["batch"], self.pages, 1)
        slots = (starts + torch.arange(PAGE_SIZE, device="cuda")).reshape(row["batch"], -1)[:, : self.kvlen]
        self.loaded = slots.reshape(-1).contiguous()
        self.stored = slots[:, row["past"] :].reshape(-1).contiguous()
        dtype = TYPES[row["t1"]]
        make = lambda tokens: torch.ones((tokens, *self.heads), dtype=dtype, device="cuda")  # noqa: E731
        self.sets = [
            [(make(len(self.stored)), make(count * PAGE_SIZE), make(len(self.loaded))) for _ in range(2)]
            for _ in range(row["sets"])
        ]

    def store(self) -> list:
        """torch's store of each set."""
        return [lambda s=s: [cache.index_copy_(0, self.stored, current) for current, cache, _ in s] for s in self.sets]

    def load(self) -> list:
        """torch's load of each set."""
        select = torch.index_select
        return [lambda s=s: [select(cache, 0, self.loaded, out=out) for _, cache, out in s] for s in self.sets]


def times(label: str, ours: float, work: list) -> None:
    """A peer's line."""
    peer = median_us(work)
    print(f"    {label:<28} {peer:10.2f} us, {peer / ours:6.2f} times ours ({ours:.2f} us)", flush=True)


def main() -> None:
    """Each case of the file that has a peer."""
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    rows = [row for row in rows if row["t1"] == row["t2"] and row["num_repeat"] == 1 and row["layout"] == 1]
    if not rows:
        sys.exit("no case in the file has a peer")
    print(f"device: {torch.cuda.get_device_name()}, torch {torch.__version__}")
    for row in rows:
        print(row["case"], flush=True)
        try:
            case = Case(row)
        except torch.cuda.OutOfMemoryError:
            print("    SKIPPED: the peer's tensors do not fit")
            continue
        times("torch index_copy_ (store)", row["store_us"], case.store())
        times("torch index_select (load)", row["load_us"], case.load())
        del case
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

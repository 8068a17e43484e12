"""The tiers' benchmark: sequences and pages that leave the cache and come back, against what moves the same bytes.

    bench_tiers.py                   everything; writes tiers.md and tiers.json in target/bench
    bench_tiers.py --quick           fewer rounds
    bench_tiers.py --filter files    only the groups whose names contain a word

A block that is put into files gets a checksum, and one that is read is verified. Files are in memory where there is
such a folder. What comes back is compared with what went out after each run.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from kvcache_ops import CacheSpec
from kvcache_ops.manager import Append, FileTier, HostMemory, HostTier, Manager

from harness import Contender, Groups, Row, WrongAnswer, arguments, quotient, run
from native import module

PAGE_SIZE, ROWS = 16, 2048
NEVER = 60.0  # seconds: no read is given up
BLOCKS, BLOCK_BYTES = 64, 1 << 20


class Swaps:
    """Two sequences of 64 MiB, each in every other page of its cache, and a host tier. With a folder the tier has
    room for one of them, and files are behind it."""

    def __init__(self, cache_layout: int, folder: Path | None = None) -> None:
        spec = CacheSpec(
            2 * ROWS,
            8,
            128,
            dtype="float32",
            num_layers=4,
            cache_layout=cache_layout,
            cache_mode=1,
            page_size=PAGE_SIZE,
        )
        nbytes = ROWS * spec.bytes_per_token + (1 << 20)
        files = [FileTier(folder, 4 * nbytes, deadline=NEVER)] if folder else []
        tiers = [HostTier(nbytes if folder else 2 * nbytes), *files]
        [self.cache] = [array for array in spec.allocate() if array is not None]
        self.axis, self.memory = spec.axes.index("MaxT"), HostMemory(spec, self.cache)
        self.manager = Manager(spec, tiers=tiers)
        self.seqs = [self.manager.create() for _ in range(2)]
        for _ in range(ROWS // PAGE_SIZE):
            appends = [Append(seq, n=PAGE_SIZE) for seq in self.seqs]
            self.manager.begin_step(appends, self.memory).commit()
        self.cache.reshape(-1)[:] = np.arange(self.cache.size) % 9973
        self.rows = [self.rows_of(seq) for seq in self.seqs]
        self.target = np.empty_like(self.rows[0])
        self.out: set[int] = set()

    def rows_of(self, seq: int) -> np.ndarray:
        """A sequence's rows, gathered from its slots."""
        return np.take(self.cache, self.manager.slots(seq), self.axis)

    def copy(self) -> None:
        """Copies as many bytes into memory that was written before."""
        np.copyto(self.target, self.rows[0])

    def swap_out(self, i: int = 0) -> None:
        """Moves a sequence to the host tier."""
        self.manager.swap_out(self.seqs[i])
        self.manager.update(self.memory)
        self.out.add(i)

    def swap_in(self, i: int = 0) -> None:
        """Brings a sequence back."""
        self.manager.swap_in(self.seqs[i], self.memory)
        self.out.remove(i)

    def prepare_near(self) -> None:
        """Moves both sequences out, the first one last, so that it is in the host tier."""
        self.prepare([1, 0])

    def prepare_far(self) -> None:
        """Moves both sequences out, the first one first, so that it is in files alone."""
        self.prepare([0, 1])

    def prepare(self, order: list[int]) -> None:
        """Moves both sequences out, waits until what is to be in files is, and fills the cache with other numbers."""
        for i in order:
            self.swap_out(i)
        if not self.manager.flush(NEVER):
            raise WrongAnswer("the files are not written")
        self.cache.fill(-1)

    def check(self) -> None:
        """Brings back what is out; raises `WrongAnswer` unless both sequences have their rows."""
        for i, seq in enumerate(self.seqs):
            if i in self.out:
                self.swap_in(i)
            if not np.array_equal(self.rows_of(seq), self.rows[i]):
                raise WrongAnswer("other rows come back than went out")


def swaps() -> list[Row]:
    """A copy of a sequence's bytes against the sequence that goes out to host memory, and that comes back."""
    rows = []
    for cache_layout in range(4):
        case = Swaps(cache_layout)
        copy = Contender("copy", [case.copy], by_processor=True)
        out = Contender("out", [case.swap_out], by_processor=True, check=case.check)
        back = Contender("in", [case.swap_in], by_processor=True, prepare=case.prepare_near, check=case.check)
        for each in (out, back):
            rows.append(
                Row(f"a copy, of swap_{each.name}, layout {cache_layout}", [copy, each], quotient, at_least=0.8)
            )
    return rows


def resident() -> list[Row]:
    """Steps of 256 sequences of known tokens, whose pages are all in the cache."""
    contenders = []
    for has_tiers in (True, False):
        steps = module().Steps(256, 2048, 1 << 23, 0, has_tiers)
        prepare, name = partial(steps.prepare, False), f"a step {'with' if has_tiers else 'without'} tiers"
        contenders.append(Contender(name, [steps.run], prepare=prepare, by_processor=True, iterations=steps.STEPS))
    name = "a step with tiers, all pages resident, of one without"
    return [Row(name, contenders, quotient, at_most=1.05)]


def prefetch(folder: Path) -> list[Row]:
    """The part of the time for reading files that a step hides: a sequence that is swapped in from files at once, from
    host memory, and from files after a step that takes as long as the first did last."""
    case = Swaps(3, folder / "prefetch")
    far = Contender("far", [case.swap_in], prepare=case.prepare_far, check=case.check)
    near = Contender("near", [case.swap_in], prepare=case.prepare_near, check=case.check)

    def prepare_step() -> None:
        case.prepare_far()
        case.manager.prefetch([case.seqs[0]], case.memory)
        end = time.perf_counter_ns() + (far.measured[-1].ns if far.measured else 0)
        while time.perf_counter_ns() < end:
            pass

    behind = Contender("behind a step", [case.swap_in], prepare=prepare_step, check=case.check)

    def hidden(far: float, near: float, behind: float) -> float:
        return (far - behind) / (far - near)

    return [Row("of reading files, hidden behind a step as long", [far, near, behind], hidden, at_least=0.8)]


def files(folder: Path) -> list[Row]:
    """Writing and reading files against putting and getting blocks."""
    contents = [np.random.default_rng(i).bytes(BLOCK_BYTES) for i in range(BLOCKS)]
    blocks, paths = module().Blocks(folder / "blocks", contents), [folder / f"bare-{i}" for i in range(BLOCKS)]
    blocks.put()
    got: list[bytes] = []

    def delete() -> None:
        for path in paths:
            path.unlink(missing_ok=True)

    def write() -> None:
        for path, content in zip(paths, contents):
            path.write_bytes(content)

    def read() -> None:
        got[:] = [path.read_bytes() for path in paths]

    def expect(is_right: Any) -> Any:
        def check() -> None:
            if not is_right():
                raise WrongAnswer("other bytes than were put")

        return check

    bare_write = Contender("write", [write], prepare=delete)
    bare_read = Contender("read", [read], check=expect(lambda: got == contents))
    put = Contender("put", [blocks.put], prepare=blocks.delete)
    gets = [
        Contender(name, [get], check=expect(blocks.is_right))
        for name, get in (("get", blocks.get), ("chain", blocks.get_chain))
    ]
    return [
        Row(f"files: {above.name} of {below.name}", [above, below], quotient, at_least=0.6)
        for above, below in ((bare_write, put), *((bare_read, get) for get in gets))
    ]


def groups(folder: Path) -> Groups:
    """All groups by name."""
    yield "swaps", swaps
    yield "resident", resident
    yield "prefetch", partial(prefetch, folder)
    yield "files", partial(files, folder)


if __name__ == "__main__":
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as directory:
        chosen = arguments(__doc__, rounds=31, quick_rounds=5).parse_args()
        run(groups(Path(directory)), "tiers", chosen)

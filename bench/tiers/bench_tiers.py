"""The tiers' benchmark: sequences and pages that leave the cache and come back, against what moves the same bytes.

    bench_tiers.py                   everything; writes tiers.md and tiers.json in target/bench
    bench_tiers.py --quick           fewer rounds
    bench_tiers.py --filter files    only the groups whose names contain a word

A block that is put into files gets a checksum, and one that is read is verified. Files are in memory where there is
such a folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from figures import Contender, Measured, Row, arguments, quotient, run
from native import Native

PAGES = 64
ROWS = 256  # of 4096 bytes each: blocks of 1 MiB


def swaps(native: Native) -> list[Row]:
    """A copy of a sequence's bytes against the sequence that goes out to host memory, and that comes back."""
    rows = []
    for cache_layout in range(4):
        sequence = native.module.Swaps(cache_layout)

        def contender(how: str, sequence: Any = sequence) -> Contender:
            return Contender(how, 1, lambda _turn, _iterations: Measured(*sequence.measure(how)))

        for how in ("out", "in"):
            name = f"a copy, of swap_{how}, layout {cache_layout}"
            rows.append(Row(name, [contender("copy"), contender(how)], quotient, at_least=0.8))
    return rows


def resident(native: Native) -> list[Row]:
    """Steps of 256 sequences of known tokens, whose pages are all in the cache."""
    without, with_tiers = (native.module.Steps(256, 2048, 1 << 23, 0, tiered) for tiered in (False, True))

    def contender(name: str, steps: Any) -> Contender:
        return Contender(name, 1, lambda _turn, _iterations: Measured(*steps.measure(False)))

    name = "a step with tiers, all pages resident, of one without"
    contenders = [contender("with tiers", with_tiers), contender("without", without)]
    return [Row(name, contenders, quotient, at_most=1.05)]


class Prefetch:
    """A sequence that is swapped in from files: at once, from host memory, and behind a step as long as the first."""

    def __init__(self, native: Native, folder: Path) -> None:
        self._sequence = native.module.Swaps(3, folder / "prefetch")
        self._far_ns = 0.0

    def sample(self, how: str) -> Measured:
        """One way; a step is as long as the last one from far away."""
        if how == "far":
            self._far_ns = self._sequence.swap_in(True)
            return Measured(self._far_ns, nan)
        step_ns = round(self._far_ns) if how == "behind a step" else None
        return Measured(self._sequence.swap_in(how != "near", step_ns), nan)

    def contender(self, how: str) -> Contender:
        """One way."""
        return Contender(how, 1, lambda _turn, _iterations: self.sample(how))


def prefetch(native: Native, folder: Path) -> list[Row]:
    """The part of the time for reading files that a step hides."""
    case = Prefetch(native, folder)
    contenders = [case.contender(how) for how in ("far", "near", "behind a step")]

    def hidden(far: float, near: float, behind: float) -> float:
        return (far - behind) / (far - near)

    return [Row("of reading files, hidden behind a step as long", contenders, hidden, at_least=0.8)]


def files(native: Native, folder: Path) -> list[Row]:
    """Writing and reading files against putting and getting blocks."""
    blocks = native.module.Blocks(folder, PAGES, ROWS)

    def contender(way: str) -> Contender:
        return Contender(way, 1, lambda _turn, _iterations: Measured(*blocks.measure(way)))

    ways = ("write", "put"), ("read", "get"), ("read", "chain")
    return [
        Row(f"files: {above} of {below}", [contender(above), contender(below)], quotient, at_least=0.6)
        for above, below in ways
    ]


def groups(native: Native, folder: Path) -> Iterator[tuple[str, Callable[[], list[Row]]]]:
    """All groups by name."""
    yield "swaps", partial(swaps, native)
    yield "resident", partial(resident, native)
    yield "prefetch", partial(prefetch, native, folder)
    yield "files", partial(files, native, folder)


def main() -> int:
    """Runs the benchmark."""
    chosen = arguments(__doc__, rounds=31, quick_rounds=5).parse_args()
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        run(groups(Native(), Path(folder)), "tiers", chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The tiers' benchmark: sequences and pages that leave the cache and come back, against what moves the same bytes.

    bench_tiers.py                   everything; writes tiers.md and tiers.json in target/bench
    bench_tiers.py --quick           fewer rounds
    bench_tiers.py --filter files    only the groups whose names contain a word

A block that is put into files or S3 gets a checksum, and one that is read is verified. Files are in memory where there
is such a folder. The S3 server is one in Python: its figures are about waiting, not about bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPConnection
from math import nan
from pathlib import Path
from socket import socket
from tempfile import TemporaryDirectory
from typing import Any

from figures import Contender, Measured, Row, arguments, quotient, run
from native import Native, WrongAnswer

PAGES = 64
ROWS = 256  # of 4096 bytes each: blocks of 1 MiB


class Blocks:
    """Pages, and a store of a kind in a folder."""

    def __init__(self, native: Native, kind: str, folder: Path, rows: int, **options: str) -> None:
        self._blocks = native.module.Blocks(kind, list(options.items()), folder, PAGES, rows)

    def contender(self, name: str) -> Contender:
        """All pages moved in one way."""
        return Contender(name, 1, lambda _turn, _iterations: Measured(*self._blocks.measure(name)))

    def row(self, store: str, above: str, below: str, at_least: float) -> Row:
        """How many times as long one way takes as another."""
        contenders = [self.contender(above), self.contender(below)]
        return Row(f"{store}: {above} of {below}", contenders, quotient, at_least=at_least)


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
    blocks = Blocks(native, "files", folder, ROWS)
    ways = ("write", "put"), ("read", "get"), ("read", "chain")
    return [blocks.row("files", *each, at_least=0.6) for each in ways]


class Bare:
    """As many objects, written and read one after the other by Python's HTTP client."""

    def __init__(self, port: int, nbytes: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port)
        self._bodies = [os.urandom(nbytes) for _ in range(PAGES)]

    def request(self, method: str, i: int) -> bytes:
        """The answer."""
        body = self._bodies[i] if method == "PUT" else None
        self._connection.request(method, f"/blocks/bare-{i}", body, {"Authorization": "AWS id:secret"})
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise WrongAnswer(f"{method}: {response.status}")
        return answer

    def sample(self, method: str) -> Measured:
        """All of them."""
        begin = time.perf_counter_ns()
        answers = [self.request(method, i) for i in range(PAGES)]
        wall = time.perf_counter_ns() - begin
        if method == "GET" and answers != self._bodies:
            raise WrongAnswer("other bytes are read than were written")
        return Measured(wall, nan)

    def contender(self, method: str) -> Contender:
        """One way."""
        return Contender(method, 1, lambda _turn, _iterations: self.sample(method))


def s3(native: Native, folder: Path, port: int) -> list[Row]:
    """The same bytes written and read against blocks; and a chain, whose blocks are asked for 16 at a time."""
    options = dict(aws_endpoint=f"http://127.0.0.1:{port}", allow_http="true", region="us-east-1")
    options |= dict(aws_access_key_id="id", aws_secret_access_key="secret")
    blocks, bare = Blocks(native, "s3://blocks", folder, ROWS // 16, **options), Bare(port, ROWS // 16 * 4096 + 80)
    put, get = bare.contender("PUT"), bare.contender("GET")
    put.sample(0, 1)  # what is read is there
    pairs = (put, "put"), (get, "get"), (get, "chain")
    name = "S3: {} of {}".format
    return [
        Row(name(above.name, below), [above, blocks.contender(below)], quotient, at_least=0.8) for above, below in pairs
    ]


def start_server() -> tuple[subprocess.Popen[bytes], int]:
    """An S3 server with a bucket, and its port."""
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [os.environ["KVCACHE_MOTO_SERVER"], "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(300):
        try:
            connection = HTTPConnection("127.0.0.1", port)
            connection.request("PUT", "/blocks")
            if connection.getresponse().status == 200:
                return server, port
        except OSError:
            time.sleep(0.1)
    server.kill()
    raise TimeoutError("the S3 server does not answer")


def groups(native: Native, folder: Path, port: int) -> Iterator[tuple[str, Callable[[], list[Row]]]]:
    """All groups by name."""
    yield "swaps", partial(swaps, native)
    yield "resident", partial(resident, native)
    yield "prefetch", partial(prefetch, native, folder)
    yield "files", partial(files, native, folder)
    yield "s3", partial(s3, native, folder, port)


def main() -> int:
    """Runs the benchmark."""
    chosen = arguments(__doc__, rounds=31, quick_rounds=5).parse_args()
    server, port = start_server()
    try:
        with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
            run(groups(Native(), Path(folder), port), "tiers", chosen)
    finally:
        server.kill()
        server.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())

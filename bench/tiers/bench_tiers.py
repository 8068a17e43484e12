"""The tiers' benchmark: pages put into stores and given back, against what moves the same bytes without one.

    bench_tiers.py                   everything; writes tiers.md and tiers.json in target/bench
    bench_tiers.py --quick           fewer rounds
    bench_tiers.py --filter files    only the groups whose names contain a word

A page that is put is copied into a block with a checksum; one that is given back is verified and copied. Files are in
memory where there is such a folder. The S3 server is one in Python: its figure is about waiting, not about bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from socket import socket
from tempfile import TemporaryDirectory
from typing import Any

from figures import Row, arguments, quotient, run
from measure import Contender
from native import Measured, Native

PAGES = 64
ROWS = 256  # of 4096 bytes each: blocks of 1 MiB


class Blocks:
    """Pages, and a store of a kind in a folder."""

    def __init__(self, native: Native, kind: str, folder: Path, rows: int, **options: str) -> None:
        self._blocks = native.module.Blocks(kind, list(options.items()), folder, PAGES, rows)

    def contender(self, name: str) -> Contender:
        """All pages moved in one way."""
        return Contender(name, 1, lambda _turn, _iterations: Measured(*self._blocks.measure(name)))

    def row(self, store: str, above: str, below: str) -> Row:
        """How many times as long one way takes as another."""
        return Row(f"{store}: {above} of {below}", [self.contender(above), self.contender(below)], quotient)


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


def host(native: Native, folder: Path) -> list[Row]:
    """Against copies."""
    blocks = Blocks(native, "host", folder, ROWS)
    return [blocks.row("host", how, "copy") for how in ("put", "get", "chain")]


def files(native: Native, folder: Path) -> list[Row]:
    """Against writing and reading files."""
    blocks = Blocks(native, "files", folder, ROWS)
    return [blocks.row("files", *ways) for ways in (("put", "write"), ("get", "read"), ("chain", "read"))]


def s3(native: Native, folder: Path, port: int) -> list[Row]:
    """A chain, whose blocks are asked for 16 at a time, against one block after the other."""
    options = dict(aws_endpoint=f"http://127.0.0.1:{port}", allow_http="true", region="us-east-1")
    options |= dict(aws_access_key_id="id", aws_secret_access_key="secret")
    blocks = Blocks(native, "s3://blocks", folder, ROWS // 16, **options)
    return [blocks.row("S3", "chain", "get")]


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
    yield "host", partial(host, native, folder)
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

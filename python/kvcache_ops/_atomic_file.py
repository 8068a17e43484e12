"""Files that are whole or not there, whatever ends the program: written beside their place, synced, then renamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PART = ".part"
"""The end of the names of files and folders that are being written."""


@contextmanager
def written(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new file, which takes the place of `path` at the end of the block; after an exception what was there stays.

    A link stays a link, to the new file; what is no file, as a pipe, is written as it is.
    """
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        with place.open("wb") as file:
            yield file
        return
    descriptor, name = tempfile.mkstemp(suffix=PART, prefix=f".{place.name}.", dir=place.parent)
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, place.stat().st_mode & 0o7777 if place.exists() else 0o666 & ~_umask())
            yield file
        replace(part, place)
    finally:
        part.unlink(missing_ok=True)


def replace(part: Path, place: Path) -> None:
    """Moves a file or a folder to its place, once all of it is on the disk. A folder's place must be free."""
    for path in (part, *part.rglob("*")) if part.is_dir() else (part,):
        _sync(path)
    part.replace(place)
    _sync(place.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    """What the process takes from the modes of new files, which can only be read by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask

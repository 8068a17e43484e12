"""The user's cache of built models: a folder for each source and its options, and nothing that is stale.

A folder's name ends with two keys: of the source's place with the options, and of its content with the builder. What
has the first key, but another second one, is of a source as it was before.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kvcache_ops._atomic_file import PART, replace

SOURCE = "source.json"
"""The file in a folder of the cache that says what it was built from."""

_LOCK = ".lock"
"""The file in a folder that is being filled which is locked by who fills it."""


def home() -> Path:
    """The folder of the cache: $XDG_CACHE_HOME/kvcache_ops/models, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvcache_ops" / "models"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Waits for other processes that change this folder's entries."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # NFS does not lock folders
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def part_in(folder: Path, prefix: str, of_cache: bool = False) -> Iterator[Path]:
    """A new folder in this one, to be filled and then moved. It is removed at the end of the block, or, if this process
    has ended before, by the next caller with its prefix; in the cache by any caller.
    """
    with locked(folder):
        for part in folder.glob(f"{'' if of_cache else prefix}*{PART}"):
            if is_stale(part):
                shutil.rmtree(part, ignore_errors=True)
        part = Path(tempfile.mkdtemp(suffix=PART, prefix=prefix, dir=folder))
        descriptor = os.open(part / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
        os.close(descriptor)


def is_stale(part: Path) -> bool:
    """Whether nobody fills a folder any more: who does has a lock in it. Where there are no locks, somebody may."""
    try:
        descriptor = os.open(part / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return part.is_dir() and not part.is_symlink()  # of an earlier version
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


WHOLE = 1 << 26
"""The bytes up to which `digest` reads all of a file."""


def digest(path: Path, places: int = 4096) -> str:
    """The SHA-256 of a file, or of so many places of a file above 64 MiB, which would take long."""
    hashed, size = hashlib.sha256(), path.stat().st_size
    step, length = (1 << 20, 1 << 20) if size <= WHOLE else (size // places, 1 << 12)
    with path.open("rb") as file:
        for place in range(0, size, step):
            file.seek(place)
            hashed.update(file.read(length))
    return hashed.hexdigest()


def folder_of(source: Path, options: dict[str, Any], files: list[Path], builder: bytes) -> Path:
    """Where the model of a source of these files is, once it is built. A large file is a new one if it is touched."""
    contents = []
    for path in files:
        stat = path.stat()
        touched = stat.st_mtime_ns if stat.st_size > WHOLE else 0
        contents.append([path.name, stat.st_size, touched, digest(path, places=256)])
    place = _key(json.dumps([str(source.resolve()), sorted(options.items())]).encode())
    return home() / f"{source.resolve().stem}-{place}-{_key(json.dumps(contents).encode() + builder)}"


def keep(part: Path, folder: Path, source: Path, options: dict[str, Any]) -> bool:
    """Moves a built model to its place, and removes what was built before of this source with these options.

    Returns whether it was free: another process may have been faster.
    """
    about = {"source": str(source.resolve()), "options": options}
    (part / SOURCE).write_text(json.dumps(about), encoding="utf-8")
    with locked(folder.parent):
        (part / _LOCK).unlink(missing_ok=True)
        try:
            replace(part, folder)
        except OSError:
            if not folder.is_dir():
                raise
            return False
        place = folder.name.split("-")[-2]
        for older in folder.parent.glob(f"*-{place}-*"):
            if older != folder and not older.name.endswith(PART):
                shutil.rmtree(older, ignore_errors=True)
    return True


def contents() -> Iterator[str]:
    """A line for each thing in the cache: its size, its name, and what it was built from."""
    folders = sorted(home().iterdir()) if home().is_dir() else []
    for folder in folders:
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else 0
        if folder.name.endswith(PART):
            about = "left by a build that was killed" if is_stale(folder) else "being built"
        else:
            about = f"of {_source_of(folder)}"
        yield f"{size / 1e6:,.1f} MB, {folder.name}, {about}"


def _key(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _source_of(folder: Path) -> str:
    """What a folder's model was built from, if its record is there."""
    try:
        source = Path(json.loads((folder / SOURCE).read_text(encoding="utf-8"))["source"])
    except (OSError, ValueError, LookupError, TypeError):
        return "an earlier version"
    return str(source) if source.exists() else f"{source}, which is not there any more"

"""Ctrl-C that ends an answer and not the program."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event


@contextmanager
def interruptible() -> Iterator[Event]:
    """An event that Ctrl-C sets, in place of a KeyboardInterrupt in the middle of a step."""
    interrupted = Event()
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)

"""Signals: Ctrl-C that ends an answer and not the program, and a request to end that lets it clean up."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, current_thread, main_thread


@contextmanager
def interruptible() -> Iterator[Event]:
    """An event that Ctrl-C sets, in place of a KeyboardInterrupt in the middle of a step."""
    interrupted = Event()
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends the program by an exception, as Ctrl-C does, so that what it has half written goes."""
    if current_thread() is not main_thread():  # others get no signals
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

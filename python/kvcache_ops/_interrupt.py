"""Signals: Ctrl-C that waits for a step, and a request to end that lets a program clean up."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread


@contextmanager
def postponed_interrupt() -> Iterator[None]:
    """Ctrl-C, and a request to end that Python handles, come at the end of what must not end in the middle."""
    postponed = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if current_thread() is main_thread() else ()
    before = {number: handler for number in postponed if callable(handler := signal.getsignal(number))}
    came: list[int] = []
    for number in before:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for caught in came:
            signal.raise_signal(caught)


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM, or the end of the terminal, raises an exception, as Ctrl-C does: half-written files are removed."""
    if current_thread() is not main_thread():  # others get no signals
        yield
        return
    signals = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) is not signal.SIG_IGN]  # by nohup
    before = {s: signal.signal(s, lambda number, _: sys.exit(128 + number)) for s in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

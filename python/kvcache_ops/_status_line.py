"""A line at the bottom of a terminal that stays while text scrolls above it."""

from __future__ import annotations

import os
import sys
from types import TracebackType

_SAVE, _RESTORE = "\x1b7", "\x1b8"  # the cursor
_ERASE = "\x1b[2K"  # the cursor's line


class StatusLine:
    """The line, in the terminal of standard error, for a `with` block; nothing where that is no terminal."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._size = os.terminal_size((0, 0))  # before the line is there

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()

    def show(self, text: str) -> None:
        """Replaces what the line says, as much of it as fits."""
        if not self._live:
            return
        size = os.get_terminal_size(sys.stderr.fileno())
        if size.lines < 3 or size.columns < 2:
            return self._give_back()
        if size != self._size:
            self._give_back()
            self._size = size
            # A line below the cursor, so that it is not on the last one; only those above the last one scroll.
            _write(f"\n\x1b[A{_SAVE}\x1b[1;{size.lines - 1}r{_RESTORE}")
        _write(f"{_SAVE}\x1b[{size.lines};1H{_ERASE}{text[: size.columns - 1]}{_RESTORE}")

    def _give_back(self) -> None:
        """All lines scroll again."""
        if self._size.lines:
            _write(f"{_SAVE}\x1b[r\x1b[{self._size.lines};1H{_ERASE}{_RESTORE}")
            self._size = os.terminal_size((0, 0))


def _write(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)

"""The sequences of a lane as a list of rows each: what the manager's must amount to."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Sequence:
    """One sequence: the rows that it has, their positions, and what attention gave for the last one."""

    id: int
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    positions: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    answer: np.ndarray | None = None  # none where the last row has not been computed here

    @property
    def next_position(self) -> int:
        """Where an append begins."""
        return int(self.positions[-1]) + 1 if len(self.positions) else 0

    def __len__(self) -> int:
        return len(self.rows)

    def forked(self, id: int) -> Sequence:
        """The same rows under another id."""
        return Sequence(id, self.rows, self.positions, self.answer)

    def append(self, rows: np.ndarray, positions: np.ndarray) -> None:
        """More rows at the end."""
        self.rows, self.positions = np.append(self.rows, rows), np.append(self.positions, positions)

    def remove(self, p0: int, p1: int) -> None:
        """Without the positions from p0 to before p1; -1 is the end."""
        inside = (self.positions >= p0) & ((self.positions < p1) | (p1 < 0))
        self.rows, self.positions, self.answer = self.rows[~inside], self.positions[~inside], None

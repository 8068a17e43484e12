"""What the cache manager must amount to: each sequence as a list of rows of its own, edited one by one.

Nothing is shared and there are no slots here. A refusal is an exception with the kinds of error that would be right,
raised before anything changes; whether there is room is not this model's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

I32_MAX = 2**31 - 1


class Refused(Exception):
    """The operation is illegal; any of `kinds` names the reason."""

    def __init__(self, *kinds: str):
        super().__init__(*kinds)
        self.kinds = kinds


@dataclass
class Row:
    """A token of one sequence: what its key is rotated for may lag behind its position until the next update."""

    position: int
    rotated: int
    key: Any  # as stored; never changed in place
    value: Any

    @property
    def pending(self) -> int:
        """By how many positions the key must still be turned."""
        return self.position - self.rotated


class NaiveSequences:
    """Sequences by the ids that the manager gave them, in order of creation."""

    def __init__(self, turn: Callable[[Any, int], Any], *, raw: bool = False):
        """`turn` is the K-shift of one stored key by a number of positions; `raw` keys are stored unrotated."""
        self._turn = turn
        self._raw = raw
        self.rows: dict[Any, list[Row]] = {}
        self.salts: dict[Any, bytes] = {}

    def create(self, seq: Any, salt: bytes = b"") -> None:
        """A new sequence without rows."""
        self.rows[seq], self.salts[seq] = [], salt

    def free(self, seq: Any) -> None:
        """The sequence is gone."""
        del self.rows[seq], self.salts[seq]

    def fork(self, seq: Any, new: Any) -> None:
        """A new sequence with the same rows."""
        self.create(new, self.salts[seq])
        self.copy(seq, new, -1, -1)

    def next_position(self, seq: Any) -> int:
        """Where an append begins unless it says otherwise."""
        rows = self.rows[seq]
        return rows[-1].position + 1 if rows else 0

    def append(self, seq: Any, rows: Iterable[Row]) -> None:
        """New rows behind the others."""
        self.rows[seq] += rows

    def remove(self, seq: Any | None, p0: int, p1: int) -> int:
        """Removes positions [p0, p1) of one sequence or of all; how many rows went."""
        removed = 0
        for one in self.rows if seq is None else [seq]:
            kept = [row for row in self.rows[one] if not _inside(row, p0, p1)]
            removed += len(self.rows[one]) - len(kept)
            self.rows[one] = kept
        return removed

    def copy(self, source: Any, target: Any, p0: int, p1: int) -> int:
        """Copies positions [p0, p1) to an empty sequence; how many rows came."""
        if source == target or 0 <= p1 <= max(p0, 0):  # a range of no positions is nothing to copy
            return 0
        if self.rows[target]:
            raise Refused("not_empty")
        self.rows[target] = [replace(row) for row in self.rows[source] if _inside(row, p0, p1)]
        return len(self.rows[target])

    def add(self, seq: Any, p0: int, p1: int, delta: int) -> None:
        """Moves positions [p0, p1) by delta; rows that fall below 0 are removed."""
        self._move(seq, [row.position + delta * _inside(row, p0, p1) for row in self.rows[seq]])

    def divide(self, seq: Any, p0: int, p1: int, d: int) -> None:
        """Divides positions [p0, p1) by d."""
        self._move(seq, [row.position // (d if _inside(row, p0, p1) else 1) for row in self.rows[seq]])

    def context_shift(self, seq: Any, n_ctx: int, n_new: int, n_keep: int, n_discard: int | None) -> int:
        """Makes room for n_new tokens by removing n_discard positions behind the first n_keep; how many went."""
        past = self.next_position(seq)
        if past + n_new < n_ctx:
            return 0
        discard = (past - n_keep) // 2 if n_discard is None else n_discard
        if discard <= 0:
            raise Refused("no_progress")
        self.remove(seq, n_keep, n_keep + discard)
        self.add(seq, n_keep + discard, -1, -discard)
        return discard

    def update(self) -> None:
        """Turns every key to its row's position, once."""
        for rows in self.rows.values():
            for row in rows:
                if row.pending:
                    row.key, row.rotated = self._turn(row.key, row.pending), row.position

    def _move(self, seq: Any, positions: list[int]) -> None:
        """Gives each row its new position, if none overtakes another."""
        kept = [position for position in positions if position >= 0]
        refusals = []
        if kept != sorted(kept):
            refusals.append("position_order")
        if any(position > I32_MAX - 1 for position in kept):
            refusals.append("position_overflow")
        if refusals:
            raise Refused(*refusals)
        for row, position in zip(self.rows[seq], positions):
            row.position = position
            row.rotated = position if self._raw else row.rotated
        self.rows[seq] = [row for row in self.rows[seq] if row.position >= 0]


def _inside(row: Row, p0: int, p1: int) -> bool:
    """Whether the row's position is in [p0, p1); negative bounds are open."""
    return row.position >= p0 and (p1 < 0 or row.position < p1)

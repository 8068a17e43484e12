"""Which sequence each row of a packed tensor belongs to, from the starts of the sequences."""

from __future__ import annotations

from dataclasses import dataclass

from kvcache_pmx._body import END, INT64, Body


@dataclass(frozen=True)
class Rows:
    """The rows of a packed tensor: `index` counts them, `sequence` is the one that each belongs to."""

    index: str
    sequence: str
    starts: str
    ends: str


def rows_of(body: Body, starts: str, length: str) -> Rows:
    """The rows of a tensor whose sequences begin at `starts`; `length` is a scalar, the number of all rows.

    A row's sequence is the number of sequences that end before it, so that empty sequences have no rows.
    """
    ends = body.slice(starts, 1, END, 0)
    index = body.count_up(length)
    ended = body.node("LessOrEqual", body.unsqueeze(ends, 0), body.unsqueeze(index, 1))
    sequence = body.node("ReduceSum", body.node("Cast", ended, to=INT64), body.integers(1), keepdims=0)
    return Rows(index, sequence, body.slice(starts, 0, -1, 0), ends)


def last_key(body: Body, queries: Rows, keys: Rows) -> str:
    """For each query the row of the last key that it sees: the last query of a sequence sees the last key."""
    to_go = body.node("Sub", body.node("Gather", queries.ends, queries.sequence), queries.index)
    return body.node("Sub", body.node("Gather", keys.ends, queries.sequence), to_go)


def same_sequence(body: Body, queries: Rows, keys: Rows) -> str:
    """Whether query and key are of one sequence, a matrix."""
    return body.node("Equal", body.unsqueeze(queries.sequence, 1), body.unsqueeze(keys.sequence, 0))

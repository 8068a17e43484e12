"""The index inputs of a step, from the lengths and the slots of its sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from kvcache_ops._errors import KvCacheError

_Ints = NDArray[np.int64]

NO_PAGE = -1
"""Fills the rows of a page table after a sequence's last page. It is never read."""


class AttentionIndices(TypedDict):
    """The index inputs of MultiHeadCacheAttention by name."""

    seqstarts: _Ints
    kvstarts: _Ints
    cachestarts: _Ints
    start_pos: _Ints
    decoding_batches: _Ints
    max_seqlen: _Ints
    max_kvlen: _Ints


class StepIndices(NamedTuple):
    """The index inputs of KeyValueCache in its order, int64; `attention()` has MultiHeadCacheAttention's."""

    seqstarts: _Ints
    kvstarts: _Ints
    cachestarts: _Ints
    start_pos: _Ints
    max_seqlen: _Ints
    max_kvlen: _Ints

    @property
    def decoding_batches(self) -> _Ints:
        """How many sequences in front have one new token each, shape (1)."""
        longer = np.flatnonzero(np.diff(self.seqstarts) != 1)
        return np.array([longer[0] if longer.size else self.start_pos.size], np.int64)

    def attention(self) -> AttentionIndices:
        """The index inputs of MultiHeadCacheAttention, for keywords: `multi_head_cache_attention(..., **these)`."""
        return {
            "seqstarts": self.seqstarts,
            "kvstarts": self.kvstarts,
            "cachestarts": self.cachestarts,
            "start_pos": self.start_pos,
            "decoding_batches": self.decoding_batches,
            "max_seqlen": self.max_seqlen,
            "max_kvlen": self.max_kvlen,
        }


def step_indices(
    seqlens: Sequence[int] | _Ints,
    start_pos: Sequence[int] | _Ints,
    *,
    cachestarts: Sequence[int] | _Ints | None = None,
    pages: Sequence[Sequence[int] | _Ints] | None = None,
    page_slots: Sequence[Sequence[int] | _Ints] | None = None,
    page_size: int | None = None,
    aligned: bool = True,
    max_pages: int | None = None,
) -> StepIndices:
    """The index inputs of a step of B sequences.

        indices = step_indices([4, 1], [0, 10], pages=[[2], [0, 1]], page_size=16)
        key, value = run(spec, current_key, current_value, *indices, cache, scale)

    seqlens: new tokens of each sequence. start_pos: tokens that each has in the cache already.
    One of: cachestarts, each sequence's first slot (cache_mode 0); pages, the numbers of each sequence's pages in their
    order (cache_mode 1), page n being the `page_size` slots from n * page_size on; page_slots, the first slots of these
    pages, multiples of page_size unless `aligned` is False. Rows are filled up with -1, which may also be given at
    their ends, to the longest one or to `max_pages`.

    Raises KvCacheError: "indices_type" for anything but an int, "indices_length" for lengths that do not agree,
    "indices_range" for negative lengths and pages and too few `max_pages`, "indices_alignment" for slots that are no
    multiple of page_size, "indices_slots" unless exactly one of cachestarts, pages and page_slots is given, and
    page_size with pages. Whether slots are in the cache, and pages are enough, `check` and `run` say.
    """
    new, old = _ints("seqlens", seqlens), _ints("start_pos", start_pos)
    if new.shape != old.shape:
        raise KvCacheError(f"start_pos has {old.size} sequences, expected {new.size}, as seqlens", "indices_length")
    for name, lengths in (("seqlens", new), ("start_pos", old)):
        if (lengths < 0).any():
            b = int(np.flatnonzero(lengths < 0)[0])
            raise KvCacheError(f"{name} is {lengths[b]} at batch {b}, expected at least 0", "indices_range")
    total = new + old
    if (total < 0).any():
        raise KvCacheError("the lengths of a sequence do not fit in 64 bits", "indices_range")
    given = {"cachestarts": cachestarts, "pages": pages, "page_slots": page_slots}
    names = [name for name, slots in given.items() if slots is not None]
    if len(names) != 1:
        got = " and ".join(names) or "none of them"
        raise KvCacheError(f"expected one of cachestarts, pages and page_slots, got {got}", "indices_slots")
    (name,) = names
    slots = (
        _page_starts(name, given[name], page_size, aligned, max_pages)
        if cachestarts is None
        else _ints(name, cachestarts)
    )
    if len(slots) != len(new):
        raise KvCacheError(f"{name} has {len(slots)} sequences, expected {new.size}, as seqlens", "indices_length")
    return StepIndices(
        seqstarts=np.concatenate([[0], np.cumsum(new)]).astype(np.int64),
        kvstarts=np.concatenate([[0], np.cumsum(total)]).astype(np.int64),
        cachestarts=slots,
        start_pos=old,
        max_seqlen=np.array([new.max(initial=0)], np.int64),
        max_kvlen=np.array([total.max(initial=0)], np.int64),
    )


def _ints(name: str, numbers: Sequence[int] | _Ints) -> _Ints:
    """A copy as an int64 array of rank 1."""
    try:
        array = np.asarray(numbers)
    except ValueError:
        array = np.empty((0, 0))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu") or (array.dtype == np.uint64 and array.size):
        raise KvCacheError(f"{name} is {numbers!r}, expected a list of ints of 64 bits", "indices_type")
    return array.astype(np.int64)


def _page_starts(name: str, rows: object, page_size: int | None, aligned: bool, max_pages: int | None) -> _Ints:
    """The first slots of `pages` or `page_slots`, rows filled up with -1: (B, MaxP)."""
    table = _page_table(name, rows, max_pages)
    if name == "page_slots" and not aligned:
        return table
    if page_size is None:
        raise KvCacheError(f"page_size is None, expected the slots of a page because {name} is given", "indices_slots")
    if not isinstance(page_size, int | np.integer):
        raise KvCacheError(f"page_size is {page_size!r}, expected an int", "indices_type")
    if page_size < 1:
        raise KvCacheError(f"page_size is {page_size}, expected at least 1", "indices_range")
    last = np.iinfo(np.int64).max // page_size
    legal, expected, kind = {
        "pages": ((table >= 0) & (table <= last), f"a page's number, 0 to {last}", "indices_range"),
        "page_slots": (table % page_size == 0, f"a multiple of page_size = {page_size}", "indices_alignment"),
    }[name]
    used = table != NO_PAGE
    for b, page in np.argwhere(used & ~legal)[:1]:
        raise KvCacheError(f"{name} is {table[b, page]} at batch {b}, page {page}, expected {expected}", kind)
    return np.where(used, table * page_size, NO_PAGE) if name == "pages" else table


def _page_table(name: str, pages: object, max_pages: int | None) -> _Ints:
    """Rows of ints, filled up with -1: (B, MaxP)."""
    if not isinstance(pages, Sequence | np.ndarray) or isinstance(pages, str):
        raise KvCacheError(f"{name} is {pages!r}, expected a list of lists", "indices_type")
    if max_pages is not None and not isinstance(max_pages, int | np.integer):
        raise KvCacheError(f"max_pages is {max_pages!r}, expected an int", "indices_type")
    rows = [_ints(f"{name}[{b}]", row) for b, row in enumerate(pages)]
    longest = max((row.size for row in rows), default=0)
    columns = longest if max_pages is None else max_pages
    if columns < longest:
        raise KvCacheError(f"max_pages is {max_pages}, expected at least {longest}, the longest row", "indices_range")
    table = np.full((len(rows), columns), NO_PAGE, np.int64)
    for filled, row in zip(table, rows):
        filled[: row.size] = row
    return table

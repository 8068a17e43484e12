"""cachestarts outside of the cache, slots with two writers, and outputs that no memory holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .bits import I64_MAX, I64_MIN
from .case import Case, Sequence, begin
from .table import Row, refusals, with_entry

# kvlens 4, 3 and 0 in MaxT 12; 7 and 3 in pages of 4.
BATCH = (Sequence(2, 2, 5), Sequence(0, 3, 0), Sequence(0, 0, 3))
LONG, SHORT = Sequence(5, 2, (4, 9)), Sequence(0, 3, (0,))
PAGES = dict(cache_mode=1, page_size=4)
F32: dict[str, Any] = {}
INT8: dict[str, Any] = dict(types="f16 int8 f16")
INT4: dict[str, Any] = dict(types="f32 int4 f32")
CONFLICT = "order.conflict refusal-leaves-memory"


def _batch(*sequences: tuple[int, int, int | tuple[int, ...]]) -> dict[str, tuple[Sequence, ...]]:
    """The change to a call of these sequences."""
    return dict(batch=tuple(Sequence(*sequence) for sequence in sequences))


# fmt: off
TABLE = (
    *((f"kvlen-beyond-cache-mode{mode}",
       "A kvlen of 2^40, then of 2^53, consistent with start_pos, that the cache cannot hold.",
       f"{rule} sizes.64-bit", dict(cache_mode=1) if mode == 1 else {},
       *((error, "cachestarts, batch 1", _batch((0, 2, places[0]), (2**n - 1, 1, places[1]))) for n in (40, 53)))
      for mode, rule, error, places in (
          (0, "slots.offset", "cache_range", (2, 5)), (1, "slots.pages", "too_many_pages", ((2,), (5,))))),
    # ceil(kvlen / page_size) <= MaxP, and every used slot in [0, MaxT).
    ("too-many-pages", "kvlen 7 needs two pages of 4, the table has one: at the first batch, then at the last.",
     "slots.pages", PAGES,
     ("too_many_pages", "cachestarts, batch 0, 2", dict(batch=(LONG, SHORT), cachestarts=[[4], [0]])),
     ("too_many_pages", "cachestarts, batch 1, 2", dict(batch=(SHORT, LONG), cachestarts=[[0], [4]]))),
    ("page-table-of-no-columns", "A sequence with a token and a table of no columns.", "slots.pages",
     dict(types="f16 f16", cache_mode=1),
     ("too_many_pages", "cachestarts, batch 1",
      _batch((0, 0, ()), (0, 1, ())) | dict(cachestarts=np.zeros((2, 0), np.int64)))),
    ("too-many-pages-only-loads", "A past that needs one page too many is refused though nothing is stored there.",
     "slots.pages", dict(types="f16 f16", cache_mode=1, page_size=2),
     ("too_many_pages", "cachestarts, batch 0", _batch((5, 0, (4, 0))))),
    ("page-of-the-past", "A page that only the past uses must lie inside the cache too.", "slots.paged",
     dict(types="f32 int8 f32", cache_mode=1, page_size=2),
     ("page_range", "cachestarts, batch 0, 11", _batch((4, 1, (11, 0, 4))))),
    ("page-size-i64-max-beyond",
     "page_size 2^63-1: the slot of the last token is beyond the cache, found without an overflow.",
     "slots.paged sizes.64-bit", dict(cache_mode=1, page_size=I64_MAX),
     ("page_range", "cachestarts, batch 0, 8", _batch((3, 2, (8,))))),
    # Two tokens of one call that write the same slot.
    ("conflict-offset-last-slot", "The first sequence ends in the slot where the second begins to store.", CONFLICT, {},
     ("write_conflict", "cachestarts, batch 1, 5", _batch((1, 3, 2), (0, 2, 5)))),
    ("conflict-offset-same-place", "Two sequences store the same slot with the same prefix.", CONFLICT,
     INT8 | dict(cache_layout=1),
     ("write_conflict", "cachestarts, batch 1, 6", _batch((3, 1, 3), (3, 1, 3)))),
    ("conflict-offset-inside", "The last sequence stores one token in the middle of what the first stores.", CONFLICT,
     INT4 | dict(cache_layout=2),
     ("write_conflict", "cachestarts, batch 2, 4", _batch((0, 5, 2), (1, 1, 8), (2, 1, 2)))),
    ("conflict-paged-shared-page", "Two sequences decode into the same slot of the same page.", CONFLICT,
     PAGES | dict(cache_layout=3),
     ("write_conflict", "cachestarts, batch 1, 9", _batch((5, 1, (0, 8)), (5, 1, (4, 8))))),
    ("conflict-paged-overlapping-pages", "Pages that overlap by one slot, which both sequences store.", CONFLICT,
     INT8 | PAGES,
     ("write_conflict", "cachestarts, batch 1, 5", _batch((0, 4, (2,)), (0, 3, (5,))))),
    ("conflict-paged-page-listed-twice", "One sequence lists a page twice and stores its first slot twice.", CONFLICT,
     INT4 | PAGES | dict(cache_layout=1),
     ("write_conflict", "cachestarts, batch 0, 4", _batch((0, 5, (4, 4)), (1, 1, (0,))))),
    ("conflict-paged-own-pages-overlap", "The last slot of a page is the first of the same sequence's next page.",
     CONFLICT, PAGES | dict(cache_layout=2),
     ("write_conflict", "cachestarts, batch 1, 7", _batch((1, 1, (0,)), (3, 2, (4, 7))))),
    *((f"num-repeat-{label}", f"num_repeat {num_repeat}: the heads of key do not fit in 64 bits.", "sizes.64-bit",
       dict(types="f16 f16", num_heads=2, max_t=3, num_repeat=num_repeat),
       ("size_overflow", "64", _batch((0, 2, 1)))) for label, num_repeat in (("2p62", 2**62), ("i64-max", I64_MAX))),
)
# fmt: on


def cases() -> Iterator[Case]:
    yield from refusals(begin, (), TABLE)
    yield from refusals(begin, BATCH, _offsets())
    yield from refusals(begin, (LONG, SHORT), _pages())


def _offsets() -> Iterator[Row]:
    """0 <= cachestarts[b] and cachestarts[b] + kvlen[b] <= MaxT."""
    for b, (kvlen, types, far) in enumerate(((4, F32, I64_MIN), (3, INT8, I64_MAX - 2), (0, INT4, I64_MIN))):
        about = f"Batch {b} with kvlen {kvlen} begins below slot 0 or ends beyond MaxT 12; no sum may wrap."
        wrong = (-1, 13 - kvlen, I64_MAX, far)
        calls = [("cache_range", f"cachestarts, batch {b}, {x}", dict(cachestarts=with_entry(b, x))) for x in wrong]
        yield f"cache-range-batch{b}", about, "slots.offset", types | dict(num_heads=1), *calls


def _pages() -> Iterator[Row]:
    """Each used page lies in [0, MaxT), as far as its slots are used."""
    for place, used, types, wrong in (
        ((0, 0), 4, F32, (-1, 9, I64_MAX, I64_MIN)),
        ((0, 1), 3, INT8, (-1, 10, I64_MAX, I64_MIN)),
        ((1, 0), 3, INT4, (-1, 10, 12, I64_MAX, I64_MAX - 1, I64_MIN)),
    ):
        b, page = place
        about = f"Page {page} of batch {b}, of which {used} slots are used, reaches outside MaxT 12; no sum may wrap."
        given = types | dict(num_heads=1) | PAGES
        calls = [("page_range", f"cachestarts, batch {b}, {x}", dict(cachestarts=with_entry(place, x))) for x in wrong]
        yield f"page-range-batch{b}-page{page}", about, "slots.paged", given, *calls

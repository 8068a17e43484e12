"""Slots of tokens: pages of every kind, shared slots, and untouched slots."""

from __future__ import annotations

from collections.abc import Iterator

from .bits import I64_MAX, I64_MIN
from .case import Case
from .table import successes

# fmt: off
TABLE = (
    # Page starts need no alignment and no order.
    ("pages-unordered", "Pages in falling order and far apart: each is looked up, none follows from another.",
     "cache-mode.1 pages.unaligned", dict(max_t=20, cache_mode=1, page_size=4, cache_layout=3),
     [(0, 10, (16, 8, 0)), (3, 3, (12, 4))]),
    ("pages-unaligned", "Pages that begin anywhere, also one slot beside another page.", "cache-mode.1 pages.unaligned",
     dict(types="f16 int8 f16", max_t=19, cache_mode=1, page_size=4), [(2, 7, (15, 1, 7)), (0, 5, (11, 5))]),
    ("pages-neighboring", "Pages of one sequence that happen to be neighbors: one run of slots across three pages.",
     "cache-mode.1 pages.unaligned", dict(types="f16 f16", max_t=14, cache_mode=1, page_size=4, cache_layout=2),
     [(1, 10, (2, 6, 10))]),
    ("pages-overlapping-unused",
     "Two pages overlap, but no token uses the slots they share: the first sequence ends before them.",
     "order.conflict pages.unaligned", dict(max_t=10, cache_mode=1, page_size=4), [(0, 2, (3,)), (0, 4, (5,))]),
    ("page-listed-twice-read",
     "A page listed twice with one writer for each slot: tokens 0 and 1 load what tokens 2 and 3 store there.",
     "order.stores-first order.conflict", dict(types="f32 int8 f32", max_t=6, cache_mode=1, page_size=2),
     [(2, 2, (3, 3))]),
    ("pages-to-spare",
     "More pages than the sequence needs, all valid: only the first ceil(kvlen / page_size) are used.",
     "pages.filler pages.unaligned", dict(types="f16 int4 f32", cache_mode=1, page_size=3, num_repeat=2),
     [(1, 2, (6, 0, 3)), (3, 1, (9, 0, 6))]),
    # Entries past the last used page are never read.
    ("page-tail-minus-one-{types}", "Entries past the last used page are -1: never read, whatever they hold.",
     "pages.filler", dict(types=["f32 f32", "f16 int4 f16"], cache_mode=1, page_size=4),
     [(2, 2, ()), (4, 1, ()), (0, 0, ()), dict(cachestarts=[[8, -1, -1], [4, 0, -1], [-1, -1, -1]])]),
    *((f"page-tail-{label}-{types.replace(' ', '-')}",
       f"Entries past the last used page are {x}: never read, whatever they hold.", "pages.filler",
       dict(types=types, cache_mode=1, page_size=4),
       [(2, 2, ()), (4, 1, ()), (0, 0, ()), dict(cachestarts=[[8, x, x], [4, 0, x], [x, x, x]])])
      for label, x, types in (("i64-max", I64_MAX, "f32 int4 f32"), ("i64-min", I64_MIN, "f16 int8 f32"))),
    # Page sizes from one token to more than the cache holds.
    ("page-size-1-{types}", "page_size 1: a table with one entry for each token.", "cache-mode.1 pages.unaligned",
     dict(types=["f32 f32", "f16 int8 f32", "f32 int4 f16"], cache_mode=1, page_size=1, cache_layout=2),
     [(2, 3, (7, 0, 11, 1, 2)), (0, 2, (10, 9)), (1, 0, (4,))]),
    ("page-size-5", "page_size 5, no power of two; the last page is used in part.", "cache-mode.1 pages.unaligned",
     dict(types="f16 int8 f16", max_t=13, cache_mode=1, page_size=5, cache_layout=1), [(4, 3, (8, 1)), (0, 1, (0,))]),
    ("page-size-beyond-max-t-{types}", "page_size 64 in a cache of 12: only the slots that tokens use must exist.",
     "pages.unaligned slots.paged", dict(types=["f32 f32", "f16 int4 f32"], cache_mode=1, page_size=64, cache_layout=3),
     [(3, 3, (6,)), (0, 2, (1,))]),
    ("page-size-i64-max-mode1",
     "page_size 2^63-1 is legal: one page holds every sequence, and no sum with it may overflow.",
     "cache-mode.1 sizes.64-bit", dict(cache_mode=1, page_size=I64_MAX), [(2, 3, (5,)), (0, 2, (1,))]),
    ("page-size-i64-max-mode0", "page_size 2^63-1 in offset mode: legal and without effect.",
     "cache-mode.0 sizes.64-bit", dict(page_size=I64_MAX), [(2, 3, 5), (0, 2, 1)]),
    # Two sequences may read the same slots.
    ("shared-prefix-paged-{types}", "Two sequences share the two pages of their prefix and write pages of their own.",
     "order.shared-slots", dict(types=["f16 f16", "f32 int8 f32", "f16 int4 f16"], max_t=16, cache_mode=1, page_size=3),
     [(6, 2, (9, 1, 4)), (6, 1, (9, 1, 13))], [(8, 1, (9, 1, 4)), (7, 2, (9, 1, 13))]),
    ("shared-prefix-offset-{types}",
     "The second sequence has the cachestarts of the first and only reads; the third begins inside.",
     "order.shared-slots", dict(types=["f16 f16", "f32 int8 f32", "f16 int4 f16"], max_t=10, cache_layout=1),
     [(4, 1, 2), (4, 0, 2), (3, 2, 4)]),
    # All stores of a call come before all its loads.
    ("reads-later-writer-mode0-{types}",
     "A sequence loads slots that a later sequence of the same call stores: it sees the new values.",
     "order.stores-first order.shared-slots", dict(types=["f32 f32", "f16 int8 f16", "f32 int4 f32"], cache_layout=3),
     [(4, 0, 3), (0, 4, 3)]),
    ("reads-earlier-writer-mode0-f32-f32",
     "A sequence loads slots that an earlier sequence of the same call stores: it sees the new values.",
     "order.shared-slots", dict(cache_layout=3), [(0, 4, 3), (4, 0, 3)]),
    ("reads-later-writer-mode1-{types}",
     "A sequence loads slots that a later sequence of the same call stores: it sees the new values.",
     "order.stores-first order.shared-slots",
     dict(types=["f32 f32", "f16 int8 f16", "f32 int4 f32"], cache_mode=1, cache_layout=2, page_size=4),
     [(4, 0, (3,)), (0, 4, (3,))]),
    ("reads-earlier-writer-mode1-f32-f32",
     "A sequence loads slots that an earlier sequence of the same call stores: it sees the new values.",
     "order.shared-slots", dict(cache_mode=1, cache_layout=2, page_size=4), [(0, 4, (3,)), (4, 0, (3,))]),
    ("reads-each-other-{types}", "Each of two sequences stores into the other's prefix: both load what both stored.",
     "order.stores-first order.shared-slots",
     dict(types=["f32 f32", "f16 int8 f16", "f32 int4 f32"], cache_mode=1, page_size=4),
     [(4, 2, (0, 6)), (4, 2, (6, 0))]),
    # The first and the last slot of the cache.
    ("cache-full-layout0-f16-f32",
     "Sequences that begin at slot 0 and end at the last slot, with no slot between them.",
     "slots.offset cache-layout.0", dict(types="f16 f32", max_t=7), [(1, 3, 3), (0, 3, 0)]),
    ("cache-full-layout3-f16-int4-f32",
     "Sequences that begin at slot 0 and end at the last slot, with no slot between them.",
     "slots.offset cache-layout.3", dict(types="f16 int4 f32", max_t=7, cache_layout=3), [(1, 3, 3), (0, 3, 0)]),
    ("page-ends-beyond-cache", "The last page reaches beyond the cache, its used slots do not.", "slots.paged",
     dict(max_t=10, cache_mode=1, page_size=4), [(3, 3, (2, 8))]),
    ("empty-sequence-at-max-t", "A sequence with nothing may begin at MaxT, one past the last slot.",
     "slots.offset starts.empty", dict(max_t=5), [(0, 2, 3), (0, 0, 5)]),
    ("cache-of-one-slot-mode0", "A cache of a single slot.", "cache-mode.0 slots.offset",
     dict(types="f16 int8 f16", max_t=1), [(0, 1, 0)], [(1, 0, 0)]),
    ("cache-of-one-slot-mode1", "A cache of a single slot.", "cache-mode.1 slots.paged",
     dict(types="f16 int8 f16", max_t=1, cache_mode=1, page_size=1), [(0, 1, (0,))], [(1, 0, (0,))]),
    # Slots without a current token keep every byte, in the layer of the call and in the others.
    *((f"untouched-slots-layout{layout}-{types.replace(' ', '-')}",
       "One token into the middle of random bytes: before and after differ in its slot and layer alone.",
       f"untouched-slots untouched-layers layer cache-layout.{layout}",
       dict(types=types, max_t=5, num_layer=3, layer_idx=1) | (dict(cache_layout=layout) if layout else {}),
       [(0, 1, 2)])
      for layout, types in enumerate(("f32 f32", "f32 int8 f16", "f16 int4 f32", "f16 int8 f16"))),
)
# fmt: on


def cases() -> Iterator[Case]:
    yield from successes(TABLE)

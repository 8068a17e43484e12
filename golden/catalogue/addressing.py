"""Slots of tokens: pages of every kind, shared slots, and untouched slots."""

from __future__ import annotations

from collections.abc import Iterator

from .case import Case, Sequence, begin, indices

I64_MIN, I64_MAX = -(2**63), 2**63 - 1


def cases() -> Iterator[Case]:
    """Everything of this module."""
    yield from pages()
    yield from page_tails()
    yield from page_sizes()
    yield from shared_slots()
    yield from same_call()
    yield from borders()
    yield from untouched()


def pages() -> Iterator[Case]:
    """Page starts need no alignment and no order."""
    about = "Pages in falling order and far apart: each is looked up, none follows from another."
    given = dict(max_t=20, cache_mode=1, page_size=4, cache_layout=3)
    case = begin("pages-unordered", about, "f32 f32", proves="cache-mode.1 pages.unaligned", **given)
    yield case.call(Sequence(0, 10, (16, 8, 0)), Sequence(3, 3, (12, 4)))

    about = "Pages that begin anywhere, also one slot beside another page."
    given = dict(max_t=19, cache_mode=1, page_size=4, quant_bit=8)
    case = begin("pages-unaligned", about, "f16 int8 f16", proves="cache-mode.1 pages.unaligned", **given)
    yield case.call(Sequence(2, 7, (15, 1, 7)), Sequence(0, 5, (11, 5)))

    about = "Pages of one sequence that happen to be neighbors: one run of slots across three pages."
    given = dict(max_t=14, cache_mode=1, page_size=4, cache_layout=2)
    case = begin("pages-neighboring", about, "f16 f16", proves="cache-mode.1 pages.unaligned", **given)
    yield case.call(Sequence(1, 10, (2, 6, 10)))

    about = "Two pages overlap, but no token uses the slots they share: the first sequence ends before them."
    given = dict(max_t=10, cache_mode=1, page_size=4)
    case = begin("pages-overlapping-unused", about, "f32 f32", proves="order.conflict pages.unaligned", **given)
    yield case.call(Sequence(0, 2, (3,)), Sequence(0, 4, (5,)))

    about = "A page listed twice with one writer for each slot: tokens 0 and 1 load what tokens 2 and 3 store there."
    given = dict(max_t=6, cache_mode=1, page_size=2, quant_bit=8)
    case = begin("page-listed-twice-read", about, "f32 int8 f32", proves="order.stores-first order.conflict", **given)
    yield case.call(Sequence(2, 2, (3, 3)))

    about = "More pages than the sequence needs, all valid: only the first ceil(kvlen / page_size) are used."
    given = dict(cache_mode=1, page_size=3, quant_bit=4, num_repeat=2)
    case = begin("pages-to-spare", about, "f16 int4 f32", proves="pages.filler pages.unaligned", **given)
    yield case.call(Sequence(1, 2, (6, 0, 3)), Sequence(3, 1, (9, 0, 6)))


def page_tails() -> Iterator[Case]:
    """Entries past the last used page are never read."""
    for name, filler, bits, types in (
        ("minus-one", -1, 0, "f32 f32"),
        ("minus-one", -1, 4, "f16 int4 f16"),
        ("i64-max", I64_MAX, 4, "f32 int4 f32"),
        ("i64-min", I64_MIN, 8, "f16 int8 f32"),
    ):
        case = begin(
            f"page-tail-{name}-{types.replace(' ', '-')}",
            f"Entries past the last used page are {filler}: never read, whatever they hold.",
            types,
            proves="pages.filler",
            quant_bit=bits,
            cache_mode=1,
            page_size=4,
        )
        tail = indices([[8, filler, filler], [4, 0, filler], [filler, filler, filler]])
        yield case.call(Sequence(2, 2, ()), Sequence(4, 1, ()), Sequence(0, 0, ()), cachestarts=tail)


def page_sizes() -> Iterator[Case]:
    """Page sizes from one token to more than the cache holds."""
    about = "page_size 1: a table with one entry for each token."
    for bits, types in ((0, "f32 f32"), (8, "f16 int8 f32"), (4, "f32 int4 f16")):
        name = f"page-size-1-{types.replace(' ', '-')}"
        given = dict(cache_mode=1, page_size=1, quant_bit=bits, cache_layout=2)
        case = begin(name, about, types, proves="cache-mode.1 pages.unaligned", **given)
        yield case.call(Sequence(2, 3, (7, 0, 11, 1, 2)), Sequence(0, 2, (10, 9)), Sequence(1, 0, (4,)))

    about = "page_size 5, no power of two; the last page is used in part."
    given = dict(max_t=13, cache_mode=1, page_size=5, quant_bit=8, cache_layout=1)
    case = begin("page-size-5", about, "f16 int8 f16", proves="cache-mode.1 pages.unaligned", **given)
    yield case.call(Sequence(4, 3, (8, 1)), Sequence(0, 1, (0,)))

    about = "page_size 64 in a cache of 12: only the slots that tokens use must exist."
    for bits, types in ((0, "f32 f32"), (4, "f16 int4 f32")):
        name = f"page-size-beyond-max-t-{types.replace(' ', '-')}"
        given = dict(cache_mode=1, page_size=64, quant_bit=bits, cache_layout=3)
        case = begin(name, about, types, proves="pages.unaligned slots.paged", **given)
        yield case.call(Sequence(3, 3, (6,)), Sequence(0, 2, (1,)))

    for mode in (1, 0):
        about = "page_size 2^63-1 is legal: one page holds every sequence, and no sum with it may overflow."
        about = about if mode == 1 else "page_size 2^63-1 in offset mode: legal and without effect."
        name = f"page-size-i64-max-mode{mode}"
        given = dict(cache_mode=mode, page_size=I64_MAX)
        case = begin(name, about, "f32 f32", proves=f"cache-mode.{mode} sizes.64-bit", **given)
        places = (5, 1) if mode == 0 else ((5,), (1,))
        yield case.call(Sequence(2, 3, places[0]), Sequence(0, 2, places[1]))


def shared_slots() -> Iterator[Case]:
    """Two sequences may read the same slots."""
    for bits, types in ((0, "f16 f16"), (8, "f32 int8 f32"), (4, "f16 int4 f16")):
        label = types.replace(" ", "-")
        about = "Two sequences share the two pages of their prefix and write pages of their own."
        given = dict(max_t=16, cache_mode=1, page_size=3, quant_bit=bits)
        case = begin(f"shared-prefix-paged-{label}", about, types, proves="order.shared-slots", **given)
        yield case.call(Sequence(6, 2, (9, 1, 4)), Sequence(6, 1, (9, 1, 13))).call(
            Sequence(8, 1, (9, 1, 4)), Sequence(7, 2, (9, 1, 13))
        )
        about = "The second sequence has the cachestarts of the first and only reads; the third begins inside."
        given = dict(max_t=10, quant_bit=bits, cache_layout=1)
        case = begin(f"shared-prefix-offset-{label}", about, types, proves="order.shared-slots", **given)
        yield case.call(Sequence(4, 1, 2), Sequence(4, 0, 2), Sequence(3, 2, 4))


def same_call() -> Iterator[Case]:
    """All stores of a call come before all its loads."""
    rules = "order.stores-first order.shared-slots"
    for bits, types in ((0, "f32 f32"), (8, "f16 int8 f16"), (4, "f32 int4 f32")):
        for mode in (0, 1):
            attributes = dict(cache_mode=mode, quant_bit=bits, cache_layout=(3, 2)[mode], page_size=4)
            label = f"mode{mode}-{types.replace(' ', '-')}"
            writer = Sequence(0, 4, 3 if mode == 0 else (3,))
            reader = Sequence(4, 0, 3 if mode == 0 else (3,))

            about = "A sequence loads slots that a later sequence of the same call stores: it sees the new values."
            case = begin(f"reads-later-writer-{label}", about, types, proves=rules, **attributes)
            yield case.call(reader, writer)

            if bits != 0:
                continue
            about = "A sequence loads slots that an earlier sequence of the same call stores: it sees the new values."
            case = begin(f"reads-earlier-writer-{label}", about, types, proves="order.shared-slots", **attributes)
            yield case.call(writer, reader)

        about = "Each of two sequences stores into the other's prefix: both load what both stored."
        attributes = dict(cache_mode=1, quant_bit=bits, page_size=4)
        case = begin(f"reads-each-other-{types.replace(' ', '-')}", about, types, proves=rules, **attributes)
        yield case.call(Sequence(4, 2, (0, 6)), Sequence(4, 2, (6, 0)))


def borders() -> Iterator[Case]:
    """The first and the last slot of the cache."""
    for bits, types, cache_layout in ((0, "f16 f32", 0), (4, "f16 int4 f32", 3)):
        about = "Sequences that begin at slot 0 and end at the last slot, with no slot between them."
        name = f"cache-full-layout{cache_layout}-{types.replace(' ', '-')}"
        given = dict(max_t=7, quant_bit=bits, cache_layout=cache_layout)
        case = begin(name, about, types, proves=f"slots.offset cache-layout.{cache_layout}", **given)
        yield case.call(Sequence(1, 3, 3), Sequence(0, 3, 0))

    about = "The last page reaches beyond the cache, its used slots do not."
    case = begin("page-ends-beyond-cache", about, "f32 f32", proves="slots.paged", max_t=10, cache_mode=1, page_size=4)
    yield case.call(Sequence(3, 3, (2, 8)))

    about = "A sequence with nothing may begin at MaxT, one past the last slot."
    case = begin("empty-sequence-at-max-t", about, "f32 f32", proves="slots.offset starts.empty", max_t=5)
    yield case.call(Sequence(0, 2, 3), Sequence(0, 0, 5))

    about = "A cache of a single slot."
    for mode in (0, 1):
        name = f"cache-of-one-slot-mode{mode}"
        case = begin(
            name,
            about,
            "f16 int8 f16",
            proves=f"cache-mode.{mode} slots.{('offset', 'paged')[mode]}",
            max_t=1,
            quant_bit=8,
            cache_mode=mode,
            page_size=1,
        )
        place = 0 if mode == 0 else (0,)
        yield case.call(Sequence(0, 1, place)).call(Sequence(1, 0, place))


def untouched() -> Iterator[Case]:
    """Slots without a current token keep every byte, in the layer of the call and in the others."""
    for cache_layout, (bits, types) in enumerate(
        ((0, "f32 f32"), (8, "f32 int8 f16"), (4, "f16 int4 f32"), (8, "f16 int8 f16"))
    ):
        case = begin(
            f"untouched-slots-layout{cache_layout}-{types.replace(' ', '-')}",
            "One token into the middle of random bytes: before and after differ in its slot and layer alone.",
            types,
            proves=f"untouched-slots untouched-layers layer cache-layout.{cache_layout}",
            max_t=5,
            num_layer=3,
            layer_idx=1,
            quant_bit=bits,
            cache_layout=cache_layout,
        )
        yield case.call(Sequence(0, 1, 2))

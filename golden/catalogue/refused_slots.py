"""cachestarts outside of the cache, and slots with two writers."""

from __future__ import annotations

from collections.abc import Iterator

from .addressing import I64_MAX, I64_MIN
from .case import Case, Sequence, begin, indices

MAX_T = 12
TYPES = ((0, "f32 f32"), (8, "f16 int8 f16"), (4, "f32 int4 f32"))


def cases() -> Iterator[Case]:
    """Everything of this module."""
    yield from offsets()
    yield from pages()
    yield from conflicts()
    yield from sizes()


def offsets() -> Iterator[Case]:
    """0 <= cachestarts[b] and cachestarts[b] + kvlen[b] <= MaxT, for kvlens 4, 3 and 0."""
    batch = (Sequence(2, 2, 5), Sequence(0, 3, 0), Sequence(0, 0, 3))
    wrong = ((-1, 9, I64_MAX, I64_MIN), (-1, 10, I64_MAX, I64_MAX - 2), (-1, 13, I64_MAX, I64_MIN))
    for b, (values, kvlen, (bits, types)) in enumerate(zip(wrong, (4, 3, 0), TYPES, strict=True)):
        about = f"Batch {b} with kvlen {kvlen} begins below slot 0 or ends beyond MaxT {MAX_T}; no sum may wrap."
        sizes = dict(num_heads=1, max_t=MAX_T)
        case = begin(f"refuse-cache-range-batch{b}", about, types, proves="slots.offset", **sizes, quant_bit=bits)
        for found in values:
            cachestarts = [5, 0, 3]
            cachestarts[b] = found
            mentions = ["cachestarts", f"batch {b}", found]
            case.refuse("cache_range", mentions, *batch, cachestarts=indices(cachestarts))
        yield case

    for mode, rule, error in ((0, "slots.offset", "cache_range"), (1, "slots.pages", "too_many_pages")):
        about = "A kvlen of 2^40, then of 2^53, consistent with start_pos, that the cache cannot hold."
        rules = f"{rule} sizes.64-bit"
        name = f"refuse-kvlen-beyond-cache-mode{mode}"
        case = begin(name, about, "f32 f32", proves=rules, max_t=MAX_T, cache_mode=mode)
        places = (2, 5) if mode == 0 else ((2,), (5,))
        for kvlen in (2**40, 2**53):
            case.refuse(error, ["cachestarts", "batch 1"], Sequence(0, 2, places[0]), Sequence(kvlen - 1, 1, places[1]))
        yield case


def pages() -> Iterator[Case]:
    """ceil(kvlen / page_size) <= MaxP, and every used slot in [0, MaxT), for kvlens 7 and 3 in pages of 4."""
    batch = (Sequence(5, 2, (4, 9)), Sequence(0, 3, (0,)))
    about = "kvlen 7 needs two pages of 4, the table has one: at the first batch, then at the last."
    case = begin(
        "refuse-too-many-pages", about, "f32 f32", proves="slots.pages", max_t=MAX_T, cache_mode=1, page_size=4
    )
    case.refuse("too_many_pages", ["cachestarts", "batch 0", 2], *batch, cachestarts=indices([[4], [0]]))
    yield case.refuse("too_many_pages", ["cachestarts", "batch 1", 2], *batch[::-1], cachestarts=indices([[0], [4]]))

    about = "A sequence with a token and a table of no columns."
    case = begin("refuse-page-table-of-no-columns", about, "f16 f16", proves="slots.pages", max_t=MAX_T, cache_mode=1)
    yield case.refuse(
        "too_many_pages",
        ["cachestarts", "batch 1"],
        Sequence(0, 0, ()),
        Sequence(0, 1, ()),
        cachestarts=indices([]).reshape(2, 0),
    )

    about = "A past that needs one page too many is refused though nothing is stored there."
    attributes = dict(cache_mode=1, page_size=2)
    case = begin("refuse-too-many-pages-only-loads", about, "f16 f16", proves="slots.pages", max_t=MAX_T, **attributes)
    yield case.refuse("too_many_pages", ["cachestarts", "batch 0"], Sequence(5, 0, (4, 0)))

    wrong = (
        (0, 0, 4, (-1, 9, I64_MAX, I64_MIN)),
        (0, 1, 3, (-1, 10, I64_MAX, I64_MIN)),
        (1, 0, 3, (-1, 10, 12, I64_MAX, I64_MAX - 1, I64_MIN)),
    )
    for (b, p, used, values), (bits, types) in zip(wrong, TYPES, strict=True):
        about = f"Page {p} of batch {b}, of which {used} slots are used, reaches outside MaxT {MAX_T}; no sum may wrap."
        name = f"refuse-page-range-batch{b}-page{p}"
        attributes = dict(cache_mode=1, page_size=4, quant_bit=bits)
        case = begin(name, about, types, proves="slots.paged", num_heads=1, max_t=MAX_T, **attributes)
        for found in values:
            table = [[4, 9], [0, -1]]
            table[b][p] = found
            case.refuse("page_range", ["cachestarts", f"batch {b}", found], *batch, cachestarts=indices(table))
        yield case

    about = "A page that only the past uses must lie inside the cache too."
    attributes = dict(cache_mode=1, page_size=2, quant_bit=8)
    case = begin("refuse-page-of-the-past", about, "f32 int8 f32", proves="slots.paged", max_t=MAX_T, **attributes)
    yield case.refuse("page_range", ["cachestarts", "batch 0", 11], Sequence(4, 1, (11, 0, 4)))

    about = "page_size 2^63-1: the slot of the last token is beyond the cache, found without an overflow."
    attributes = dict(cache_mode=1, page_size=I64_MAX)
    rules = "slots.paged sizes.64-bit"
    case = begin("refuse-page-size-i64-max-beyond", about, "f32 f32", proves=rules, max_t=MAX_T, **attributes)
    yield case.refuse("page_range", ["cachestarts", "batch 0", 8], Sequence(3, 2, (8,)))


def conflicts() -> Iterator[Case]:
    """Two tokens of one call that write the same slot."""
    for number, (name, about, mode, mentions, batch) in enumerate(
        (
            (
                "offset-last-slot",
                "The first sequence ends in the slot where the second begins to store.",
                0,
                ["batch 1", 5],
                (Sequence(1, 3, 2), Sequence(0, 2, 5)),
            ),
            (
                "offset-same-place",
                "Two sequences store the same slot with the same prefix.",
                0,
                ["batch 1", 6],
                (Sequence(3, 1, 3), Sequence(3, 1, 3)),
            ),
            (
                "offset-inside",
                "The last sequence stores one token in the middle of what the first stores.",
                0,
                ["batch 2", 4],
                (Sequence(0, 5, 2), Sequence(1, 1, 8), Sequence(2, 1, 2)),
            ),
            (
                "paged-shared-page",
                "Two sequences decode into the same slot of the same page.",
                1,
                ["batch 1", 9],
                (Sequence(5, 1, (0, 8)), Sequence(5, 1, (4, 8))),
            ),
            (
                "paged-overlapping-pages",
                "Pages that overlap by one slot, which both sequences store.",
                1,
                ["batch 1", 5],
                (Sequence(0, 4, (2,)), Sequence(0, 3, (5,))),
            ),
            (
                "paged-page-listed-twice",
                "One sequence lists a page twice and stores its first slot twice.",
                1,
                ["batch 0", 4],
                (Sequence(0, 5, (4, 4)), Sequence(1, 1, (0,))),
            ),
            (
                "paged-own-pages-overlap",
                "The last slot of a page is the first of the same sequence's next page.",
                1,
                ["batch 1", 7],
                (Sequence(1, 1, (0,)), Sequence(3, 2, (4, 7))),
            ),
        )
    ):
        bits, types = TYPES[number % 3]
        given = dict(max_t=MAX_T, quant_bit=bits, cache_mode=mode, page_size=4, cache_layout=number % 4)
        case = begin(f"refuse-conflict-{name}", about, types, proves="order.conflict refusal-leaves-memory", **given)
        yield case.refuse("write_conflict", ["cachestarts", *mentions], *batch)


def sizes() -> Iterator[Case]:
    """Outputs whose size does not fit in 64 bits."""
    for num_repeat, label in ((2**62, "2p62"), (I64_MAX, "i64-max")):
        about = f"num_repeat {num_repeat}: the heads of key do not fit in 64 bits."
        sizes = dict(num_heads=2, max_t=3, num_repeat=num_repeat)
        case = begin(f"refuse-num-repeat-{label}", about, "f16 f16", proves="sizes.64-bit", **sizes)
        yield case.refuse("size_overflow", ["64"], Sequence(0, 2, 1))

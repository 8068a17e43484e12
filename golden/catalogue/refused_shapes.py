"""Ranks and axes that do not agree with the others, one at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from oracle.layouts import LAYOUTS, cache_shape

from .case import Case, Sequence, begin, indices

BATCH = (Sequence(1, 2, 3), Sequence(0, 3, 6))
PAGED = (Sequence(1, 2, (3,)), Sequence(0, 3, (6,)))
TOKENS, NUM_HEADS, HEAD_DIM, MAX_T, NUM_LAYER = 5, 2, 8, 10, 3


def cases() -> Iterator[Case]:
    """Everything of this module."""
    yield from ranks()
    yield from batches()
    yield from currents()
    yield from caches()
    yield from scales()
    yield from indivisible()


def small(name: str, about: str, types: str = "f32 f32", proves: str = "inputs.shapes", **attributes: int) -> Case:
    """A case for the batches above."""
    return begin(name, about, types, proves=proves, max_t=MAX_T, **attributes)


def ranks() -> Iterator[Case]:
    """Every input with one axis too many or too few."""
    wrong = {
        "current_key": (lambda x: x.reshape(TOKENS, -1), lambda x: x[None]),
        "current_value": (lambda x: x.reshape(TOKENS, -1), lambda x: x[None]),
        "seqstarts": (lambda x: x[-1].reshape(()), lambda x: x[None]),
        "kvstarts": (lambda x: x[-1].reshape(()), lambda x: x[None]),
        "cachestarts": (lambda x: x[0].reshape(()), lambda x: x[:, None]),
        "start_pos": (lambda x: x[0].reshape(()), lambda x: x[None]),
        "max_seqlen": (lambda x: x.reshape(1, 1),),
        "max_kvlen": (lambda x: x.reshape(1, 1),),
    }
    about = "Each input in turn with an axis too few, then one too many: refused."
    case = small("refuse-rank-of-inputs", about)
    for name, reshapes in wrong.items():
        for reshape in reshapes:
            changed = reshape(getattr(case.inputs(*BATCH), name))
            case.refuse("rank_mismatch", [name], *BATCH, **{name: changed})
    yield case

    about = "Paged mode with cachestarts of rank 3, then of rank 0: refused."
    case = small("refuse-rank-of-cachestarts-paged", about, cache_mode=1)
    case.refuse("rank_mismatch", ["cachestarts"], *PAGED, cachestarts=indices([[[3], [6]]]))
    yield case.refuse("rank_mismatch", ["cachestarts"], *PAGED, cachestarts=indices(3))

    about = "Paged mode with the rank-1 cachestarts of exports before pages existed: refused with an error of its own."
    case = small("refuse-legacy-page-table", about, proves="legacy-exports", cache_mode=1)
    for entries in ((3, 6), (3, 4, 5, 6, 7, 8)):
        case.refuse("legacy_page_table", ["cachestarts"], *PAGED, cachestarts=indices(entries))
    yield case

    for cache_layout, shape in ((0, (MAX_T, 2, NUM_HEADS, HEAD_DIM)), (3, (1, 1, 2, NUM_HEADS, MAX_T, HEAD_DIM))):
        about = f"A cache of rank {len(shape)}: refused."
        cache = np.zeros(shape, np.float32)
        name = f"refuse-rank-of-cache-{len(shape)}"
        case = begin(name, about, "f32 f32", proves="inputs.shapes", cache=cache, cache_layout=cache_layout)
        yield case.refuse("rank_mismatch", ["cache"], *BATCH)

    for bits, shape in ((8, (MAX_T, 1, 2, NUM_HEADS)), (4, (1, MAX_T, 1, 2, NUM_HEADS, 1))):
        about = f"A scale of rank {len(shape)}: refused."
        scale = np.zeros(shape, np.float16)
        name = f"refuse-rank-of-scale-{len(shape)}"
        case = small_with_scale(name, about, f"f16 int{bits} f16", scale, quant_bit=bits)
        yield case.refuse("rank_mismatch", ["scale"], *BATCH)


def small_with_scale(name: str, about: str, types: str, scale: np.ndarray, **attributes: int) -> Case:
    """As `small`, with a scale of a shape of its own."""
    return begin(name, about, types, proves="inputs.shapes", max_t=MAX_T, scale=scale, **attributes)


def batches() -> Iterator[Case]:
    """B from seqstarts against every other input that has it; max_seqlen and max_kvlen of more or fewer than one."""
    wrong = {
        "seqstarts": ([],),
        "kvstarts": ([0, 3], [0, 3, 6, 6], []),
        "cachestarts": ([3], [3, 6, 0], []),
        "start_pos": ([1], [1, 0, 0], []),
        "max_seqlen": ([3, 3], []),
        "max_kvlen": ([3, 3], []),
    }
    about = "Each index input in turn with too few, too many or no entries for a batch of 2: refused."
    case = small("refuse-entries-of-indices", about)
    for name, choices in wrong.items():
        for values in choices:
            case.refuse("shape_mismatch", [name, len(values)], *BATCH, **{name: indices(values)})
    yield case

    about = "A page table with too few or too many rows for a batch of 2: refused."
    case = small("refuse-rows-of-page-table", about, cache_mode=1)
    for table in ([[3]], [[3], [6], [0]]):
        case.refuse("shape_mismatch", ["cachestarts", len(table)], *PAGED, cachestarts=indices(table))
    yield case


def currents() -> Iterator[Case]:
    """current_value against current_key."""
    about = "current_value has other tokens, then other heads, then another head_dim than current_key: refused."
    case = small("refuse-shape-of-current-value", about)
    for got, shape in ((4, (4, 2, 8)), (3, (5, 3, 8)), (9, (5, 2, 9))):
        value = np.zeros(shape, np.float32)
        case.refuse("shape_mismatch", ["current_value", got], *BATCH, current_value=value)
    yield case


def wrong_axis(layout: int, axis: str, last: int, got: int) -> tuple[int, ...]:
    """The shape of a cache or scale whose `axis` is `got`."""
    shape = list(cache_shape(layout, MAX_T, NUM_LAYER, NUM_HEADS, last))
    shape[(*LAYOUTS[layout], "last").index(axis)] = got
    return tuple(shape)


def caches() -> Iterator[Case]:
    """Each axis of cache that another tensor or attribute decides, in two layouts each."""
    wrong = {"L": 4, "2": 1, "H": 5, "last": 7}
    for number, (axis, got) in enumerate(wrong.items()):
        for layout in (number, (number + 2) % 4):
            label = axis.replace("last", "head-dim").replace("2", "key-value").lower()
            about = f"cache in layout {layout} has {got} on the axis {label}: refused."
            name = f"refuse-cache-axis-{label}-layout{layout}"
            cache = np.zeros(wrong_axis(layout, axis, HEAD_DIM, got), np.float16)
            attributes = dict(num_layer=NUM_LAYER, cache_layout=layout)
            case = begin(name, about, "f16 f16", proves="inputs.shapes", cache=cache, **attributes)
            yield case.refuse("shape_mismatch", ["cache", got], *BATCH)

    about = "An int4 cache whose last axis counts bytes, not elements: refused."
    cache = np.zeros(cache_shape(0, MAX_T, 1, NUM_HEADS, HEAD_DIM // 2), np.int8)
    case = small("refuse-int4-cache-axis-in-bytes", about, "f16 int4 f16", quant_bit=4)
    state = dict(cache=cache, scale=case.scale)
    case = begin(case.name, about, "f16 int4 f16", proves="inputs.shapes", **state, quant_bit=4)
    yield case.refuse("shape_mismatch", ["cache", HEAD_DIM // 2], *BATCH)

    about = "num_layer {} where the cache has one layer: refused by the shape, without an overflow."
    for num_layer in (2**63 - 1, 2**32 + 1):
        name = f"refuse-num-layer-{'i64-max' if num_layer == 2**63 - 1 else '2p32-plus-1'}"
        case = small(name, about.format(num_layer), proves="inputs.shapes sizes.64-bit")
        case.attributes["num_layer"] = num_layer
        yield case.refuse("shape_mismatch", ["cache", num_layer], *BATCH)


def scales() -> Iterator[Case]:
    """Each axis of scale; layouts and widths by turns."""
    wrong = {"L": 4, "2": 1, "H": 5, "last": 3, "MaxT": 9}
    for number, (axis, got) in enumerate(wrong.items()):
        layout, bits = number % 4, (8, 4)[number % 2]
        label = axis.replace("last", "groups").replace("2", "key-value").replace("MaxT", "max-t").lower()
        about = f"scale in layout {layout} has {got} on the axis {label}: refused."
        name = f"refuse-scale-axis-{label}-layout{layout}-int{bits}"
        scale = np.zeros(wrong_axis(layout, axis, 1, got), np.float32)
        attributes = dict(num_layer=NUM_LAYER, cache_layout=layout, quant_bit=bits)
        case = small_with_scale(name, about, f"f16 int{bits} f32", scale, **attributes)
        yield case.refuse("shape_mismatch", ["scale", got], *BATCH)


def indivisible() -> Iterator[Case]:
    """head_dim that is no multiple of quant_group."""
    for bits, head_dim, quant_group in ((4, 12, 8), (8, 9, 2)):
        about = f"head_dim {head_dim} is no multiple of quant_group {quant_group}: refused."
        name = f"refuse-head-dim-{head_dim}-group{quant_group}-int{bits}"
        given = dict(head_dim=head_dim, max_t=MAX_T, quant_bit=bits, quant_group=quant_group)
        case = begin(name, about, f"f32 int{bits} f32", proves="attributes.group-divides", **given)
        yield case.refuse("head_dim_not_divisible", ["quant_group", head_dim, quant_group], *BATCH)

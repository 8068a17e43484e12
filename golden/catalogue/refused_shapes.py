"""Ranks and axes that do not agree with the others, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from oracle.layouts import LAYOUTS, cache_shape

from .bits import I64_MAX
from .case import Case, Sequence, begin, indices

BATCH = (Sequence(1, 2, 3), Sequence(0, 3, 6))
NUM_HEADS, HEAD_DIM, MAX_T, NUM_LAYER = 2, 8, 12, 3
# Names of axes as parts of names of cases.
LABELS = {"L": "l", "2": "key-value", "H": "h", "MaxT": "max-t", "MaxB": "maxb", "MaxS": "maxs"}
NOT_SCALAR = (lambda x: x.reshape(1, 1),)
RESHAPED = {
    "current_key": (lambda x: x.reshape(len(x), -1), lambda x: x[None]),
    "current_value": (lambda x: x.reshape(len(x), -1), lambda x: x[None]),
    "seqstarts": (lambda x: x[-1].reshape(()), lambda x: x[None]),
    "kvstarts": (lambda x: x[-1].reshape(()), lambda x: x[None]),
    "cachestarts": (lambda x: x[0].reshape(()), lambda x: x[:, None]),
    "start_pos": (lambda x: x[0].reshape(()), lambda x: x[None]),
    "max_seqlen": NOT_SCALAR,
    "max_kvlen": NOT_SCALAR,
}
ENTRIES = {
    "seqstarts": ([],),
    "kvstarts": ([0, 3], [0, 3, 6, 6], []),
    "cachestarts": ([3], [3, 6, 0], []),
    "start_pos": ([1], [1, 0, 0], []),
    "max_seqlen": ([3, 3], []),
    "max_kvlen": ([3, 3], []),
}
SHAPES_OF_VALUE = ((4, (4, 2, 8)), (3, (5, 3, 8)), (9, (5, 2, 9)))


def cases() -> Iterator[Case]:
    caches = ((MAX_T, 2, NUM_HEADS, HEAD_DIM), (1, 1, 2, NUM_HEADS, MAX_T, HEAD_DIM))
    yield from ranks(begin, BATCH, RESHAPED, caches, ((MAX_T, 1, 2, NUM_HEADS), (1, MAX_T, 1, 2, NUM_HEADS, 1)))
    yield from entries(begin, BATCH, ENTRIES, SHAPES_OF_VALUE)
    outer = (MAX_T, NUM_LAYER, NUM_HEADS)
    wrong = {"L": 4, "2": 1, "H": 5, "last": 7}
    of_cache = [(axis, got, layout) for i, (axis, got) in enumerate(wrong.items()) for layout in (i, (i + 2) % 4)]
    of_scale = [(axis, got, i % 4) for i, (axis, got) in enumerate((wrong | {"last": 3, "MaxT": 9}).items())]
    yield from axes(begin, BATCH, lambda layout, last: cache_shape(layout, *outer, last), LAYOUTS, of_cache, of_scale)

    about = "An int4 cache whose last axis counts bytes, not elements: refused."
    cache = np.zeros(cache_shape(0, MAX_T, 1, NUM_HEADS, HEAD_DIM // 2), np.int8)
    given = dict(cache=cache, scale=np.ones(cache_shape(0, MAX_T, 1, NUM_HEADS, 1), np.float16), quant_bit=4)
    case = begin("refuse-int4-cache-axis-in-bytes", about, "f16 int4 f16", proves="inputs.shapes", **given)
    yield case.refuse("shape_mismatch", ["cache", HEAD_DIM // 2], *BATCH)


def ranks(
    begin: Callable[..., Case],
    call: tuple[Any, ...],
    reshaped: dict[str, tuple[Callable[[np.ndarray], np.ndarray], ...]],
    caches: tuple[tuple[int, ...], ...],
    scales: tuple[tuple[int, ...], ...],
) -> Iterator[Case]:
    """Every tensor with one axis too many or too few."""
    about = "Each input in turn with an axis too few or one too many: refused."
    case = begin("refuse-rank-of-inputs", about, "f32 f32", proves="inputs.shapes")
    for name, reshape in ((name, reshape) for name, reshapes in reshaped.items() for reshape in reshapes):
        wrong = reshape(getattr(case.inputs(*call), name))
        case.refuse("rank_mismatch", [name, wrong.ndim], *call, **{name: wrong})
    yield case
    for cache in caches:
        name, about = f"refuse-rank-of-cache-{len(cache)}", f"A cache of rank {len(cache)}: refused."
        case = begin(name, about, "f32 f32", proves="inputs.shapes", cache=np.zeros(cache, np.float32))
        yield case.refuse("rank_mismatch", ["cache", len(cache)], *call)
    for quant_bit, scale in zip((8, 4), scales, strict=True):
        name, about = f"refuse-rank-of-scale-{len(scale)}", f"A scale of rank {len(scale)}: refused."
        given = dict(scale=np.zeros(scale, np.float16), quant_bit=quant_bit)
        case = begin(name, about, f"f16 int{quant_bit} f16", proves="inputs.shapes", **given)
        yield case.refuse("rank_mismatch", ["scale", len(scale)], *call)


def entries(
    begin: Callable[..., Case],
    call: tuple[Any, ...],
    wrong: dict[str, tuple[list[int], ...]],
    shapes_of_value: tuple[tuple[int, tuple[int, ...]], ...],
) -> Iterator[Case]:
    """Index inputs for another batch, max_seqlen and so on of more or fewer than one, another current_value."""
    about = "Each index input in turn with too few, too many or no entries: refused."
    case = begin("refuse-entries-of-indices", about, "f32 f32", proves="inputs.shapes")
    for name, values in ((name, values) for name, choices in wrong.items() for values in choices):
        case.refuse("shape_mismatch", [name, len(values)], *call, **{name: indices(values)})
    yield case
    about = "Each axis of current_value in turn is another than that of current_key: refused."
    case = begin("refuse-shape-of-current-value", about, "f32 f32", proves="inputs.shapes")
    for got, shape in shapes_of_value:
        case.refuse("shape_mismatch", ["current_value", got], *call, current_value=np.zeros(shape, np.float32))
    yield case


def tables() -> Iterator[Case]:
    about = "Paged mode with cachestarts of rank 3, then of rank 0: refused."
    case = begin("refuse-rank-of-cachestarts-paged", about, "f32 f32", proves="inputs.shapes", cache_mode=1)
    case.refuse("rank_mismatch", ["cachestarts"], *BATCH, cachestarts=indices([[[3], [6]]]))
    yield case.refuse("rank_mismatch", ["cachestarts"], *BATCH, cachestarts=indices(3))
    about = "Paged mode with the rank-1 cachestarts of exports before pages existed: refused with an error of its own."
    case = begin("refuse-legacy-page-table", about, "f32 f32", proves="legacy-exports", cache_mode=1)
    for values in ((3, 6), (3, 4, 5, 6, 7, 8)):
        case.refuse("legacy_page_table", ["cachestarts"], *BATCH, cachestarts=indices(values))
    yield case
    about = "A page table with too few or too many rows for a batch of 2: refused."
    case = begin("refuse-rows-of-page-table", about, "f32 f32", proves="inputs.shapes", cache_mode=1)
    for table in ([[3]], [[3], [6], [0]]):
        case.refuse("shape_mismatch", ["cachestarts", len(table)], *BATCH, cachestarts=indices(table))
    yield case


def axes(
    begin: Callable[..., Case],
    call: tuple[Any, ...],
    shape: Callable[[int, int], tuple[int, ...]],
    layouts: dict[int, tuple[str, ...]],
    of_cache: list[tuple[str, int, int]],
    of_scale: list[tuple[str, int, int]],
) -> Iterator[Case]:
    """Axes of cache and scale that another tensor or an attribute decides: which is how long in which layout. `shape`
    is the right one by layout and last axis, of NUM_LAYER layers."""
    for tensor, rows in (("cache", of_cache), ("scale", of_scale)):
        for number, (axis, got, layout) in enumerate(rows):
            label = LABELS.get(axis, "head-dim" if tensor == "cache" else "groups")
            about = f"{tensor} in layout {layout} has {got} on the axis {label}: refused."
            right = shape(layout, HEAD_DIM if tensor == "cache" else 1)
            wrong = tuple(got if name == axis else n for name, n in zip((*layouts[layout], "last"), right, strict=True))
            quant_bit = 0 if tensor == "cache" else (8, 4)[number % 2]
            types = "f16 f16" if quant_bit == 0 else f"f16 int{quant_bit} f32"
            given = {tensor: np.zeros(wrong, np.float16 if tensor == "cache" else np.float32)}
            given |= dict(num_layer=NUM_LAYER, cache_layout=layout, quant_bit=quant_bit)
            case = begin(f"refuse-{tensor}-axis-{label}-layout{layout}", about, types, proves="inputs.shapes", **given)
            yield case.refuse("shape_mismatch", [tensor, got], *call)
    for num_layer, label in ((I64_MAX, "i64-max"), (2**32 + 1, "2p32-plus-1")):
        about = f"num_layer {num_layer} where the cache has one layer: refused by the shape, without an overflow."
        case = begin(f"refuse-num-layer-{label}", about, "f32 f32", proves="inputs.shapes sizes.64-bit")
        yield case.refuse("shape_mismatch", ["cache", num_layer], *call, wrong=dict(num_layer=num_layer))
    for quant_bit, head_dim, quant_group in ((4, 12, 8), (8, 9, 2)):
        about = f"head_dim {head_dim} is no multiple of quant_group {quant_group}: refused."
        name = f"refuse-head-dim-{head_dim}-group{quant_group}-int{quant_bit}"
        given = dict(head_dim=head_dim, quant_bit=quant_bit, quant_group=quant_group)
        case = begin(name, about, f"f32 int{quant_bit} f32", proves="attributes.group-divides", **given)
        yield case.refuse("head_dim_not_divisible", ["quant_group", head_dim, quant_group], *call)

"""Ranks and axes that do not agree with the others, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from oracle.layouts import LAYOUTS, cache_shape

from .bits import I64_MAX
from .case import Case, Sequence, begin
from .table import Change, Row, of_shape, refusals

Shape = tuple[int, ...]
BATCH = (Sequence(1, 2, 3), Sequence(0, 3, 6))
NUM_HEADS, HEAD_DIM, MAX_T, NUM_LAYER = 2, 8, 12, 3
# Names of axes as parts of names of cases.
LABELS = {"L": "l", "2": "key-value", "H": "h", "MaxT": "max-t", "MaxB": "maxb", "MaxS": "maxs"}
# By the rank that an input gets: with an axis too few, and one too many.
NOT_SCALAR = {2: of_shape(1, 1)}
ROWS = {2: lambda x: x.reshape(len(x), -1), 4: lambda x: x[None]}
STARTS = {0: lambda x: x[-1].reshape(()), 2: lambda x: x[None]}
RESHAPED = {
    "current_key": ROWS,
    "current_value": ROWS,
    "seqstarts": STARTS,
    "kvstarts": STARTS,
    "cachestarts": {0: lambda x: x[0].reshape(()), 2: lambda x: x[:, None]},
    "start_pos": {0: lambda x: x[0].reshape(()), 2: lambda x: x[None]},
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
SHAPES_OF_VALUE = {4: (4, 2, 8), 3: (5, 3, 8), 9: (5, 2, 9)}


def cases() -> Iterator[Case]:
    caches = ((MAX_T, 2, NUM_HEADS, HEAD_DIM), (1, 1, 2, NUM_HEADS, MAX_T, HEAD_DIM))
    scales = ((MAX_T, 1, 2, NUM_HEADS), (1, MAX_T, 1, 2, NUM_HEADS, 1))
    outer = (MAX_T, NUM_LAYER, NUM_HEADS)
    wrong = {"L": 4, "2": 1, "H": 5, "last": 7}
    of_cache = [(axis, got, layout) for i, (axis, got) in enumerate(wrong.items()) for layout in (i, (i + 2) % 4)]
    of_scale = [(axis, got, i % 4) for i, (axis, got) in enumerate((wrong | {"last": 3, "MaxT": 9}).items())]
    of_state = axes(lambda layout, last: cache_shape(layout, *outer, last), LAYOUTS, of_cache, of_scale)
    yield from refusals(begin, BATCH, [*inputs(RESHAPED, ENTRIES, SHAPES_OF_VALUE), *ranks(caches, scales), *of_state])
    yield from refusals(begin, BATCH, _table())


def _table() -> Iterator[Row]:
    """Page tables, and a cache of packed int4."""
    # fmt: off
    yield from (
        ("rank-of-cachestarts-paged", "Paged mode with cachestarts of rank 3, then of rank 0: refused.",
         "inputs.shapes", dict(cache_mode=1),
         *(("rank_mismatch", "cachestarts", dict(cachestarts=x)) for x in ([[[3], [6]]], np.int64(3)))),
        ("legacy-page-table",
         "Paged mode with the rank-1 cachestarts of exports before pages existed: refused with an error of its own.",
         "legacy-exports", dict(cache_mode=1),
         *(("legacy_page_table", "cachestarts", dict(cachestarts=x)) for x in ([3, 6], [3, 4, 5, 6, 7, 8]))),
        ("rows-of-page-table", "A page table with too few or too many rows for a batch of 2: refused.", "inputs.shapes",
         dict(cache_mode=1),
         *(("shape_mismatch", f"cachestarts, {len(x)}", dict(cachestarts=x)) for x in ([[3]], [[3], [6], [0]]))),
        ("int4-cache-axis-in-bytes", "An int4 cache whose last axis counts bytes, not elements: refused.",
         "inputs.shapes",
         dict(types="f16 int4 f16", cache=np.zeros(cache_shape(0, MAX_T, 1, NUM_HEADS, HEAD_DIM // 2), np.int8),
              scale=np.ones(cache_shape(0, MAX_T, 1, NUM_HEADS, 1), np.float16)),
         ("shape_mismatch", f"cache, {HEAD_DIM // 2}", {})),
    )
    # fmt: on


def inputs(
    reshaped: Mapping[str, Mapping[int, Change]],
    entries: Mapping[str, Iterable[list[int]]],
    shapes_of_value: Mapping[int, Shape],
) -> Iterator[Row]:
    """Inputs with one axis too many or too few; index inputs for another batch, max_seqlen and so on of more or fewer
    than one; another current_value, by what is wrong with it."""
    about = "Each input in turn with an axis too few or one too many: refused."
    changes = [(name, rank, change) for name, changes in reshaped.items() for rank, change in changes.items()]
    calls = [("rank_mismatch", f"{name}, {rank}", {name: change}) for name, rank, change in changes]
    yield "rank-of-inputs", about, "inputs.shapes", {}, *calls
    about = "Each index input in turn with too few, too many or no entries: refused."
    given = [(name, values) for name, choices in entries.items() for values in choices]
    calls = [("shape_mismatch", f"{name}, {len(values)}", {name: values}) for name, values in given]
    yield "entries-of-indices", about, "inputs.shapes", {}, *calls
    about = "Each axis of current_value in turn is another than that of current_key: refused."
    values = {got: np.zeros(shape, np.float32) for got, shape in shapes_of_value.items()}
    calls = [("shape_mismatch", f"current_value, {got}", dict(current_value=x)) for got, x in values.items()]
    yield "shape-of-current-value", about, "inputs.shapes", {}, *calls


def ranks(caches: Iterable[Shape], scales: Iterable[Shape]) -> Iterator[Row]:
    """A cache and a scale with one axis too few, and with one too many."""
    for tensor, shapes in (("cache", caches), ("scale", scales)):
        for bits, shape in zip((0, 0) if tensor == "cache" else (8, 4), shapes):
            name, about = f"rank-of-{tensor}-{len(shape)}", f"A {tensor} of rank {len(shape)}: refused."
            given = {tensor: np.zeros(shape, np.float16 if bits else np.float32)}
            given |= dict(types=f"f16 int{bits} f16") if bits else {}
            yield name, about, "inputs.shapes", given, ("rank_mismatch", f"{tensor}, {len(shape)}", {})


def axes(
    shape: Callable[[int, int], Shape],
    layouts: Mapping[int, tuple[str, ...]],
    of_cache: Iterable[tuple[str, int, int]],
    of_scale: Iterable[tuple[str, int, int]],
) -> Iterator[Row]:
    """Axes of cache and scale that another tensor or an attribute decides: which is how long in which layout. `shape`
    is the right one by layout and last axis, of NUM_LAYER layers."""
    for tensor, rows in (("cache", of_cache), ("scale", of_scale)):
        for number, (axis, got, layout) in enumerate(rows):
            label = LABELS.get(axis, "head-dim" if tensor == "cache" else "groups")
            about = f"{tensor} in layout {layout} has {got} on the axis {label}: refused."
            right = shape(layout, HEAD_DIM if tensor == "cache" else 1)
            wrong = tuple(got if name == axis else n for name, n in zip((*layouts[layout], "last"), right, strict=True))
            quant_bit = 0 if tensor == "cache" else (8, 4)[number % 2]
            given = dict(types="f16 f16" if quant_bit == 0 else f"f16 int{quant_bit} f32")
            given |= {tensor: np.zeros(wrong, np.float16 if tensor == "cache" else np.float32)}
            given |= dict(num_layer=NUM_LAYER, cache_layout=layout, quant_bit=quant_bit)
            call = ("shape_mismatch", f"{tensor}, {got}", {})
            yield f"{tensor}-axis-{label}-layout{layout}", about, "inputs.shapes", given, call
    for num_layer, label in ((I64_MAX, "i64-max"), (2**32 + 1, "2p32-plus-1")):
        about = f"num_layer {num_layer} where the cache has one layer: refused by the shape, without an overflow."
        call = ("shape_mismatch", f"cache, {num_layer}", dict(num_layer=num_layer))
        yield f"num-layer-{label}", about, "inputs.shapes sizes.64-bit", {}, call
    for bits, head_dim, group in ((4, 12, 8), (8, 9, 2)):
        about = f"head_dim {head_dim} is no multiple of quant_group {group}: refused."
        given = dict(types=f"f32 int{bits} f32", head_dim=head_dim, quant_group=group)
        call = ("head_dim_not_divisible", f"quant_group, {head_dim}, {group}", {})
        yield f"head-dim-{head_dim}-group{group}-int{bits}", about, "attributes.group-divides", given, call

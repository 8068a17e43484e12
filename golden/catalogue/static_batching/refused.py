"""Calls that break one rule each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from oracle.static_batching import STATIC_LAYOUTS, static_cache_shape

from .. import refused_attributes, refused_shapes, refused_types
from ..bits import I64_MAX, I64_MIN
from ..case import Case, indices
from ..refused_attributes import BEYOND_32_BITS, WRONG
from ..refused_shapes import HEAD_DIM, NOT_SCALAR, NUM_HEADS, NUM_LAYER
from .case import begin

MAX_B, MAX_S = 3, 6
CALL = (2, 1, 3)
OTHER_RANKS = (lambda x: x.reshape(-1, NUM_HEADS, HEAD_DIM), lambda x: x[None])
SHAPES_OF_VALUE = ((1, (1, 3, 2, 8)), (4, (2, 4, 2, 8)), (3, (2, 3, 3, 8)), (9, (2, 3, 2, 9)))


def cases() -> Iterator[Case]:
    """Everything of this module: as in dynamic batching, and of its own."""
    layouts = dict(cache_layout=(-1, len(STATIC_LAYOUTS), 3, BEYOND_32_BITS, I64_MIN))
    yield from refused_attributes.ranges(begin, CALL, WRONG | layouts)
    yield from refused_types.types(begin, CALL, ("start_pos",))
    yield from refused_types.empty_scales(begin, CALL, {"axis4": (MAX_B, 1, 2, MAX_S, 0, 1)})
    reshaped = dict(current_key=OTHER_RANKS, current_value=OTHER_RANKS, start_pos=NOT_SCALAR)
    # Of one axis less, a cache of dynamic batching.
    caches = ((MAX_S, 1, 2, NUM_HEADS, HEAD_DIM), (1, MAX_B, 1, 2, MAX_S, NUM_HEADS, HEAD_DIM))
    scales = ((MAX_S, 1, 2, NUM_HEADS, 1), (1, MAX_B, 1, 2, MAX_S, NUM_HEADS, 1))
    yield from refused_shapes.ranks(begin, CALL, reshaped, caches, scales)
    yield from refused_shapes.entries(begin, CALL, dict(start_pos=([], [1, 1])), SHAPES_OF_VALUE)
    wrong = {"L": 4, "2": 1, "H": 5, "last": 7}
    of_cache = [(*axis, layout) for axis, layout in product(wrong.items(), STATIC_LAYOUTS)]
    wrong |= {"last": 3, "MaxB": 2, "MaxS": 5}
    of_scale = [(*axis, layout) for layout, axis in product(STATIC_LAYOUTS, wrong.items())]
    outer = (MAX_B, MAX_S, NUM_LAYER, NUM_HEADS)
    shapes = (lambda layout, last: static_cache_shape(layout, *outer, last)), STATIC_LAYOUTS
    yield from refused_shapes.axes(begin, CALL, *shapes, of_cache, of_scale)


def static_scales() -> Case:
    """An extension that this operator does not have."""
    about = "Static batching has no static scales."
    case = begin("refuse-static-scales", about, "f16 fp8 f16", proves="attributes.ranges", quant_bit=8)
    return case.refuse("attribute_out_of_range", ["quant_type", 2], *CALL, wrong=dict(quant_type=2))


def batches() -> Iterator[Case]:
    """More sequences than the cache has."""
    for layout in STATIC_LAYOUTS:
        about = "One sequence more than MaxB, with tokens and without, and then far more."
        name = f"refuse-batch-too-large-layout{layout}"
        case = begin(name, about, "f16 f16", proves="bounds.batch", max_b=MAX_B, cache_layout=layout)
        case.refuse("batch_too_large", [MAX_B + 1, MAX_B], MAX_B + 1, 0, 1)
        case.refuse("batch_too_large", [MAX_B + 1, MAX_B], MAX_B + 1, 0, 0)
        yield case.refuse("batch_too_large", [100, MAX_B], 100, 0, 1)


def positions() -> Iterator[Case]:
    """0 <= start_pos and start_pos + S <= MaxS; no sum may wrap."""
    for layout, (quant_bit, names) in zip(STATIC_LAYOUTS, ((0, "f32 f32"), (8, "f16 int8 f16")), strict=True):
        attributes = dict(quant_bit=quant_bit, cache_layout=layout)
        about = "start_pos below 0."
        case = begin(f"refuse-start-pos-negative-layout{layout}", about, names, proves="bounds.positions", **attributes)
        for start_pos in (-1, -3, I64_MIN):
            case.refuse("start_pos_negative", ["start_pos", start_pos], 2, 0, 3, start_pos=indices(start_pos))
        yield case

        about = "The last token behind MaxS: by one, with a past alone, for no sequence, and far beyond."
        name = f"refuse-position-range-layout{layout}"
        case = begin(name, about, names, proves="bounds.positions sizes.64-bit", max_s=MAX_S, **attributes)
        case.refuse("position_range", ["start_pos", 4, 3, MAX_S], 2, 4, 3)
        case.refuse("position_range", ["start_pos", 0, 7, MAX_S], 2, 0, 7)
        case.refuse("position_range", ["start_pos", 7, MAX_S], 2, 7, 0)
        case.refuse("position_range", ["start_pos", 7, MAX_S], 0, 7, 0)
        for start_pos in (I64_MAX, I64_MAX - 2, 2**32 + 1):
            case.refuse("position_range", ["start_pos", start_pos], 2, 0, 3, start_pos=indices([start_pos]))
        yield case


def sizes() -> Iterator[Case]:
    """Outputs whose size does not fit in 64 bits."""
    for num_repeat, label in ((2**61, "2p61"), (I64_MAX, "i64-max")):
        about = f"num_repeat {num_repeat}: the heads of key do not fit in 64 bits."
        name = f"refuse-num-repeat-{label}"
        case = begin(name, about, "f16 f16", proves="sizes.64-bit", num_heads=4, num_repeat=num_repeat)
        yield case.refuse("size_overflow", ["64"], 2, 0, 1)


def state_untouched() -> Iterator[Case]:
    """A refused call between two that succeed changes nothing of what the second finds."""
    for layout, (quant_bit, types) in zip(STATIC_LAYOUTS, ((0, "f16 f32"), (4, "f32 int4 f16")), strict=True):
        about = "A prompt, three refused calls, then the decode step that finds the cache as the prompt left it."
        name = f"refuse-between-steps-layout{layout}"
        attributes = dict(quant_bit=quant_bit, cache_layout=layout)
        case = begin(name, about, types, proves="refusal-leaves-memory", max_b=MAX_B, max_s=MAX_S, **attributes)
        case.call(2, 0, 3)
        case.refuse("batch_too_large", [MAX_B + 1, MAX_B], MAX_B + 1, 3, 1)
        case.refuse("start_pos_negative", ["start_pos", -1], 2, 0, 1, start_pos=indices(-1))
        case.refuse("position_range", ["start_pos", 5, MAX_S], 2, 5, 2)
        yield case.call(2, 3, 1)

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
from ..table import Row, refusals
from .case import begin

MAX_B, MAX_S = 3, 6
CALL = (2, 1, 3)
OTHER_RANKS = {3: lambda x: x.reshape(-1, NUM_HEADS, HEAD_DIM), 5: lambda x: x[None]}
RESHAPED = dict(current_key=OTHER_RANKS, current_value=OTHER_RANKS, start_pos=NOT_SCALAR)
SHAPES_OF_VALUE = {1: (1, 3, 2, 8), 4: (2, 4, 2, 8), 3: (2, 3, 3, 8), 9: (2, 3, 2, 9)}
STATES = ((0, "f32 f32"), (8, "f16 int8 f16"))


def cases() -> Iterator[Case]:
    yield from refusals(begin, CALL, [*_as_in_dynamic_batching(), *_own()])


def _as_in_dynamic_batching() -> Iterator[Row]:
    layouts = dict(cache_layout=(-1, len(STATIC_LAYOUTS), 3, BEYOND_32_BITS, I64_MIN))
    yield from refused_attributes.ranges(WRONG | layouts)
    yield from refused_types.types((MAX_B, 1, 2, MAX_S, NUM_HEADS, 1), ("start_pos",))
    yield from refused_types.empty_scales({"axis4": (MAX_B, 1, 2, MAX_S, 0, 1)})
    yield from refused_shapes.inputs(RESHAPED, dict(start_pos=([], [1, 1])), SHAPES_OF_VALUE)
    # Of one axis less, a cache of dynamic batching.
    outer = ((MAX_S, 1, 2, NUM_HEADS), (1, MAX_B, 1, 2, MAX_S, NUM_HEADS))
    yield from refused_shapes.ranks([(*shape, HEAD_DIM) for shape in outer], [(*shape, 1) for shape in outer])
    wrong = {"L": 4, "2": 1, "H": 5, "last": 7}
    of_cache = [(*axis, layout) for axis, layout in product(wrong.items(), STATIC_LAYOUTS)]
    wrong |= {"last": 3, "MaxB": 2, "MaxS": 5}
    of_scale = [(*axis, layout) for layout, axis in product(STATIC_LAYOUTS, wrong.items())]
    lengths = (MAX_B, MAX_S, NUM_LAYER, NUM_HEADS)
    shapes = (lambda layout, last: static_cache_shape(layout, *lengths, last)), STATIC_LAYOUTS
    yield from refused_shapes.axes(*shapes, of_cache, of_scale)


def _own() -> Iterator[Row]:
    """An extension that this operator does not have; more sequences than the cache has; 0 <= start_pos and start_pos +
    S <= MaxS, where no sum may wrap; and outputs whose size does not fit in 64 bits."""
    given = dict(types="f16 fp8 f16", quant_bit=8)
    yield refused_attributes.wrong("quant_type", 2, "static-scales", "Static batching has no static scales.", **given)
    for layout, (quant_bit, types) in zip(STATIC_LAYOUTS, STATES, strict=True):
        about = "One sequence more than MaxB, with tokens and without, and then far more."
        given = dict(types="f16 f16", max_b=MAX_B, cache_layout=layout)
        batches = ((MAX_B + 1, 0, 1), (MAX_B + 1, 0, 0), (100, 0, 1))
        calls = [("batch_too_large", f"{call[0]}, {MAX_B}", dict(batch=call)) for call in batches]
        yield f"batch-too-large-layout{layout}", about, "bounds.batch", given, *calls
        given = dict(types=types, quant_bit=quant_bit, cache_layout=layout)
        starts = [(f"start_pos, {x}", dict(batch=(2, 0, 3), start_pos=indices(x))) for x in (-1, -3, I64_MIN)]
        calls = [("start_pos_negative", *start) for start in starts]
        yield f"start-pos-negative-layout{layout}", "start_pos below 0.", "bounds.positions", given, *calls
        about = "The last token behind MaxS: by one, with a past alone, for no sequence, and far beyond."
        ends = [(f"4, 3, {MAX_S}", (2, 4, 3)), (f"0, 7, {MAX_S}", (2, 0, 7))]
        ends += [(f"7, {MAX_S}", (batch, 7, 0)) for batch in (2, 0)]
        calls = [("position_range", f"start_pos, {numbers}", dict(batch=call)) for numbers, call in ends]
        for start_pos in (I64_MAX, I64_MAX - 2, 2**32 + 1):
            changes = dict(batch=(2, 0, 3), start_pos=[start_pos])
            calls.append(("position_range", f"start_pos, {start_pos}", changes))
        rules = "bounds.positions sizes.64-bit"
        yield f"position-range-layout{layout}", about, rules, dict(max_s=MAX_S, **given), *calls
    for num_repeat, label in ((2**61, "2p61"), (I64_MAX, "i64-max")):
        about = f"num_repeat {num_repeat}: the heads of key do not fit in 64 bits."
        given = dict(types="f16 f16", num_heads=4, num_repeat=num_repeat)
        yield f"num-repeat-{label}", about, "sizes.64-bit", given, ("size_overflow", "64", dict(batch=(2, 0, 1)))


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

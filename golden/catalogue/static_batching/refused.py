"""Calls that break one rule each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from oracle.call import NUMPY_TYPES
from oracle.static_batching import STATIC_LAYOUTS, static_cache_shape

from ..bits import I64_MAX, I64_MIN
from ..case import LONG_NAMES, indices
from ..refused_attributes import BEYOND_32_BITS, spelled
from ..refused_types import ILLEGAL
from .case import StaticCase, begin

NUM_HEADS, HEAD_DIM, MAX_B, MAX_S, NUM_LAYER = 2, 8, 3, 6, 4
CALL = (2, 1, 3)

ATTRIBUTES = {
    "num_layer": (0, I64_MIN),
    "layer_idx": (-1, 2, BEYOND_32_BITS + 1),
    "quant_bit": (-8, 1, 7, 16, BEYOND_32_BITS),
    "quant_group": (0, -8),
    "num_repeat": (0, -1),
    "cache_layout": (-1, len(STATIC_LAYOUTS), 3, BEYOND_32_BITS, I64_MIN),
}


def cases() -> Iterator[StaticCase]:
    """Everything of this module."""
    yield from attributes()
    yield from types()
    yield from ranks()
    yield from shapes()
    yield from batches()
    yield from positions()
    yield from sizes()
    yield from state_untouched()


def attributes() -> Iterator[StaticCase]:
    """Attributes outside their range, one at a time; no value is truncated, or accepted because it has no effect."""
    for attribute, values in ATTRIBUTES.items():
        for value in values:
            about = f"{attribute} {value} is outside its range: refused."
            name = f"refuse-{attribute}-{spelled(value)}".replace("_", "-")
            num_layer = 2 if attribute == "layer_idx" else 1
            case = begin(name, about, "f32 f32", proves="attributes.ranges", num_layer=num_layer)
            yield refused(case, attribute, value)
    for quant_group in (1, 9):
        about = f"Four bits need an even quant_group; {quant_group} divides head_dim 18 and is refused all the same."
        name = f"refuse-odd-quant-group-{quant_group}-int4"
        attributes = dict(quant_bit=4, quant_group=quant_group)
        case = begin(name, about, "f32 int4 f32", proves="attributes.ranges", head_dim=18, **attributes)
        yield refused(case, "quant_group", quant_group)


def refused(case: StaticCase, attribute: str, value: int) -> StaticCase:
    """The case with one attribute made wrong after cache and scale were shaped by the right ones."""
    return case.refuse("attribute_out_of_range", [attribute, value], *CALL, wrong={attribute: value})


def types() -> Iterator[StaticCase]:
    """Types that the table does not have, and tensors of another type than theirs."""
    for quant_bit, combinations in ILLEGAL.items():
        for names in combinations:
            about = f"{names.replace(' ', '/')} is no legal combination with quant_bit {quant_bit}: refused by name."
            name = f"refuse-types-{names.replace(' ', '-')}-quant-bit-{quant_bit}"
            mentions = [*(LONG_NAMES[short] for short in names.split()[:2]), "quant_bit", quant_bit]
            case = begin(name, about, names, proves="types.illegal", quant_bit=quant_bit)
            yield case.refuse("illegal_types", mentions, *CALL)

    for quant_bit, T1 in ((8, "f32"), (4, "f16")):
        about = f"quant_bit {quant_bit} needs a scale and none is given."
        name = f"refuse-scale-missing-{T1}-int{quant_bit}"
        case = begin(name, about, f"{T1} int{quant_bit}", proves="scale.required", quant_bit=quant_bit)
        yield case.refuse("scale_missing", ["scale"], *CALL)
        about = f"quant_bit {quant_bit} needs a scale, and the given one is what exports without one give: shape [0]."
        scale = np.zeros(0, np.float16)
        name = f"refuse-scale-empty-{T1}-int{quant_bit}"
        types = f"{T1} int{quant_bit} f16"
        case = begin(name, about, types, proves="scale.required", scale=scale, quant_bit=quant_bit)
        yield case.refuse("scale_missing", ["scale"], *CALL)
    about = "A scale without elements, in a shape of the right rank: for a cache that has some it is none."
    scale = np.zeros((1, MAX_B, 2, NUM_HEADS, 0, 1), np.float32)
    attributes = dict(quant_bit=8, cache_layout=1)
    case = begin(
        "refuse-scale-empty-of-rank-6", about, "f32 int8 f32", proves="scale.required", scale=scale, **attributes
    )
    yield case.refuse("scale_missing", ["scale"], *CALL)

    about = "current_value is float32, then int8, and current_key is float16."
    case = begin("refuse-type-of-current-value", about, "f16 f16", proves="inputs.types")
    for other in ("float32", "int8"):
        value = np.zeros((2, 3, 2, 8), NUMPY_TYPES[other])
        case.refuse("type_mismatch", ["current_value", other], *CALL, current_value=value)
    yield case

    about = "start_pos is int8, not int64: refused, its bytes not read."
    case = begin("refuse-type-of-start-pos", about, "f32 f32", proves="inputs.types")
    yield case.refuse("type_mismatch", ["start_pos", "int8"], *CALL, start_pos=np.ones(1, np.int8))


def ranks() -> Iterator[StaticCase]:
    """Every tensor with one axis too many or too few."""
    about = "Each input in turn with an axis too few or too many: refused."
    case = begin("refuse-rank-of-inputs", about, "f32 f32", proves="inputs.shapes")
    for name in ("current_key", "current_value"):
        packed = getattr(case.inputs(*CALL), name)
        for wrong in (packed.reshape(6, NUM_HEADS, HEAD_DIM), packed[None]):
            case.refuse("rank_mismatch", [name, wrong.ndim, 4], *CALL, **{name: wrong})
    yield case.refuse("rank_mismatch", ["start_pos", 2], *CALL, start_pos=indices([[1]]))

    for shape in ((MAX_S, 1, 2, NUM_HEADS, HEAD_DIM), (1, MAX_B, 1, 2, MAX_S, NUM_HEADS, HEAD_DIM)):
        about = f"A cache of rank {len(shape)}, of which the first is that of dynamic batching: refused."
        name, cache = f"refuse-rank-of-cache-{len(shape)}", np.zeros(shape, np.float32)
        case = begin(name, about, "f32 f32", proves="inputs.shapes", cache=cache)
        yield case.refuse("rank_mismatch", ["cache", len(shape), 6], *CALL)
    for quant_bit, shape in ((8, (MAX_S, 1, 2, NUM_HEADS, 1)), (4, (1, MAX_B, 1, 2, MAX_S, NUM_HEADS, 1))):
        about = f"A scale of rank {len(shape)}: refused."
        scale = np.zeros(shape, np.float16)
        name = f"refuse-rank-of-scale-{len(shape)}"
        types = f"f16 int{quant_bit} f16"
        case = begin(name, about, types, proves="inputs.shapes", scale=scale, quant_bit=quant_bit)
        yield case.refuse("rank_mismatch", ["scale", len(shape), 6], *CALL)


def wrong_axis(layout: int, axis: str, last: int, got: int) -> tuple[int, ...]:
    """The shape of a cache or scale whose `axis` is `got`."""
    shape = list(static_cache_shape(layout, MAX_B, MAX_S, NUM_LAYER, NUM_HEADS, last))
    shape[(*STATIC_LAYOUTS[layout], "last").index(axis)] = got
    return tuple(shape)


def shapes() -> Iterator[StaticCase]:
    """Axes that do not agree with those of another tensor or with an attribute."""
    about = "current_value has other sequences, tokens, heads and another head_dim than current_key: refused."
    case = begin("refuse-shape-of-current-value", about, "f32 f32", proves="inputs.shapes")
    for got, shape in ((1, (1, 3, 2, 8)), (4, (2, 4, 2, 8)), (3, (2, 3, 3, 8)), (9, (2, 3, 2, 9))):
        case.refuse("shape_mismatch", ["current_value", got], *CALL, current_value=np.zeros(shape, np.float32))
    yield case

    about = "start_pos with no number, then with one for each sequence, as in dynamic batching: refused."
    case = begin("refuse-entries-of-start-pos", about, "f32 f32", proves="inputs.shapes")
    for values in ([], [1, 1]):
        case.refuse("shape_mismatch", ["start_pos", len(values), 1], *CALL, start_pos=indices(values))
    yield case

    for layout in STATIC_LAYOUTS:
        for axis, got in {"L": 5, "2": 1, "H": 5, "last": 7}.items():
            label = axis.replace("last", "head-dim").replace("2", "key-value").lower()
            about = f"cache in layout {layout} has {got} on the axis {label}: refused."
            cache = np.zeros(wrong_axis(layout, axis, HEAD_DIM, got), np.float16)
            name = f"refuse-cache-axis-{label}-layout{layout}"
            attributes = dict(num_layer=NUM_LAYER, cache_layout=layout)
            case = begin(name, about, "f16 f16", proves="inputs.shapes", cache=cache, **attributes)
            yield case.refuse("shape_mismatch", ["cache", got], *CALL)
        for axis, got in {"MaxB": 2, "L": 5, "2": 1, "MaxS": 5, "H": 5, "last": 3}.items():
            label = axis.replace("last", "groups").replace("2", "key-value").lower()
            quant_bit = (8, 4)[layout]
            about = f"scale in layout {layout} has {got} on the axis {label}: refused."
            scale = np.zeros(wrong_axis(layout, axis, 1, got), np.float32)
            attributes = dict(num_layer=NUM_LAYER, cache_layout=layout, quant_bit=quant_bit)
            name = f"refuse-scale-axis-{label}-layout{layout}"
            types = f"f16 int{quant_bit} f32"
            case = begin(name, about, types, proves="inputs.shapes", scale=scale, **attributes)
            yield case.refuse("shape_mismatch", ["scale", got], *CALL)

    about = "num_layer 2^63-1 where the cache has one layer: refused by the shape, without an overflow."
    case = begin("refuse-num-layer-i64-max", about, "f32 f32", proves="inputs.shapes sizes.64-bit")
    case.attributes["num_layer"] = I64_MAX
    yield case.refuse("shape_mismatch", ["cache", I64_MAX], *CALL)

    for quant_bit, head_dim, quant_group in ((4, 12, 8), (8, 9, 2)):
        about = f"head_dim {head_dim} is no multiple of quant_group {quant_group}: refused."
        name = f"refuse-head-dim-{head_dim}-group{quant_group}-int{quant_bit}"
        attributes = dict(quant_bit=quant_bit, quant_group=quant_group)
        types = f"f32 int{quant_bit} f32"
        case = begin(name, about, types, proves="attributes.group-divides", head_dim=head_dim, **attributes)
        yield case.refuse("head_dim_not_divisible", ["quant_group", head_dim, quant_group], *CALL)


def batches() -> Iterator[StaticCase]:
    """More sequences than the cache has."""
    for layout in STATIC_LAYOUTS:
        about = "One sequence more than MaxB, with tokens and without, and then far more."
        name = f"refuse-batch-too-large-layout{layout}"
        case = begin(name, about, "f16 f16", proves="bounds.batch", max_b=MAX_B, cache_layout=layout)
        case.refuse("batch_too_large", [MAX_B + 1, MAX_B], MAX_B + 1, 0, 1)
        case.refuse("batch_too_large", [MAX_B + 1, MAX_B], MAX_B + 1, 0, 0)
        yield case.refuse("batch_too_large", [100, MAX_B], 100, 0, 1)


def positions() -> Iterator[StaticCase]:
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


def sizes() -> Iterator[StaticCase]:
    """Outputs whose size does not fit in 64 bits."""
    for num_repeat, label in ((2**61, "2p61"), (I64_MAX, "i64-max")):
        about = f"num_repeat {num_repeat}: the heads of key do not fit in 64 bits."
        name = f"refuse-num-repeat-{label}"
        case = begin(name, about, "f16 f16", proves="sizes.64-bit", num_heads=4, num_repeat=num_repeat)
        yield case.refuse("size_overflow", ["64"], 2, 0, 1)


def state_untouched() -> Iterator[StaticCase]:
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

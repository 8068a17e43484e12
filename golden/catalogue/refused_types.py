"""Types that the table does not have, and tensors of another type than theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from oracle.call import INPUTS

from .case import LONG_NAMES, Case, Sequence, begin

ILLEGAL = {
    0: ("f32 int8", "f16 int8 f16", "f32 int4 f32", "f16 int4", "int8 f32", "int8 f16", "int8 int4"),
    8: ("f32 f32 f32", "f32 f16 f16", "f16 int4 f16", "int8 int8 f32"),
    4: ("f16 f16 f16", "f32 int8 f32", "int8 int4 f32"),
}
BATCH = (Sequence(0, 2, 3), Sequence(1, 1, 0))
# Without elements: in place of the legal (12, 1, 2, 2, 1), and of the scales of a cache without slots.
EMPTY = {"axis4": (12, 1, 2, 2, 0), "axis2": (12, 1, 0, 2, 1), "axis0": (0, 1, 2, 2, 1)}
OF_EMPTY_CACHE = {"rank_mismatch": (0,), "shape_mismatch": (0, 1, 2, 2, 3)}


def cases() -> Iterator[Case]:
    yield from types(begin, BATCH, INPUTS[2:])
    yield from empty_scales(begin, BATCH, EMPTY)
    about = "A cache without elements has a scale without elements: one of another shape is refused by its shape."
    for error, shape in OF_EMPTY_CACHE.items():
        name, scale = f"refuse-scale-of-empty-cache-{error.split('_')[0]}", np.zeros(shape, np.float32)
        given = dict(max_t=0, scale=scale, quant_bit=8)
        case = begin(name, about, "f32 int8 f32", proves="scale.required inputs.shapes", **given)
        yield case.refuse(error, ["scale"])


def types(begin: Callable[..., Case], call: tuple[Any, ...], index_inputs: tuple[str, ...]) -> Iterator[Case]:
    """What an operator refuses by the types of its tensors."""
    for quant_bit, names in (
        (quant_bit, names) for quant_bit, combinations in ILLEGAL.items() for names in combinations
    ):
        about = f"{names.replace(' ', '/')} is no legal combination with quant_bit {quant_bit}: refused by name."
        name = f"refuse-types-{names.replace(' ', '-')}-quant-bit-{quant_bit}"
        mentions = [*(LONG_NAMES[short] for short in names.split()[:2]), "quant_bit", quant_bit]
        case = begin(name, about, names, proves="types.illegal", quant_bit=quant_bit)
        yield case.refuse("illegal_types", mentions, *call)
    about = "A scale is float32 or float16, never int8."
    for quant_bit, names in ((8, "f32 int8 int8"), (4, "f16 int4 int8")):
        name = f"refuse-types-{names.replace(' ', '-')}-quant-bit-{quant_bit}"
        scale = begin(
            name, about, names.removesuffix("int8") + "f32", proves="types.illegal", quant_bit=quant_bit
        ).scale
        given = dict(scale=np.ones_like(scale, np.int8), quant_bit=quant_bit)
        yield begin(name, about, names, proves="types.illegal", **given).refuse("illegal_types", ["int8"], *call)
    for quant_bit, T1 in ((8, "f32"), (4, "f16")):
        about = f"quant_bit {quant_bit} needs a scale and none is given."
        name = f"refuse-scale-missing-{T1}-int{quant_bit}"
        case = begin(name, about, f"{T1} int{quant_bit}", proves="scale.required", quant_bit=quant_bit)
        yield case.refuse("scale_missing", ["scale"], *call)
        about = f"quant_bit {quant_bit} needs a scale, and the given one is what exports without one give: shape [0]."
        name, given = f"refuse-scale-empty-{T1}-int{quant_bit}", dict(scale=np.zeros(0, np.float16))
        case = begin(name, about, f"{T1} int{quant_bit} f16", proves="scale.required", quant_bit=quant_bit, **given)
        yield case.refuse("scale_missing", ["scale", "quant_bit", quant_bit], *call)
    about = "current_value is float32, then int8, and current_key is float16."
    case = begin("refuse-type-of-current-value", about, "f16 f16", proves="inputs.types")
    for other in ("float32", "int8"):
        value = np.zeros_like(case.inputs(*call).current_value, other)
        case.refuse("type_mismatch", ["current_value", other], *call, current_value=value)
    yield case
    about = "Each index input in turn is int8, not int64: refused, its bytes not read."
    case = begin("refuse-type-of-indices", about, "f32 f32", proves="inputs.types")
    for index in index_inputs:
        narrow = getattr(case.inputs(*call), index).astype(np.int8)
        case.refuse("type_mismatch", [index, "int8"], *call, **{index: narrow})
    yield case


def empty_scales(
    begin: Callable[..., Case], call: tuple[Any, ...], shapes: dict[str, tuple[int, ...]]
) -> Iterator[Case]:
    """Scales that have the right rank and no elements."""
    about = "A scale without elements, in a shape of the right rank: for a cache that has some it is none."
    for label, shape in shapes.items():
        given = dict(scale=np.zeros(shape, np.float32), quant_bit=8)
        case = begin(f"refuse-scale-empty-{label}", about, "f32 int8 f32", proves="scale.required", **given)
        yield case.refuse("scale_missing", ["scale", "quant_bit"], *call)

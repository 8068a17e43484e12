"""Types that the table does not have, and tensors of another type than theirs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from oracle.call import NUMPY_TYPES
from oracle.rules import INDEX_INPUTS

from .case import LONG_NAMES, Case, Sequence, begin

ILLEGAL = {
    0: ("f32 int8", "f16 int8 f16", "f32 int4 f32", "f16 int4", "int8 f32", "int8 f16", "int8 int4"),
    8: ("f32 f32 f32", "f32 f16 f16", "f16 int4 f16", "int8 int8 f32"),
    4: ("f16 f16 f16", "f32 int8 f32", "int8 int4 f32"),
}


def cases() -> Iterator[Case]:
    """Everything of this module."""
    batch = (Sequence(0, 2, 3), Sequence(1, 1, 0))
    for quant_bit, combinations in ILLEGAL.items():
        for types in combinations:
            about = f"{types.replace(' ', '/')} is no legal combination with quant_bit {quant_bit}: refused by name."
            name = f"refuse-types-{types.replace(' ', '-')}-quant-bit-{quant_bit}"
            mentions = [*(LONG_NAMES[short] for short in types.split()[:2]), "quant_bit", quant_bit]
            case = begin(name, about, types, proves="types.illegal", max_t=6, quant_bit=quant_bit)
            yield case.refuse("illegal_types", mentions, *batch)

    for quant_bit, types in ((8, "f32 int8 int8"), (4, "f16 int4 int8")):
        about = "A scale is float32 or float16, never int8."
        name = f"refuse-types-{types.replace(' ', '-')}-quant-bit-{quant_bit}"
        scale = np.ones((6, 1, 2, 2, 1), np.int8)
        case = begin(name, about, types, proves="types.illegal", max_t=6, scale=scale, quant_bit=quant_bit)
        yield case.refuse("illegal_types", ["int8"], *batch)

    for quant_bit, T1 in ((8, "f32"), (4, "f16")):
        about = f"quant_bit {quant_bit} needs a scale and none is given."
        name = f"refuse-scale-missing-{T1}-int{quant_bit}"
        case = begin(name, about, f"{T1} int{quant_bit}", proves="scale.required", max_t=6, quant_bit=quant_bit)
        yield case.refuse("scale_missing", ["scale"], *batch)

    for quant_bit, T1 in ((8, "f16"), (4, "f32")):
        about = f"quant_bit {quant_bit} needs a scale, and the given one is what exports without one give: shape [0]."
        name = f"refuse-scale-empty-{T1}-int{quant_bit}"
        scale = np.zeros(0, np.float16)
        types = f"{T1} int{quant_bit} f16"
        case = begin(name, about, types, proves="scale.required", max_t=6, scale=scale, quant_bit=quant_bit)
        yield case.refuse("scale_missing", ["scale", "quant_bit", quant_bit], *batch)
    about = "A scale without elements, in a shape of the right rank: for a cache that has some it is none."
    for axis, shape in enumerate(((6, 1, 2, 2, 0), (6, 0, 2, 2, 1), (0, 1, 2, 2, 1))):
        name, scale = f"refuse-scale-empty-of-rank-5-axis{4 - 2 * axis}", np.zeros(shape, np.float32)
        case = begin(name, about, "f32 int8 f32", proves="scale.required", max_t=6, scale=scale, quant_bit=8)
        yield case.refuse("scale_missing", ["scale", "quant_bit"], *batch)
    about = "A cache without elements has a scale without elements: one of another shape is refused by its shape."
    for error, shape in (("rank_mismatch", (0,)), ("shape_mismatch", (0, 1, 2, 2, 3))):
        name, scale = f"refuse-scale-of-empty-cache-{error.split('_')[0]}", np.zeros(shape, np.float32)
        proves = "scale.required inputs.shapes"
        case = begin(name, about, "f32 int8 f32", proves=proves, max_t=0, scale=scale, quant_bit=8)
        yield case.refuse(error, ["scale"])

    about = "current_value is float32, then int8, and current_key is float16."
    case = begin("refuse-type-of-current-value", about, "f16 f16", proves="inputs.types", max_t=6)
    for other in ("float32", "int8"):
        value = np.zeros((3, 2, 8), NUMPY_TYPES[other])
        case.refuse("type_mismatch", ["current_value", other], *batch, current_value=value)
    yield case

    about = "Each index input in turn is int8, not int64: refused, its bytes not read."
    case = begin("refuse-type-of-indices", about, "f32 f32", proves="inputs.types", max_t=6)
    for index in INDEX_INPUTS:
        narrow = getattr(case.inputs(*batch), index).astype(np.int8)
        case.refuse("type_mismatch", [index, "int8"], *batch, **{index: narrow})
    yield case

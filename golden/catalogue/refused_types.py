"""Types that the table does not have, and tensors of another type than theirs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from oracle.call import INPUTS

from .case import LONG_NAMES, Case, Sequence, begin
from .table import Row, of_type, refusals

ILLEGAL = {
    0: ("f32 int8", "f16 int8 f16", "f32 int4 f32", "f16 int4", "int8 f32", "int8 f16", "int8 int4"),
    8: ("f32 f32 f32", "f32 f16 f16", "f16 int4 f16", "int8 int8 f32"),
    4: ("f16 f16 f16", "f32 int8 f32", "int8 int4 f32"),
}
BATCH = (Sequence(0, 2, 3), Sequence(1, 1, 0))
NO_COMBINATION = "{types} is no legal combination with quant_bit {quant_bit}: refused by name."


def cases() -> Iterator[Case]:
    # Without elements: in place of the legal (12, 1, 2, 2, 1), and of the scales of a cache without slots.
    empty = {"axis4": (12, 1, 2, 2, 0), "axis2": (12, 1, 0, 2, 1), "axis0": (0, 1, 2, 2, 1)}
    yield from refusals(begin, BATCH, [*types((12, 1, 2, 2, 1), INPUTS[2:]), *empty_scales(empty)])
    about = "A cache without elements has a scale without elements: one of another shape is refused by its shape."
    for error, shape in (("rank_mismatch", (0,)), ("shape_mismatch", (0, 1, 2, 2, 3))):
        given = dict(types="f32 int8 f32", max_t=0, scale=np.zeros(shape, np.float32))
        name = f"scale-of-empty-cache-{error.split('_')[0]}"
        row = (name, about, "scale.required inputs.shapes", given, (error, "scale", {}))
        yield from refusals(begin, (), [row])


def illegal(
    names: str, about: str = NO_COMBINATION, mentions: str = "", *, state: Any = None, **attributes: int
) -> Row:
    """A row of types that do not go together with these attributes, the last of which is mentioned."""
    *_, last = attributes
    mentions = mentions or ", ".join(
        [*(LONG_NAMES[short] for short in names.split()[:2]), f"{last}, {attributes[last]}"]
    )
    label = "".join(f"-{name}-{value}" for name, value in attributes.items())
    given = dict(types=names) | (state or {}) | attributes
    about = about.format(types=names.replace(" ", "/"), **attributes)
    return f"types-{names.replace(' ', '-')}{label}", about, "types.illegal", given, ("illegal_types", mentions, {})


def types(shape_of_scale: tuple[int, ...], index_inputs: tuple[str, ...]) -> Iterator[Row]:
    """What an operator refuses by the types of its tensors."""
    for quant_bit, combinations in ILLEGAL.items():
        yield from (illegal(names, quant_bit=quant_bit) for names in combinations)
    for quant_bit, names in ((8, "f32 int8 int8"), (4, "f16 int4 int8")):
        state = dict(scale=np.ones(shape_of_scale, np.int8))
        yield illegal(names, "A scale is float32 or float16, never int8.", "int8", state=state, quant_bit=quant_bit)
    for quant_bit, T1 in ((8, "f32"), (4, "f16")):
        about = f"quant_bit {quant_bit} needs a scale"
        given = dict(types=f"{T1} int{quant_bit}")
        name, call = f"scale-missing-{T1}-int{quant_bit}", ("scale_missing", "scale", {})
        yield name, f"{about} and none is given.", "scale.required", given, call
        about += ", and the given one is what exports without one give: shape [0]."
        given = dict(types=f"{T1} int{quant_bit} f16", scale=np.zeros(0, np.float16))
        call = ("scale_missing", f"scale, quant_bit, {quant_bit}", {})
        yield f"scale-empty-{T1}-int{quant_bit}", about, "scale.required", given, call
    about, elements = "current_value is float32, then int8, and current_key is float16.", ("float32", "int8")
    wrong = {other: dict(current_value=partial(np.zeros_like, dtype=other)) for other in elements}
    calls = [("type_mismatch", f"current_value, {other}", changes) for other, changes in wrong.items()]
    yield "type-of-current-value", about, "inputs.types", dict(types="f16 f16"), *calls
    about = "Each index input in turn is int8, not int64: refused, its bytes not read."
    calls = [("type_mismatch", f"{index}, int8", {index: of_type("int8")}) for index in index_inputs]
    yield "type-of-indices", about, "inputs.types", {}, *calls


def empty_scales(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Row]:
    """Scales that have the right rank and no elements."""
    about = "A scale without elements, in a shape of the right rank: for a cache that has some it is none."
    for label, shape in shapes.items():
        given = dict(types="f32 int8 f32", scale=np.zeros(shape, np.float32))
        yield f"scale-empty-{label}", about, "scale.required", given, ("scale_missing", "scale, quant_bit", {})

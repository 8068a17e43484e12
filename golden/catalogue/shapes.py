"""Groups, heads, head sizes and layers; attributes that are absent or without effect."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .bits import random_bits
from .case import Case, Sequence, begin

HEAD_DIMS = ((1, "f32 f32"), (5, "f16 f16"), (7, "f32 f16"), (33, "int8 int8"))
TYPES_BY_TURNS = ("f32 {} f32", "f16 {} f16", "f32 {} f16", "f16 {} f32")


def groups() -> Iterator[Case]:
    """Each group for each width; usual ones, unusual ones, and one group for the whole head."""
    for bits in (8, 4):
        rules = "quantizing.groups" + (" int4.nibbles" if bits == 4 else "")
        for turn, quant_group in enumerate((8, 16, 32, 64, 128, 2, *((1, 3) if bits == 8 else (6,)))):
            group_count = 2 if quant_group >= 32 else 3
            types = TYPES_BY_TURNS[turn % 4].format(f"int{bits}")
            about = f"int{bits} in {group_count} groups of {quant_group}: a step for each, shared by no other element."
            sizes = dict(num_heads=1 if quant_group >= 64 else 2, head_dim=group_count * quant_group, max_t=5)
            attributes = dict(quant_bit=bits, quant_group=quant_group, cache_layout=turn % 4)
            case = begin(f"group{quant_group}-int{bits}", about, types, proves=rules, **sizes, **attributes)
            yield case.call(Sequence(1, 3, 1))
        quant_group = 16 if bits == 8 else 24
        about = f"quant_group equals head_dim ({quant_group}): the last axis of scale is 1."
        given = dict(head_dim=quant_group, max_t=5, quant_bit=bits, quant_group=quant_group, cache_layout=3)
        case = begin(f"group{quant_group}-is-head-dim-int{bits}", about, f"f16 int{bits} f32", proves=rules, **given)
        yield case.call(Sequence(0, 3, 1), Sequence(0, 1, 0))
        about = "Three groups a head: a number of groups that is no power of two."
        given = dict(head_dim=24, max_t=6, quant_bit=bits, quant_group=8)
        case = begin(f"head-dim-24-group8-int{bits}", about, f"f32 int{bits} f16", proves=rules, **given)
        yield case.call(Sequence(2, 2, 0), Sequence(0, 1, 4))
        # A group that ends inside of a vector of 4, 8 or 16, with its largest magnitude there.
        about = f"int{bits} in 2 groups of 22, whose last value is the largest: it counts toward the step."
        given = dict(head_dim=44, max_t=6, quant_bit=bits, quant_group=22)
        case = begin(f"group22-int{bits}", about, f"f32 int{bits} f32", proves=rules, **given)
        batch = (Sequence(0, 2, 3), Sequence(1, 1, 0))
        call = case.inputs(*batch)
        for current in (call.current_key, call.current_value):
            current[..., 21::22] = -3 * abs(current).max(axis=-1, keepdims=True)
        yield case.call(*batch, current_key=call.current_key, current_value=call.current_value)


def heads() -> Iterator[Case]:
    """Head counts and head sizes that are no multiple of a vector's width."""
    for head_dim, types in HEAD_DIMS:
        name = f"head-dim-{head_dim}-{types.replace(' ', '-')}"
        about = f"head_dim {head_dim}: rows of an odd number of elements, which end inside of a vector."
        given = dict(head_dim=head_dim, max_t=7, num_repeat=2, cache_layout=head_dim % 4)
        case = begin(name, about, types, proves=f"num-repeat cache-layout.{head_dim % 4}", **given)
        yield case.call(Sequence(0, 2, 5), Sequence(3, 1, 1))
    for num_heads, bits, types, num_repeat in (
        (1, 0, "f16 f16", 3),
        (1, 8, "f32 int8 f32", 1),
        (1, 4, "f16 int4 f16", 8),
        (3, 0, "f32 f32", 1),
        (3, 8, "f16 int8 f32", 3),
        (3, 4, "f32 int4 f16", 2),
        (5, 0, "f16 f32", 7),
    ):
        name = f"heads{num_heads}-{types.replace(' ', '-')}-r{num_repeat}"
        about = f"{num_heads} heads, each repeated {num_repeat} times: output head h * num_repeat + r is head h."
        rules = "num-repeat" if num_repeat > 1 else f"cache-layout.{num_repeat % 4}"
        given = dict(num_heads=num_heads, max_t=6, quant_bit=bits, num_repeat=num_repeat, cache_layout=num_repeat % 4)
        case = begin(name, about, types, proves=rules, **given)
        yield case.call(Sequence(1, 2, 3), Sequence(0, 2, 0))


def layers() -> Iterator[Case]:
    """The first, the middle and the last of three layers; the other layers keep their bytes."""
    for layer_idx, where in enumerate(("first", "middle", "last")):
        for cache_layout in (layer_idx, 3):
            bits = (0, 8, 4)[(layer_idx + cache_layout) % 3]
            types = ("f32 f32", "f16 int8 f16", "f32 int4 f32")[(layer_idx + cache_layout) % 3]
            name = f"layer-{where}-of-3-layout{cache_layout}"
            about = f"The {where} of three layers in layout {cache_layout}: the other two keep every byte."
            given = dict(max_t=6, num_layer=3, layer_idx=layer_idx, quant_bit=bits, cache_layout=cache_layout)
            case = begin(name, about, types, proves=f"layer untouched-layers cache-layout.{cache_layout}", **given)
            yield case.call(Sequence(0, 2, 4), Sequence(2, 1, 1))


def attributes_left_out() -> Iterator[Case]:
    """Absent attributes take the specification's defaults; some have no effect."""
    about = "No attribute at all: one layer, no quantization, no repeat, offset mode, layout 0."
    yield begin("defaults", about, "f32 f32", proves="attributes.defaults").call(Sequence(0, 3, 2), Sequence(2, 1, 7))

    about = "cache_mode 1 with the default page_size 128: the second page begins with token 128."
    given = dict(num_heads=1, head_dim=2, max_t=140, cache_mode=1)
    case = begin("default-page-size", about, "int8 int8", proves="attributes.defaults cache-mode.1", **given)
    yield case.call(Sequence(126, 4, (9, 2)))

    for bits in (8, 4):
        about = f"quant_bit {bits} with the default quant_group 8: head_dim 16 has two groups."
        name = f"default-quant-group-int{bits}"
        sizes = dict(head_dim=16, max_t=6)
        case = begin(name, about, f"f32 int{bits} f32", proves="attributes.defaults", **sizes, quant_bit=bits)
        yield case.call(Sequence(0, 2, 3), Sequence(1, 1, 0))

    about = "Without quantization quant_group has no effect: 3 need not divide head_dim 8. Nor has page_size here."
    rules = "attributes.group-divides cache-mode.0"
    case = begin("idle-attributes", about, "f16 f16", proves=rules, quant_group=3, page_size=1)
    yield case.call(Sequence(1, 4, 5))


def scale_untouched() -> Iterator[Case]:
    """A scale that is given without quantization keeps its bytes, whatever its shape."""
    for number, (types, shape) in enumerate(
        (("f32 f32 f32", (12, 1, 2, 2, 1)), ("f16 f32 f32", (3,)), ("f32 f16 f16", (0,)), ("int8 int8 f32", (2, 5)))
    ):
        name = f"scale-unused-{types.replace(' ', '-')}"
        scale = random_bits(f"{name} scale", shape, {"f32": "float32", "f16": "float16"}[types.split()[2]])
        about = f"quant_bit 0 with a scale of shape {list(shape)}: left untouched, whatever its shape."
        case = begin(name, about, types, proves="scale.unused", scale=np.asarray(scale), cache_layout=0)
        yield case.call(Sequence(0, 2, 3), Sequence(number, 1, 6))

"""Every layout, legal combination of types and num_repeat; groups, heads, layers, and attributes that are left out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from oracle.static_batching import STATIC_LAYOUTS

from ..case import Case, quantized
from ..combinations import GROUPS, REPEATS, TYPES
from ..extensions import TYPES as EXTENSIONS
from .case import begin


def cases() -> Iterator[Case]:
    for number, (cache_layout, types, num_repeat) in enumerate(product(STATIC_LAYOUTS, TYPES, REPEATS)):
        yield combination(number, cache_layout, types, num_repeat, TYPES[types])


def combination(number: int, cache_layout: int, types: str, num_repeat: int, quant_bit: int) -> Case:
    """A prompt and a decode step of two sequences in a cache for three."""
    attributes = dict(num_layer=2, layer_idx=number % 2, num_repeat=num_repeat, cache_layout=cache_layout)
    head_dim = 4 + number % 3
    rules = f"types.legal cache-layout.{cache_layout} layer stored-positions loaded-positions"
    if quant_bit != 0:
        # The product's neighbors of one layout and width meet all groups.
        quant_group = GROUPS[(number + cache_layout) % len(GROUPS)]
        attributes |= quantized(types, quant_bit, quant_group)
        head_dim = 16 if quant_group == 8 else quant_group
        rules += " quantizing.groups"
    if quant_bit == 4:
        rules += " int4.nibbles"
    if "fp8" in types:
        rules += " quantizing.float8"
    if num_repeat != 1:
        rules += " num-repeat"
    about = (
        f"Layout {cache_layout}, {types.replace(' ', '/')}, num_repeat {num_repeat}, head_dim {head_dim}: a prompt and"
        " a decode step of two sequences, in a cache for three."
    )
    name = f"layout{cache_layout}-{types.replace(' ', '-')}-r{num_repeat}"
    sizes = dict(num_heads=1 if head_dim >= 64 else 2, head_dim=head_dim, max_s=4)
    case = begin(name, about, types, proves=rules, **sizes, **attributes)
    return case.call(2, 0, 2).call(2, 2, 1)


def heads() -> Iterator[Case]:
    """Heads of a length that ends inside of a vector, and many of them."""
    for turn, (num_heads, head_dim, types) in enumerate(
        ((1, 1, "f32 f32"), (3, 5, "f16 f16"), (5, 7, "f32 f16"), (2, 33, "int8 int8"), (4, 64, "f16 f16"))
    ):
        about = f"{num_heads} heads of {head_dim} elements, each repeated {turn + 1} times."
        name = f"heads{num_heads}-head-dim-{head_dim}-{types.replace(' ', '-')}"
        sizes = dict(num_heads=num_heads, head_dim=head_dim)
        rules = f"cache-layout.{turn % 2}" + (" num-repeat" if turn else "")
        case = begin(name, about, types, proves=rules, **sizes, num_repeat=turn + 1, cache_layout=turn % 2)
        yield case.call(3, 1, 3)


def groups() -> Iterator[Case]:
    """Usual groups and unusual ones, and one group for the whole head."""
    for quant_bit, quant_group in ((8, 1), (8, 3), (8, 24), (8, 128), (4, 2), (4, 6), (4, 24), (4, 128)):
        head_dim = quant_group if quant_group >= 24 else 3 * quant_group
        about = f"int{quant_bit} in groups of {quant_group}, head_dim {head_dim}."
        name = f"group{quant_group}-int{quant_bit}"
        for cache_layout, T1, T3 in ((0, "f32", "f16"), (1, "f16", "f32")):
            attributes = dict(quant_bit=quant_bit, quant_group=quant_group, cache_layout=cache_layout)
            rules = "quantizing.groups" + (" int4.nibbles" if quant_bit == 4 else "")
            sizes = dict(num_heads=1, head_dim=head_dim, max_b=2, max_s=4)
            case = begin(f"{name}-{T1}", about, f"{T1} int{quant_bit} {T3}", proves=rules, **sizes, **attributes)
            yield case.call(2, 1, 2)


def layers() -> Iterator[Case]:
    """The first, the middle and the last of three layers; the other layers keep their bytes."""
    for layer_idx, cache_layout in product(range(3), STATIC_LAYOUTS):
        quant_bit, types = ((0, "f32 f32"), (8, "f16 int8 f16"), (4, "f32 int4 f32"))[(layer_idx + cache_layout) % 3]
        about = f"Layer {layer_idx} of three in layout {cache_layout}: the other two keep every byte."
        attributes = dict(num_layer=3, layer_idx=layer_idx, quant_bit=quant_bit, cache_layout=cache_layout)
        rules = f"layer untouched-layers cache-layout.{cache_layout}"
        name = f"layer{layer_idx}-of-3-layout{cache_layout}"
        case = begin(name, about, types, proves=rules, max_b=2, max_s=3, **attributes)
        yield case.call(2, 0, 2)


def attributes_left_out() -> Iterator[Case]:
    """Absent attributes take the specification's defaults; some have no effect."""
    about = "No attribute at all: one layer, no quantization, no repeat, layout 0."
    yield begin("defaults", about, "f32 f32", proves="attributes.defaults").call(3, 2, 3)
    for quant_bit in (8, 4):
        about = f"quant_bit {quant_bit} with the default quant_group 8: head_dim 16 has two groups."
        name = f"default-quant-group-int{quant_bit}"
        types = f"f32 int{quant_bit} f32"
        case = begin(name, about, types, proves="attributes.defaults", head_dim=16, quant_bit=quant_bit)
        yield case.call(2, 1, 2)
    about = "Without quantization quant_group has no effect: 3 need not divide head_dim 8."
    case = begin("idle-quant-group", about, "f16 f16", proves="attributes.group-divides", quant_group=3)
    yield case.call(1, 1, 4)


def scale_untouched() -> Iterator[Case]:
    """A scale that is given without quantization keeps its bytes, whatever its shape."""
    for types, shape in (("f32 f32 f32", (3, 1, 2, 6, 2, 1)), ("f16 f32 f32", (3,)), ("f32 f16 f16", (0,))):
        name = f"scale-unused-{types.replace(' ', '-')}"
        about = f"A scale of shape {list(shape)} without quantization: left untouched."
        scale = np.full(shape, 3, {"f32": np.float32, "f16": np.float16}[types.split()[2]])
        yield begin(name, about, types, proves="scale.unused", scale=scale).call(2, 1, 2)


def extensions() -> Iterator[Case]:
    """Each row of the table of types that is one."""
    for number, (types, quant_bit) in enumerate(EXTENSIONS.items()):
        yield combination(number, number % 2, types, (1, 4)[number // 2 % 2], quant_bit)

"""Attention over codes of float8 with static scales."""

from __future__ import annotations

from collections.abc import Iterator

from ..bits import random_scales
from ..case import LONG_NAMES, Case, Sequence
from ..static_scales import ATTRIBUTES, TYPES, shape_label
from .case import over_cache
from .combinations import SEQUENCES

SHAPES = ((2, 2, 2), (1, 1, 1), (1, 2, 1), (1, 1, 2), (2, 1, 1), (1, 2, 2))


def cases() -> Iterator[Case]:
    """Each row of types and each shape; then more keys and queries than a kernel takes at once."""
    for number, (types, shape) in enumerate(zip(TYPES, SHAPES, strict=True)):
        cache_layout, mode = number % 4, number % 2
        attributes = ATTRIBUTES | dict(num_layer=2, layer_idx=number // 2 % 2, cache_layout=cache_layout)
        attributes |= dict(cache_mode=1, page_size=2) if mode == 1 else {}
        name = f"static-scales-{shape_label(shape)}-{types.replace(' ', '-')}"
        about = f"{types.replace(' ', '/')}, scales of shape {shape}: a decode step, a prefill, a chunk of a prompt."
        rules = f"scale.static quantizing.static equivalence cache-layout.{cache_layout}"
        head_dim = (16, 40, 8, 64, 20, 128)[number]
        case = over_cache(name, about, types, (4, 2), head_dim, proves=rules, max_t=8, **attributes)
        case.set_scale(random_scales(f"{name} scale", shape, LONG_NAMES[types.split()[2]]))
        yield case.call(*SEQUENCES[mode], decoding_batches=1)
    rules = "quantizing.static precision"
    for number, types in enumerate(("f32 fp8 f32", "f16 fp8 f16")):
        about = "Prompts of 70 tokens in two chunks beside a decode step over 130 keys."
        attributes = ATTRIBUTES | dict(cache_layout=3 * number)
        case = over_cache(f"static-scales-long-{types.replace(' ', '-')}", about, types, (2, 1), 32, proves=rules,
                          max_t=210, **attributes)  # fmt: skip
        case.call(Sequence(0, 40, 2))
        yield case.call(Sequence(129, 1, 75), Sequence(40, 30, 2), decoding_batches=1)

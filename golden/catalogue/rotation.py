"""Keys that are rotated before they are quantized, an extension."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from oracle.rotation import order

from .arithmetic import T1S
from .bits import random_values
from .case import LONG_NAMES, Case, Sequence, begin, quantized
from .combinations import MODES

RULES = "quantizing.rotation dequantizing.rotation"
NAN_WHY = "arithmetic makes the NaN of a block with a non-finite value, with the machine's sign and payload"
# Types, head_dim, quant_group: orders of 1 to 256, one block or several, as long as a group, longer and shorter.
SETTINGS = (
    ("f32 int8 f32", 24, 8), ("f16 int4 f16", 80, 16), ("f32 int4 f16", 64, 32), ("f16 int8 f32", 128, 128),
    ("bf16 int4 f16", 256, 64), ("f32 int8 f16", 512, 32), ("f16 fp8 f16", 40, 8), ("f32 fp8 f32", 96, 96),
    ("bf16 int8 f32", 7, 7), ("f32 int4 f32", 14, 2), ("f16 int8 f16", 132, 12), ("f32 int4 f32", 256, 256),
    ("bf16 int8 f16", 512, 512), ("f16 int4 f32", 192, 96), ("f32 int8 f32", 1056, 1056), ("f16 int4 f16", 640, 2),
    ("f32 fp8 f16", 1312, 656), ("bf16 int4 f32", 576, 72),
)  # fmt: skip
BITS = {"int8": 8, "int4": 4, "fp8": 8}


def rotated(name: str, about: str, types: str, proves: str, quant_group: int, **given: Any) -> Case:
    given = quantized(types, BITS[types.split()[1]], quant_group) | dict(quant_rotation=1) | given
    return begin(name, about, types, proves=proves, **given)


def cases() -> Iterator[Case]:
    """Each layout and mode with orders, types and groups that vary along them."""
    for number, (types, head_dim, quant_group) in enumerate(SETTINGS):
        cache_layout, mode = number % 4, (number // 4 + number) % 2
        attributes = dict(num_layer=2, layer_idx=number % 2, num_repeat=number % 3 + 1, cache_layout=cache_layout)
        attributes |= dict(cache_mode=1, page_size=2) if mode == 1 else {}
        name = f"rotation-head-dim-{head_dim}-{types.replace(' ', '-')}-{MODES[mode]}"
        blocks = order(head_dim, quant_group)
        about = f"Heads of {head_dim} in blocks of {blocks}: a prefill and a decode step, then one more."
        sizes = dict(num_heads=1 if head_dim > 128 else 2, head_dim=head_dim, max_t=6)
        case = rotated(name, about, types, f"{RULES} layer", quant_group, **sizes, **attributes)
        prefill, decode = (3, 0) if mode == 0 else ((4, 2), (0,))
        case.call(Sequence(0, 2, prefill), Sequence(1, 1, decode))
        yield case.call(Sequence(2, 1, prefill), Sequence(2, 0, decode if mode == 0 else (0, -1)))


def values() -> Iterator[Case]:
    """Values whose sums are beyond T1 or float32, outliers, zeros, and heads that lie in one block or in two."""
    for types in ("f32 int8 f32", "f16 int4 f16", "bf16 fp8 f32"):
        T1 = T1S[types.split()[0]]
        name = f"rotation-of-extremes-{types.replace(' ', '-')}"
        largest = np.full(64, np.finfo(T1).max if T1 in (np.float32, np.float16) else 3e38, np.float64)
        heads = np.zeros((6, 64))
        heads[0], heads[1] = largest, largest * (-1) ** np.arange(64)
        heads[2, 5], heads[2, 6:] = 1000, 1e-3
        heads[3] = -0.0
        heads[4] = 1e-6 * (1 + np.arange(64))
        heads[5] = 50 + random_values(f"{name} biased", (64,), "float32")
        about = (
            "The largest numbers, whose sum may be infinite; an outlier; zeros; what is below the least scale; a bias."
        )
        case = rotated(name, about, types, f"{RULES} quantizing.epsilon", 16, num_heads=1, head_dim=64, max_t=7,
                       any_nan=NAN_WHY)  # fmt: skip
        current = heads.astype(T1).reshape(6, 1, 64)
        yield case.call(Sequence(0, 6, 1), current_key=current, current_value=current[::-1].copy())


def non_finite() -> Iterator[Case]:
    """NaN and infinities reach their whole block, which may be several groups or a part of one."""
    for types, quant_group in (("f32 int8 f16", 4), ("f16 int4 f32", 24)):
        name = f"rotation-of-non-finite-{types.replace(' ', '-')}"
        about = f"NaN, an infinity and two in blocks of 8, groups of {quant_group}: no other block, group or head."
        case = rotated(name, about, types, f"{RULES} non-finite.nan non-finite.infinity", quant_group, head_dim=24,
                       any_nan=NAN_WHY)  # fmt: skip
        batch = Sequence(1, 4, 3)
        inputs = case.inputs(batch)
        for values in (inputs.current_key, inputs.current_value):
            values[0, 0, 3], values[1, 1, 8], values[2, 0, 23] = np.nan, np.inf, -np.inf
            values[2, 1, [9, 12]] = np.inf
        yield case.call(batch, current_key=inputs.current_key, current_value=inputs.current_value)


def static_scales() -> Case:
    types = "f16 fp8 f32"
    about = "Codes of rotated heads with static scales, which calibration has of rotated heads."
    attributes = dict(quant_bit=8, quant_type=2, quant_rotation=1)
    rules = f"{RULES} quantizing.static scale.static"
    scale = np.array([0.01, 0.3, 0.02, 0.125], LONG_NAMES["f32"]).reshape(1, 2, 2)
    case = begin("rotation-static-scales", about, types, proves=rules, head_dim=48, scale=scale, **attributes)
    return case.call(Sequence(1, 3, 2), Sequence(0, 1, 8))

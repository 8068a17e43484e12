"""Every layout, mode and legal combination of types, over a prefill, a decode step and a chunk of a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from oracle.layouts import LAYOUTS

from ..case import Case, Sequence, quantized
from ..combinations import MODES, TYPES
from ..extensions import TYPES as EXTENSIONS
from .case import mask, over_cache, packed
from .packed import BATCH

HEADS = ((4, 2), (2, 2), (4, 1), (3, 1), (2, 1))
HEAD_DIMS = (16, 40, 8, 24)
# A decode step, a prefill and the second chunk of a prompt, by mode.
SEQUENCES = [
    (Sequence(2, 1, decode), Sequence(0, 2, prefill), Sequence(1, 2, chunk))
    for decode, prefill, chunk in ((0, 6, 3), ((3, 5), (6,), (1, 0)))
]
GROUPS = {16: (8, 16, 4, 2), 40: (8, 40, 4, 20), 8: (8, 4, 2, 8), 24: (8, 24, 12, 6)}


def cases() -> Iterator[Case]:
    """The whole product; heads, sizes, layers, slots and groups vary along it."""
    types = [types for types in TYPES if not types.startswith("int8")]
    for number, place in enumerate(product(LAYOUTS, range(2), types)):
        yield combination(number, *place)


def combination(number: int, cache_layout: int, cache_mode: int, types: str) -> Case:
    mode = MODES[cache_mode]
    heads, head_dim = HEADS[number % len(HEADS)], HEAD_DIMS[(number + cache_layout) % len(HEAD_DIMS)]
    attributes = dict(num_layer=2, layer_idx=number % 2, cache_mode=cache_mode, cache_layout=cache_layout)
    quant_bit = TYPES[types]
    rules = f"types.legal cache-mode.{cache_mode} cache-layout.{cache_layout} layer untouched-layers equivalence"
    if quant_bit != 0:
        rules += " quantizing.groups"
        attributes |= dict(quant_bit=quant_bit, quant_group=GROUPS[head_dim][number % 4])
    if cache_mode == 1:
        attributes |= dict(page_size=2)
        rules += " pages.unaligned pages.filler"
    if quant_bit == 4:
        rules += " int4.nibbles"
    name = f"layout{cache_layout}-{mode}-{types.replace(' ', '-')}"
    about = (
        f"Layout {cache_layout}, {mode} mode, {types.replace(' ', '/')}, {heads[0]} heads on {heads[1]}, head_dim"
        f" {head_dim}: a decode step, a prefill and the second chunk of a prompt in one call."
    )
    case = over_cache(name, about, types, heads, head_dim, proves=rules, max_t=8, **attributes)
    return case.call(*SEQUENCES[cache_mode], decoding_batches=1)


def extensions() -> Iterator[Case]:
    """Caches of each row of the table of types that is an extension, and packed rows of bfloat16."""
    for number, (types, quant_bit) in enumerate(EXTENSIONS.items()):
        cache_layout, cache_mode, head_dim = number % 4, number % 2, (16, 40)[number // 2 % 2]
        attributes = dict(cache_mode=cache_mode, cache_layout=cache_layout) | quantized(types, quant_bit, 8)
        if cache_mode == 1:
            attributes |= dict(page_size=2)
        name = f"layout{cache_layout}-{MODES[cache_mode]}-{types.replace(' ', '-')}"
        about = f"{types.replace(' ', '/')}: a decode step, a prefill and the second chunk of a prompt in one call."
        rules = "types.legal equivalence" + (" quantizing.float8" if "fp8" in types else "")
        case = over_cache(name, about, types, (4, 2), head_dim, proves=rules, max_t=8, **attributes)
        yield case.call(*SEQUENCES[cache_mode], decoding_batches=1)
    for head_dim, rank in ((40, 2), (64, 3)):
        about = f"head_dim {head_dim}, a mask of rank {rank}: decode steps, a prompt, and no queries."
        rules = "types.legal scores weights precision attn-mask"
        case = packed(f"packed-bf16-head-dim-{head_dim}", about, "bf16", (4, 2), head_dim, proves=rules)
        yield case.call(*BATCH, attn_mask=mask(case, BATCH, heads=4 if rank == 3 else None, width=32))

"""Grouped-query attention: how many query heads share a key head, and the sizes of heads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from ..case import Sequence
from .case import AttentionCase, over_cache, packed

RATIOS = ((2, 2), (8, 2), (8, 1), (16, 2), (6, 2), (32, 1))
HEAD_DIMS = (40, 64, 80, 96, 128, 256)
TYPES = (("f32 f32", 0), ("f16 f16", 0), ("f32 int8 f32", 8), ("f16 int4 f16", 4))


def cases() -> Iterator[AttentionCase]:
    """Each ratio and each size with each of four types once."""
    for number, (head_dim, (types, quant_bit)) in enumerate(product(HEAD_DIMS, TYPES)):
        heads = RATIOS[(number + number // 6) % len(RATIOS)]
        attributes = dict(cache_layout=number % 4)
        if quant_bit != 0:
            attributes |= dict(quant_bit=quant_bit, quant_group=(8, 16, head_dim)[number % 3])
        name = f"heads{heads[0]}-on-{heads[1]}-head-dim-{head_dim}-{types.replace(' ', '-')}"
        about = f"Query head h uses key head h / {heads[0] // heads[1]}; head_dim {head_dim}, {types}."
        rules = "scores weights" + (" heads.grouped" if heads[1] != 1 and heads[0] != heads[1] else "")
        case = over_cache(name, about, types, heads, head_dim, proves=rules, max_t=9, **attributes)
        yield case.call(Sequence(5, 1, 3), Sequence(1, 2, 0), decoding_batches=1)


def tails() -> Iterator[AttentionCase]:
    """Sizes of heads that leave a rest behind every vector and, beyond 128, behind two."""
    rules = "scores weights"
    for head_dim, types, attributes in (
        (13, "f32 f32", {}),
        (20, "f16 int8 f16", dict(quant_bit=8, quant_group=10)),
        (129, "f32 f16", {}),
    ):
        name = f"head-dim-{head_dim}-{types.replace(' ', '-')}"
        about = f"head_dim {head_dim}, which is no multiple of 8: no element is left out."
        case = over_cache(name, about, types, (2, 1), head_dim, proves=rules, max_t=9, **attributes)
        yield case.call(Sequence(5, 1, 3), Sequence(1, 2, 0), decoding_batches=1)
    for head_dim, T1 in ((11, "f16"), (6, "f32")):
        about = f"head_dim {head_dim}, which is no multiple of 8: no element is left out."
        case = packed(f"packed-{T1}-head-dim-{head_dim}", about, T1, (4, 2), head_dim, proves=rules)
        yield case.call(Sequence(4, 1, 0), Sequence(0, 3, 0))

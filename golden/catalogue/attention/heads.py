"""How many query heads share a key head, the sizes of heads, and scores and sums that a narrower type than float32 has
no room for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from ..bits import random_values
from ..case import Case, Sequence
from .case import over_cache, packed

RATIOS = ((2, 2), (8, 2), (8, 1), (16, 2), (6, 2), (32, 1))
HEAD_DIMS = (40, 64, 80, 96, 128, 256)
TYPES = (("f32 f32", 0), ("f16 f16", 0), ("f32 int8 f32", 8), ("f16 int4 f16", 4))


def cases() -> Iterator[Case]:
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


def tails() -> Iterator[Case]:
    """Sizes of heads that leave a rest after every vector and, beyond 128, after two."""
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


def large_scores() -> Case:
    """Scores beyond what is often taken for infinite, or is the largest float16."""
    name = "packed-scores-of-large-numbers"
    about = "The scores of a query are about -100000, -20000, 20000 or 100000: what counts is how far they are apart."
    case = packed(name, about, "f32", (1, 1), 8, proves="scores weights", is_causal=0)
    query = random_values(f"{name} query", (4, 1, 8), "float32") / np.float32(64)
    key = random_values(f"{name} key", (6, 1, 8), "float32")
    query[:, 0, 0], key[:, 0, 0] = (-300000, -60000, 60000, 300000), 1
    return case.call(Sequence(2, 4, 0), query=query, key=key)


def small_weights() -> Case:
    """Weights that vanish beside 1 in float16, and together do not."""
    name = "packed-sum-of-small-weights"
    about = "One key of score 0 and 511 of scores below -8: in float16 each of these is nothing beside 1, all are 0.07."
    case = packed(name, about, "f16", (1, 1), 8, proves="weights precision", is_causal=0)
    query, key = np.zeros((1, 1, 8), np.float16), random_values(f"{name} key", (512, 1, 8), "float16")
    query[:, 0, 0] = 8
    key[1:, 0, 0] = -3 - abs(key[1:, 0, 1]) / 32
    key[0, 0, 0] = 0
    return case.call(Sequence(511, 1, 0), query=query, key=key)


def large_values() -> Case:
    """Values whose mean is a float16, and whose sum is not."""
    name = "packed-sum-of-large-values"
    about = "Equal weights of values of about 1000: their sum is beyond float16 before it is divided by their number."
    case = packed(name, about, "f16", (1, 1), 8, proves="weights precision", is_causal=0)
    query = np.zeros((1, 1, 8), np.float16)
    value = 1000 + random_values(f"{name} value", (128, 1, 8), "float16")
    return case.call(Sequence(127, 1, 0), query=query, value=value)


def large_distances() -> Case:
    """Distances that are no numbers of a narrow type."""
    name = "packed-alibi-of-large-distances"
    about = "ALiBi up to a distance of 599: bfloat16 has not all integers beyond 256."
    case = packed(name, about, "f32", (1, 1), 8, proves="alibi precision", is_alibi=1)
    # Small scores, so that no key outweighs the others.
    return case.call(Sequence(599, 1, 0), query=random_values(f"{name} query", (1, 1, 8), "float32") / np.float32(64))

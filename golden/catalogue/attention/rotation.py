"""Attention over caches of rotated keys: the query is rotated, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from oracle.portable import square, total
from oracle.rotation import order

from ..case import Case, Sequence
from ..rotation import BITS, RULES, SETTINGS, quantized
from .case import mask, over_cache, small_scores
from .combinations import SEQUENCES
from .variants import LENGTHS, sequences, sinks


def rotated(
    name: str, about: str, types: str, heads: tuple[int, int], head_dim: int, quant_group: int, rules: str, **given: Any
) -> Case:
    given = quantized(types, BITS[types.split()[1]], quant_group) | dict(quant_rotation=1) | given
    return over_cache(name, about, types, heads, head_dim, proves=f"{RULES} equivalence {rules}".strip(), **given)


def cases() -> Iterator[Case]:
    """Orders of one block and of several, up to the largest head of a device."""
    for number, (types, head_dim, quant_group) in enumerate(SETTINGS[:5] + SETTINGS[6:10:2] + SETTINGS[11:14:2]):
        mode, heads = number % 2, ((4, 2), (2, 2), (3, 1))[number % 3]
        attributes = dict(cache_layout=number % 4)
        attributes |= dict(cache_mode=1, page_size=2) if mode == 1 else {}
        name = f"rotation-head-dim-{head_dim}-{types.replace(' ', '-')}"
        about = (
            f"Heads of {head_dim} in blocks of {order(head_dim, quant_group)}: a decode step, a prefill and a chunk."
        )
        case = rotated(name, about, types, heads, head_dim, quant_group, "", max_t=8, **attributes)
        small_scores(case, *SEQUENCES[mode], decoding_batches=1)
        yield case


def variants() -> Case:
    batch, max_t = sequences(LENGTHS)
    about = "Rotated keys with a scale, a soft cap, a window, sinks, ALiBi, a mask and mass."
    given = dict(scale=0.25, softcap=3.0, local_window_size=4, is_alibi=1, max_t=max_t, cache_layout=3)
    rules = "scores.scale scores.softcap window head-sink alibi attn-mask mass"
    case = rotated("rotation-with-variants", about, "f16 int4 f32", (4, 2), 48, 12, rules, **given).with_mass()
    changes = dict(attn_mask=mask(case, batch, heads=4), head_sink=sinks(case, 4))
    return small_scores(case, *batch, decoding_batches=1, **changes)


def long() -> Iterator[Case]:
    for types in ("f32 int8 f16", "f16 int4 f16"):
        about = "A decode step over 600 keys and a chunk of 9 queries over 70, of two heads on one."
        given = dict(max_t=680, cache_layout=2)
        name = f"large-rotation-{types.replace(' ', '-')}"
        case = rotated(name, about, types, (2, 1), 32, 32, "precision", **given)
        yield small_scores(case, Sequence(599, 1, 0), Sequence(61, 9, 605), decoding_batches=1)


def cancelling() -> Iterator[Case]:
    for types in ("f16 int8 f16", "bf16 int8 f32"):
        name = f"rotation-cancels-{types.replace(' ', '-')}"
        about = "Keys almost orthogonal to large queries: rounded to T1, a rotated query gives other scores."
        case = rotated(name, about, types, (1, 1), 64, 64, "scores precision")
        batch = (Sequence(0, 6, 2),)
        inputs = case.inputs(*batch)
        query, key = (tensor.astype(np.float64) for tensor in (inputs.query[:1], inputs.current_key))
        query, key = (8 * rows / np.abs(rows).max(axis=2, keepdims=True) for rows in (query, key))
        key -= query * (total(key * query, axis=2) / total(square(query), axis=2))[..., None]
        changes = dict(query=np.repeat(8 * query, 6, axis=0), current_key=key)
        yield case.call(*batch, **{tensor: x.astype(inputs.query.dtype) for tensor, x in changes.items()})

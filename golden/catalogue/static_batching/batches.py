"""Batches and positions: none, some and all of the cache's sequences and positions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from oracle.static_batching import STATIC_LAYOUTS

from ..case import Case
from .case import begin

TYPES = ((0, "f32 f32"), (8, "f16 int8 f16"), (4, "f32 int4 f16"))


def cases() -> Iterator[Case]:
    for (quant_bit, types), cache_layout in product(TYPES, STATIC_LAYOUTS):
        label = f"layout{cache_layout}-{types.replace(' ', '-')}"
        yield from edges(label, types, dict(quant_bit=quant_bit, cache_layout=cache_layout))


def edges(label: str, types: str, attributes: dict[str, int]) -> Iterator[Case]:
    """Batches of none and of all, calls without tokens, and a cache that is filled to its last position."""
    about = "B = 0: empty outputs with start_pos 0, then 3, the cache as it was."
    case = begin(f"batch-of-none-{label}", about, types, proves="bounds.empty untouched-rows", **attributes)
    yield case.call(0, 0, 2).call(0, 3, 1)

    about = "S = 0: nothing is stored, the past of 4 is loaded; then there is none."
    case = begin(f"only-loads-{label}", about, types, proves="bounds.empty untouched-positions", **attributes)
    yield case.call(2, 4, 0).call(3, 0, 0)

    about = "Every sequence and every position of the cache, in one call and then in two."
    rules = f"bounds.batch bounds.positions num-repeat cache-layout.{attributes['cache_layout']}"
    case = begin(f"cache-full-{label}", about, types, proves=rules, max_b=2, max_s=5, num_repeat=2, **attributes)
    yield case.call(2, 0, 5).call(2, 0, 4).call(2, 4, 1)

    about = "One sequence of a cache for three: the rows behind it keep every byte."
    rules = "untouched-rows untouched-positions"
    yield begin(f"one-of-three-{label}", about, types, proves=rules, **attributes).call(1, 2, 3)

    about = "One sequence and one position."
    rules = "bounds.batch bounds.positions order.stores-first"
    case = begin(f"cache-of-one-slot-{label}", about, types, proves=rules, max_b=1, max_s=1, **attributes)
    yield case.call(1, 0, 1)


def no_room() -> Iterator[Case]:
    """Caches of no sequences and of no positions."""
    for cache_layout in STATIC_LAYOUTS:
        about = "A cache without sequences and a batch without sequences."
        name = f"no-sequences-layout{cache_layout}"
        case = begin(name, about, "f16 f16", proves="bounds.empty", max_b=0, cache_layout=cache_layout)
        yield case.call(0, 0, 3)
        about = "A cache without positions and sequences without tokens."
        name = f"no-positions-layout{cache_layout}"
        case = begin(name, about, "f32 f32", proves="bounds.empty", max_s=0, cache_layout=cache_layout)
        yield case.call(2, 0, 0)
    about = "Neither heads nor anything to move."
    case = begin("no-heads", about, "f16 int8 f16", proves="scale.required", num_heads=0, quant_bit=8)
    yield case.call(2, 1, 2)


def chains() -> Iterator[Case]:
    """Several calls on one cache, as a server makes them."""
    for number, (quant_bit, types) in enumerate(
        ((0, "f16 f16"), (0, "f16 f32"), (0, "int8 int8"), (8, "f32 int8 f16"), (4, "f16 int4 f32"))
    ):
        about = "A prompt of 3 tokens, two decode steps, a chunk of 2; then a smaller batch begins anew."
        label = types.replace(" ", "-")
        attributes = dict(quant_bit=quant_bit, cache_layout=number % 2, num_layer=2, layer_idx=number % 2, num_repeat=2)
        rules = f"stored-positions loaded-positions order.stores-first layer inputs.shapes cache-layout.{number % 2}"
        case = begin(f"chain-{label}", about, types, proves=rules, num_heads=1, max_s=8, **attributes)
        yield case.call(3, 0, 3).call(3, 3, 1).call(3, 4, 1).call(3, 5, 2).call(2, 0, 2).call(2, 2, 1)

"""Batches of every kind, shared prefixes, prompts in chunks, long sequences, and values that are not finite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..bits import random_values
from ..case import Case, Sequence, indices
from ..combinations import TYPES
from .case import mask, over_cache, packed


def small() -> Iterator[Case]:
    """Batches of nothing, of sequences without tokens, and of single tokens."""
    for types, attributes in (("f32 f32", {}), ("f16 int8 f16", dict(quant_bit=8, cache_mode=1, page_size=2))):
        label = types.replace(" ", "-")
        place = (lambda slot: (slot, slot + 2)) if "cache_mode" in attributes else (lambda slot: slot)
        about = "No sequence: an empty output."
        case = over_cache(f"batch-of-none-{label}", about, types, (4, 2), 8, proves="starts.empty", **attributes)
        yield case.call()
        about = "Sequences without new tokens, with past ones and without: no rows; beside them one of each other kind."
        rules = "starts.empty inputs.packed"
        case = over_cache(f"batch-with-idle-{label}", about, types, (4, 2), 8, proves=rules, **attributes)
        case.call(Sequence(0, 0, place(0)), Sequence(3, 0, place(4)))
        empty, decode, idle = Sequence(0, 0, place(0)), Sequence(2, 1, place(0)), Sequence(3, 0, place(4))
        yield case.call(empty, decode, idle, Sequence(0, 2, place(8)))
        about = "First tokens: a sequence of one token sees itself alone, so its output is its value."
        rules = "order.stores-first equivalence"
        case = over_cache(f"single-tokens-{label}", about, types, (4, 2), 8, proves=rules, **attributes)
        yield case.call(*(Sequence(0, 1, place(slot)) for slot in (5, 0, 8)))


def prefixes() -> Iterator[Case]:
    """Sequences that read the same slots."""
    about = "Three sequences share the page of a prompt's beginning; each attends to it as if it were its own."
    rules = "order.shared-slots cache-mode.1"
    attributes = dict(cache_mode=1, page_size=4)
    case = over_cache("shared-prefix-paged", about, "f32 f32", (4, 1), 16, proves=rules, max_t=16, **attributes)
    case.call(Sequence(0, 4, (8,)))
    case.call(Sequence(4, 3, (8, 0)), Sequence(4, 1, (8, 12)), Sequence(4, 2, (8, 4)))
    yield case.call(Sequence(5, 1, (8, 12)), Sequence(7, 1, (8, 0)), decoding_batches=2)
    about = "In offset mode a sequence reads what another one stores in the same call."
    rules = "order.shared-slots"
    case = over_cache("shared-prefix-offset", about, "f16 int4 f16", (4, 2), 16, proves=rules, max_t=16, quant_bit=4)
    yield case.call(Sequence(4, 2, 3), Sequence(6, 1, 3), Sequence(3, 0, 3))

    for types, quant_bit in (("f32 f32", 0), ("f16 int8 f32", 8)):
        name = f"reads-later-writer-{types.replace(' ', '-')}"
        about = "A sequence attends to slots that a later sequence of the same call stores: it sees the new values."
        rules = "order.stores-first order.shared-slots"
        case = over_cache(name, about, types, (4, 2), 8, proves=rules, quant_bit=quant_bit)
        yield case.call(Sequence(4, 1, 3), Sequence(0, 4, 3))


def pages() -> Iterator[Case]:
    """Pages that are like no block of a kernel."""
    about = "Pages of 3 tokens that begin anywhere and come in any order; the last one reaches beyond the cache."
    rules = "cache-mode.1 pages.unaligned slots.paged"
    for types, quant_bit in (("f32 f32", 0), ("f16 int4 f16", 4)):
        attributes = dict(cache_mode=1, page_size=3, quant_bit=quant_bit)
        name = f"pages-of-3-{types.replace(' ', '-')}"
        case = over_cache(name, about, types, (2, 1), 8, proves=rules, max_t=13, **attributes)
        yield case.call(Sequence(4, 1, (7, 4)), Sequence(0, 4, (0, 12)), Sequence(1, 1, (10,)))


def bounds() -> Iterator[Case]:
    """max_seqlen and max_kvlen are upper bounds, as scalars and in shape [1]."""
    rules = "bounds.max-seqlen bounds.max-kvlen inputs.shapes"
    about = "max_seqlen and max_kvlen are 64, then 2^63-1, more than any sequence has: in shape [1], then as scalars."
    for case in (
        over_cache("bounds", about, "f32 f32", (4, 2), 8, proves=rules),
        packed("packed-bounds", about, "f32", (4, 2), 8, proves=rules),
    ):
        case.call(Sequence(0, 3, 0), max_seqlen=indices([64]), max_kvlen=indices([64]))
        yield case.call(Sequence(3, 1, 0), max_seqlen=indices(2**63 - 1), max_kvlen=indices(2**63 - 1))


def scale_untouched() -> Iterator[Case]:
    """A scale that is given without quantization."""
    about = "quant_bit 0 with a scale: left untouched, whatever its shape. Nor has quant_group an effect."
    rules = "scale.unused attributes.group-divides"
    case = over_cache("scale-unused", about, "f16 f16 f32", (2, 1), 8, proves=rules, quant_group=3)
    case.set_scale(random_values("scale-unused scale", (3, 5), "float32"))
    yield case.call(Sequence(2, 1, 4), Sequence(0, 2, 0))


def chunks() -> Iterator[Case]:
    """A prompt in one call and in chunks, beside a sequence that decodes."""
    for number, types in enumerate(("f32 f32", "f16 f16", "f32 f16", "f32 int8 f16", "f16 int4 f32")):
        label = types.replace(" ", "-")
        attributes = dict(cache_layout=number % 4, quant_bit=TYPES[types])
        about = "A prompt of 4 + 3 + 2 tokens beside a sequence that decodes, then both decode."
        rules = f"causal-mask inputs.packed equivalence cache-layout.{number % 4}"
        case = over_cache(f"chunked-{label}", about, types, (4, 2), 16, proves=rules, max_t=16, **attributes)
        case.call(Sequence(0, 1, 11), Sequence(0, 4, 1))
        case.call(Sequence(1, 1, 11), Sequence(4, 3, 1), decoding_batches=1)
        case.call(Sequence(2, 1, 11), Sequence(7, 2, 1), decoding_batches=1)
        yield case.call(Sequence(3, 1, 11), Sequence(9, 1, 1), decoding_batches=2)


def long() -> Iterator[Case]:
    """Lengths at which sums have many terms; the tolerance grows with them."""
    rules = "scores weights precision"
    about = "1500 keys in int4 codes: a decode step and three tokens of a prompt."
    attributes = dict(quant_bit=4, quant_group=32)
    case = over_cache("long-int4", about, "f16 int4 f16", (8, 1), 64, proves=rules, max_t=1700, **attributes)
    yield case.call(Sequence(1499, 1, 100), Sequence(150, 3, 0), decoding_batches=1)
    about = "500 keys in int8 codes, in pages of 16."
    attributes = dict(quant_bit=8, quant_group=64, cache_mode=1, page_size=16, cache_layout=3)
    case = over_cache("long-int8-paged", about, "f32 int8 f32", (4, 2), 64, proves=rules, max_t=512, **attributes)
    yield case.call(Sequence(499, 1, tuple(16 * (7 * page % 32) for page in range(32))))
    about = "300 keys of float32: more than any block of keys that a kernel takes at once is likely to be a part of."
    case = over_cache("long-f32", about, "f32 f32", (2, 1), 40, proves=rules, max_t=300)
    yield case.call(Sequence(295, 5, 0))
    about = "A prompt of 70 tokens with ALiBi."
    alibi = dict(proves="alibi precision", is_alibi=1)
    yield over_cache("long-prompt-alibi", about, "f32 f16", (3, 1), 16, max_t=70, **alibi).call(Sequence(0, 70, 0))
    about = "A prompt of 70 tokens."
    rules = "causal-mask precision"
    yield over_cache("long-prompt", about, "f16 f16", (2, 1), 40, proves=rules, max_t=72).call(Sequence(0, 70, 1))


def non_finite() -> Iterator[Case]:
    """NaN and infinity reach who sees them and nobody else."""
    batch = (Sequence(2, 1, 0), Sequence(0, 3, 4), Sequence(1, 2, 8))
    for types, quant in (("f32 f32", {}), ("f16 int8 f16", dict(quant_bit=8))):
        label = types.replace(" ", "-")
        for tensor in ("current_key", "current_value", "query"):
            about = f"A NaN in {tensor} of one token: the other sequences, and queries before it, do not see it."
            rules = "non-finite.reach"
            if tensor != "query":
                rules += " weights.hidden" + (" non-finite.nan" if quant else "")
            name = f"nan-in-{tensor.replace('_', '-')}-{label}"
            case = over_cache(name, about, types, (2, 1), 8, proves=rules, **quant)
            values = getattr(case.inputs(*batch), tensor)
            values[2, 0, 3] = np.nan
            yield case.call(*batch, **{tensor: values})
        about = "Slots that nobody uses hold NaN and infinity."
        rules = "non-finite.reach untouched-slots"
        case = over_cache(f"nan-in-unused-slots-{label}", about, types, (2, 1), 8, proves=rules, **quant)
        states = (case.scale, case.first_scale) if quant else (case.cache, case.first_cache)
        for filled in states:
            filled[[3, 7, 11]] = np.array([np.nan, np.inf, -np.inf])[:, None, None, None, None]
        yield case.call(*batch)
    about = "attn_mask hides a key and a value of NaN with -inf: whom it hides them from does not see them."
    rules = "non-finite.reach weights.hidden attn-mask"
    case = over_cache("nan-behind-mask", about, "f32 f32", (2, 1), 8, proves=rules, is_causal=0)
    inputs = case.inputs(*batch)
    inputs.current_key[1, 0, 0] = inputs.current_value[2, 0, :] = np.nan
    values = mask(case, batch, forbidden=0.0)
    values[1:3, 3:5] = -np.inf  # queries 0 and 1 of sequence 1: its keys 0 and 1 are hidden; query 2 sees them
    yield case.call(*batch, current_key=inputs.current_key, current_value=inputs.current_value, attn_mask=values)
    about = "An infinite value makes infinite what sees it."
    case = over_cache("infinite-value", about, "f32 f32", (2, 1), 8, proves="non-finite.reach")
    value = random_values("infinite-value current_value", (6, 1, 8), "float32")
    value[4, 0, :2] = np.inf, -np.inf
    yield case.call(*batch, current_value=value)

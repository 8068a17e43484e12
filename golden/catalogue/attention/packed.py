"""MultiHeadAttention: packed keys and values, whose number has nothing to do with the number of queries."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from ..bits import random_values
from ..case import Case, Sequence, indices
from .case import mask, packed

BATCH = (Sequence(3, 1, 0), Sequence(2, 2, 0), Sequence(0, 0, 0), Sequence(4, 0, 0), Sequence(0, 4, 0))


def cases() -> Iterator[Case]:
    for number, (head_dim, T1) in enumerate(product((40, 64, 80, 96, 128, 256), ("f32", "f16"))):
        heads = ((2, 2), (8, 2), (8, 1), (3, 1))[number % 4]
        about = f"{heads[0]} heads on {heads[1]}, head_dim {head_dim}, {T1}: decode steps, a prompt, and no queries."
        rules = "types.legal scores weights precision starts.empty"
        if heads[1] not in (1, heads[0]):
            rules += " heads.grouped"
        if heads[1] == heads[0]:
            rules += " attributes.defaults"
        case = packed(f"packed-{T1}-head-dim-{head_dim}", about, T1, heads, head_dim, proves=rules)
        yield case.call(*BATCH, decoding_batches=1)
    for is_causal, decoding_batches in product((0, 1), (0, 2, 5)):
        about = f"is_causal {is_causal}, {decoding_batches} of five sequences decoding."
        name = f"packed-causal{is_causal}-decoding{decoding_batches}"
        rules = "causal-mask causal-mask.decoding" if decoding_batches else "causal-mask"
        case = packed(name, about, "f32", (2, 1), 8, proves=rules, is_causal=is_causal)
        yield case.call(*BATCH, decoding_batches=decoding_batches)
    for is_alibi, is_causal in product((0, 1), (0, 1)):
        name = f"packed-more-queries-than-keys-causal{is_causal}-alibi{is_alibi}"
        about = "Four queries on two keys, three on none: if causal, the first two see no key either, and give zeros."
        rules = "rows-without-keys heads.grouped"
        if is_alibi == 1:
            rules += " alibi alibi.slopes" + (" alibi.causal" if is_causal == 0 else "")
        elif is_causal == 1:
            rules += " causal-mask"
        case = packed(name, about, "f32", (6, 2), 8, proves=rules, is_alibi=is_alibi, is_causal=is_causal)
        changes = dict(seqstarts=indices([0, 4, 7]), kvstarts=indices([0, 2, 2]))
        changes["query"] = random_values(f"{name} queries", (7, 6, 8), "float32")
        for tensor in ("key", "value"):
            changes[tensor] = random_values(f"{name} {tensor}", (2, 2, 8), "float32")
        bounds = dict(max_seqlen=indices([4]), max_kvlen=indices([2]))
        yield case.call(Sequence(0, 0, 0), Sequence(0, 0, 0), **changes, **bounds)
    for rank, T1 in product((2, 3), ("f32", "f16")):
        rules = "attn-mask attn-mask.beside attn-mask.padding attn-mask.width"
        about = f"A mask of rank {rank}, wider than needed."
        case = packed(f"packed-mask{rank}-{T1}", about, T1, (4, 2), 8, proves=rules, is_alibi=rank - 2)
        yield case.call(*BATCH, attn_mask=mask(case, BATCH, heads=4 if rank == 3 else None, width=32))
    about = "decoding_batches far beyond 32 bits counts as B."
    rules = "decoding-batches causal-mask.decoding"
    case = packed("packed-decoding-huge", about, "f32", (2, 1), 8, proves=rules)
    yield case.call(*BATCH, decoding_batches=2**63 - 1)
    about = "A mask of shape [0] and type float16 is no mask."
    case = packed("packed-mask-empty", about, "f32", (4, 2), 8, proves="attn-mask.empty")
    yield case.call(*BATCH, attn_mask=np.zeros(0, np.float16))
    case = packed("packed-batch-of-none", "No sequence: an empty output.", "f16", (4, 2), 8, proves="starts.empty")
    yield case.call()
    name = "packed-nan-in-another-sequence"
    about = "A NaN key of one sequence reaches no other."
    case = packed(name, about, "f32", (2, 1), 8, proves="non-finite.reach")
    key = random_values(name, (16, 1, 8), "float32")
    key[5] = np.nan
    yield case.call(*BATCH, key=key)
    name = "packed-nan-behind-mask"
    about = "attn_mask hides a key and a value of NaN with -inf from two queries of three: those do not see them."
    batch = (Sequence(2, 1, 0), Sequence(0, 3, 0))
    case = packed(name, about, "f32", (2, 1), 8, proves="weights.hidden non-finite.reach attn-mask", is_causal=0)
    inputs = case.inputs(*batch)
    inputs.key[3, 0, 0] = inputs.value[4, 0, :] = np.nan
    values = mask(case, batch, forbidden=0.0)
    values[1:3, 3:5] = -np.inf
    yield case.call(*batch, key=inputs.key, value=inputs.value, attn_mask=values)

"""Which keys a query sees, and what is added to its scores: causal mask, attn_mask and ALiBi."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..bits import random_values
from ..case import Case, Sequence, indices
from .case import mask, over_cache

# A decode step, two new tokens of a speculative step, the chunk of a prompt, nothing, a prompt.
BATCH = (Sequence(3, 1, 0), Sequence(2, 2, 4), Sequence(1, 3, 8), Sequence(0, 0, 12), Sequence(0, 4, 12))
# The same of unequal lengths.
UNEQUAL = (Sequence(1, 1, 0), Sequence(5, 2, 2), Sequence(0, 3, 9), Sequence(2, 1, 12), Sequence(1, 4, 15))


def causal() -> Iterator[Case]:
    """is_causal with every kind of decoding_batches."""
    for is_causal in (1, 0):
        for decoding_batches, what in ((0, "none"), (1, "one"), (2, "two"), (5, "all"), (9, "more than there are")):
            about = (
                f"is_causal {is_causal}, {what} of five sequences decoding: those see every key, with two tokens too;"
                f" the others, if causal, see what is before them."
            )
            types = ("f32 f32", "f16 f16")[decoding_batches % 2]
            name = f"causal{is_causal}-decoding{decoding_batches}"
            rules = "causal-mask causal-mask.decoding" if decoding_batches else "causal-mask"
            if decoding_batches > len(BATCH):
                rules += " decoding-batches"
            case = over_cache(name, about, types, (2, 1), 8, proves=rules, max_t=16, is_causal=is_causal)
            yield case.call(*BATCH, decoding_batches=decoding_batches)
    about = "is_causal left out is 1; decoding_batches 0."
    rules = "attributes.defaults causal-mask"
    yield over_cache("causal-default", about, "f32 f32", (2, 2), 8, proves=rules, max_t=16).call(*BATCH)
    about = "decoding_batches far beyond 32 bits counts as B."
    rules = "decoding-batches causal-mask.decoding"
    case = over_cache("decoding-huge", about, "f32 f32", (2, 2), 8, proves=rules, max_t=16)
    yield case.call(*BATCH, decoding_batches=2**63 - 1)


def masks() -> Iterator[Case]:
    """attn_mask of rank 2 and 3, as wide as needed or wider, with NaN wherever nobody may read."""
    total = sum(sequence.start_pos + sequence.seqlen for sequence in BATCH)
    for rank in (2, 3):
        for width in (total, 16 * (total // 16 + 1)):
            for is_causal in (1, 0):
                for types in ("f32 f32", "f16 f16", "f16 int8 f32"):
                    quant = dict(quant_bit=8) if "int8" in types else {}
                    name = f"mask{rank}-width{width}-causal{is_causal}-{types.replace(' ', '-')}"
                    about = (
                        f"A mask of rank {rank} with {width} columns for {total} keys, is_causal {is_causal}: each"
                        " sequence's block is added; everything else is NaN and never read."
                    )
                    rules = "attn-mask attn-mask.padding"
                    if is_causal == 1:
                        rules += " attn-mask.beside"
                    if width > total:
                        rules += " attn-mask.width"
                    quant |= dict(is_causal=is_causal)
                    case = over_cache(name, about, types, (4, 2), 8, proves=rules, max_t=16, **quant)
                    values = mask(case, BATCH, heads=4 if rank == 3 else None, width=width)
                    yield case.call(*BATCH, attn_mask=values, decoding_batches=rank - 1)

    name = "mask-forbids-rows"
    about = "A row whose mask forbids every key gives zeros, beside rows that see one key or all."
    case = over_cache(name, about, "f32 f32", (2, 1), 8, proves="rows-without-keys", max_t=16, is_causal=0)
    values = mask(case, BATCH, forbidden=0.0)
    values[(1, 4, 6), :] = np.where(np.isnan(values[(1, 4, 6), :]), np.nan, -np.inf)
    values[7, 11:14] = -np.inf
    yield case.call(*BATCH, attn_mask=values)

    name = "mask-and-causal-forbid-rows"
    about = "The causal mask leaves a query keys that attn_mask forbids: zeros."
    case = over_cache(name, about, "f16 f16", (2, 2), 8, proves="rows-without-keys attn-mask.beside")
    values = mask(case, (Sequence(0, 3, 2),), forbidden=0.0)
    values[:, 0] = -np.inf
    values[1, 1] = -np.inf
    yield case.call(Sequence(0, 3, 2), attn_mask=values)

    about = "-10000 in place of -inf: such keys are seen, and count where there is no other."
    case = over_cache("mask-finite", about, "f32 f32", (2, 2), 8, proves="attn-mask weights", is_causal=0)
    values = mask(case, (Sequence(2, 2, 2),), forbidden=0.0)
    values[0, 1:] = -10000
    values[1, :] = -10000
    yield case.call(Sequence(2, 2, 2), attn_mask=values)

    for types, size in (("f32 f32", 30000), ("f16 f16", 200)):
        name = f"mask-of-large-numbers-{types.replace(' ', '-')}"
        about = f"Every score of a row is far below -{size}, or far above: what counts is how far they are apart."
        case = over_cache(name, about, types, (2, 2), 8, proves="attn-mask weights", is_causal=0)
        values = mask(case, (Sequence(2, 3, 2),), forbidden=0.0)
        values += np.array([-2 * size, 2 * size, -3 * size])[:, None].astype(values.dtype)
        yield case.call(Sequence(2, 3, 2), attn_mask=values)

    about = "Every score of a row is far below a number that is often taken for infinite: weights are as without it."
    case = over_cache("mask-of-bounds", about, "f32 f32", (2, 2), 8, proves="attn-mask weights", is_causal=0)
    values = mask(case, (Sequence(2, 6, 2),), forbidden=0.0)
    values += np.array([-300, -3000, -9000, -30000, -80000, -2e5], np.float32)[:, None]
    yield case.call(Sequence(2, 6, 2), attn_mask=values)

    about = "NaN in the blocks of attn_mask is added like any number: who sees its key gives NaN, and no other query."
    rules = "attn-mask non-finite.reach"
    case = over_cache("mask-nan-within", about, "f32 f32", (2, 2), 8, proves=rules, max_t=16, is_causal=0)
    values = mask(case, BATCH, width=32)
    values[1, 5] = values[5, 16] = np.nan
    yield case.call(*BATCH, attn_mask=values)

    for rank in (2, 3):
        name = f"mask{rank}-numbers-outside"
        about = f"A mask of rank {rank} with numbers outside of the blocks, too: who adds them is not told by NaN."
        case = over_cache(
            name, about, "f32 f32", (4, 2), 8, proves="attn-mask attn-mask.padding", max_t=16, is_causal=0
        )
        shape = (4, 10, 32) if rank == 3 else (10, 32)
        yield case.call(*BATCH, attn_mask=random_values(f"{name} mask", shape, "float32"))


def empty_masks() -> Iterator[Case]:
    """A tensor without elements counts as absent: real exports always give one."""
    for shape, element in (((0,), "float16"), ((0, 9), "float32"), ((2, 0, 1), "int64")):
        values = np.zeros(shape, element)
        about = f"A mask of shape {list(values.shape)} and type {values.dtype} is no mask."
        case = over_cache(f"mask-empty-{element}", about, "f32 f32", (2, 1), 8, proves="attn-mask.empty", max_t=16)
        yield case.call(*BATCH, attn_mask=values, decoding_batches=1)


def as_exported() -> Iterator[Case]:
    """What exports give in place of inputs that they do not use: tensors without elements."""
    about = "An unquantized export: scale and attn_mask are float16 of shape [0], whatever the other types."
    rules = "attn-mask.empty scale.unused"
    case = over_cache("mask-and-scale-as-exported", about, "f32 f32 f16", (4, 2), 8, proves=rules, max_t=16)
    case.set_scale(np.zeros(0, np.float16))
    yield case.call(*BATCH, attn_mask=np.zeros(0, np.float16), decoding_batches=1)


def alibi() -> Iterator[Case]:
    """Slopes of head counts that are powers of two and of others; causal for every sequence, with masks beside it."""
    for num_heads in (1, 2, 4, 5, 6, 8, 12, 16, 24):
        about = f"ALiBi with {num_heads} heads, for decode steps, chunks and prompts."
        types = ("f32 f32", "f16 f16")[num_heads % 2]
        alibi = dict(proves="alibi alibi.slopes", max_t=16, is_alibi=1)
        case = over_cache(f"alibi-heads{num_heads}", about, types, (num_heads, 1), 8, **alibi)
        yield case.call(*BATCH, decoding_batches=1)
    about = "ALiBi is causal for every sequence, with is_causal 0 and all sequences decoding too."
    attributes = dict(is_alibi=1, is_causal=0)
    case = over_cache("alibi-is-causal", about, "f32 f32", (4, 2), 8, proves="alibi.causal", max_t=16, **attributes)
    yield case.call(*BATCH, decoding_batches=5)
    for rank in (2, 3):
        about = f"ALiBi is added to a mask of rank {rank}."
        rules = "attn-mask attn-mask.beside alibi"
        case = over_cache(f"alibi-mask{rank}", about, "f32 f32", (4, 2), 8, proves=rules, max_t=16, is_alibi=1)
        yield case.call(*BATCH, attn_mask=mask(case, BATCH, heads=4 if rank == 3 else None, width=32))


def unequal() -> Iterator[Case]:
    """Each mask over sequences of which each has a length of its own."""
    for name, rules, attributes, rank in (
        ("causal", "causal-mask", {}, None),
        ("alibi", "alibi alibi.causal", dict(is_alibi=1, is_causal=0), None),
        ("mask2", "attn-mask", dict(is_causal=0), 2),
        ("mask3", "attn-mask attn-mask.beside", {}, 3),
    ):
        name = f"{name}-unequal-lengths"
        about = "Sequences of unequal numbers of queries and keys, under bounds that are no length of any."
        case = over_cache(name, about, "f32 f32", (4, 2), 8, proves=rules, max_t=24, **attributes)
        changes = {}
        if rank is not None:  # with numbers outside of the blocks, which tell who reads them better than NaN does
            values = mask(case, UNEQUAL, heads=4 if rank == 3 else None)
            outside = random_values(f"{name} outside", values.shape, "float32")
            changes["attn_mask"] = np.where(np.isnan(values), outside, values)
        yield case.call(*UNEQUAL, max_seqlen=indices([6]), max_kvlen=indices([9]), **changes)

"""The attention's mass, an optional output: batches, masks and types that decide which queries it is a sum over."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..case import Case, Sequence, quantized
from .case import mask, over_cache, packed, small_scores

RULES = "mass starts.empty"
# A decode step, the second chunk of a prompt, a prompt, one without queries, and one without tokens.
BATCH = (Sequence(4, 1, 0), Sequence(3, 3, 5), Sequence(0, 4, 11), Sequence(3, 0, 15), Sequence(0, 0, 18))


def cases() -> Iterator[Case]:
    for number, (types, quant_bit) in enumerate({"f32 f32": 0, "f16 int8 f16": 8, "f32 int4 f16": 4}.items()):
        about = f"{types.replace(' ', '/')}, 6 heads on 2: a decode step, a chunk, a prompt, idle ones; then decode."
        given = dict(cache_layout=number, **quantized(types, quant_bit, 8))
        case = over_cache(
            f"mass-{types.replace(' ', '-')}", about, types, (6, 2), 16, proves=RULES, max_t=19, **given
        ).with_mass()
        small_scores(case, *BATCH, decoding_batches=1)
        yield small_scores(case, Sequence(5, 1, 0), Sequence(6, 1, 5), Sequence(4, 1, 11))
    about = "attn_mask for each head: keys that some queries do not see, and queries that see none."
    case = over_cache("mass-mask3", about, "f16 f16", (4, 2), 8, proves=f"{RULES} attn-mask", max_t=19).with_mass()
    values = mask(case, BATCH, heads=4, width=20, forbidden=0.4)
    for row in (values[1, 2], values[2, 5]):
        row[~np.isnan(row)] = -np.inf
    yield small_scores(case, *BATCH, attn_mask=values)
    about = "ALiBi, packed: three queries on five keys, and four on four."
    case = packed("packed-mass-alibi", about, "f32", (3, 1), 8, proves="mass alibi", is_alibi=1).with_mass()
    yield small_scores(case, Sequence(2, 3), Sequence(0, 4))
    for decoding_batches in (0, 1):
        about = f"{decoding_batches} of two sequences decoding, packed: the causal mask is that of attn_output."
        name = f"packed-mass-decoding{decoding_batches}"
        case = packed(name, about, "bf16", (4, 2), 8, proves="mass causal-mask").with_mass()
        yield small_scores(case, Sequence(2, 3), Sequence(0, 4), decoding_batches=decoding_batches)
    about = "A NaN in a query of the second sequence: the masses of the keys that its head sees are NaN, no others."
    case = packed("packed-mass-nan", about, "f32", (2, 1), 8, proves="mass non-finite.reach").with_mass()
    batch = (Sequence(3, 1), Sequence(2, 2), Sequence(0, 2))
    query = case.inputs(*batch).query / np.float32(16)
    query[1, 1, 3] = np.nan
    yield case.call(*batch, query=query)
    about = "600 keys and 21 queries of 3 heads on 1: more than a block of keys, or of queries, of a kernel."
    case = packed("packed-mass-long", about, "f32", (3, 1), 8, proves="mass precision").with_mass()
    yield small_scores(case, Sequence(579, 21), Sequence(600, 1))
    about = "130 keys and 9 queries of 2 heads on 1, whose scores have a soft cap."
    case = packed("packed-mass-softcap", about, "f32", (2, 1), 8, proves="mass scores.softcap", softcap=1.5).with_mass()
    yield small_scores(case, Sequence(121, 9), Sequence(65, 2))
    about = "130 keys of float16 and 9 queries of 2 heads on 1: more than a block of keys of a kernel."
    case = packed("packed-mass-long-f16", about, "f16", (2, 1), 16, proves="mass precision").with_mass()
    yield small_scores(case, Sequence(121, 9), Sequence(65, 2))

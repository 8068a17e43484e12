"""Many sequences, key heads, tokens of a prompt, pages, layers and neighbors of a group."""

from __future__ import annotations

from collections.abc import Iterator

from ..case import Case, Sequence, quantized
from ..large import LENGTHS, sequences
from .case import mask, over_cache, packed, small_scores


def large(
    name: str,
    about: str,
    types: str,
    heads: tuple[int, int],
    head_dim: int,
    proves: str,
    lengths: list[tuple[int, int]],
    **attributes: int,
) -> Case:
    """A case of one call, in a cache that it fills."""
    batch, max_t = sequences(lengths, attributes.get("page_size", 0))
    case = over_cache(f"large-{name}", about, types, heads, head_dim, proves=proves, max_t=max_t, **attributes)
    return case.call(*batch)


def cases() -> Iterator[Case]:
    about = "20 sequences, 24 query heads on 12, of every kind."
    rules, lengths = "heads.grouped inputs.packed causal-mask", [LENGTHS[b % 5] for b in range(20)]
    paged = dict(quant_bit=8, quant_group=4, page_size=3, cache_mode=1, cache_layout=3)
    yield large("heads24-batch20", about, "f16 int8 f16", (24, 12), 4, rules, lengths, **paged)
    lengths = [((1, 1), (0, 2), (2, 0))[b % 3] for b in range(300)]
    yield large("batch300", "300 sequences.", "f16 f16", (1, 1), 2, "inputs.packed equivalence", lengths)
    about, rules = "A prompt of 260 tokens behind 20 others.", "alibi causal-mask"
    yield large("prompt260-alibi", about, "f16 f16", (1, 1), 4, rules, [(20, 260)], is_alibi=1)
    about, rules = "A decode step over 300 pages of 2, and a chunk beside it.", "cache-mode.1 pages.unaligned"
    paged = dict(page_size=2, cache_mode=1, cache_layout=1)
    yield large("pages300", about, "f32 f32", (2, 1), 4, rules, [(598, 1), (2, 2)], **paged)
    rules, lengths = "layer untouched-layers quantizing.groups", [(1, 1), (0, 1)]
    attributes = dict(num_layer=40, layer_idx=38, quant_bit=4, quant_group=256)
    about = "Layer 38 of 40, groups of 256."
    yield large("layers40-group256", about, "f16 int4 f16", (2, 1), 256, rules, lengths, **attributes)
    about = "10 tokens on 300 keys of 10 sequences, under a mask with a plane for each of 10 heads."
    batch, _ = sequences([(29, 1)] * 10)
    case = packed("large-mask", about, "f16", (10, 10), 2, proves="attn-mask attn-mask.beside causal-mask")
    yield case.call(*batch, attn_mask=mask(case, batch, heads=10))
    for types, quant_bit in (("f16 f16", 0), ("f16 int8 f16", 8)):
        about = "530 keys, 32 rows of queries for one key head, beside a decode step."
        given = dict(max_t=560, cache_layout=quant_bit // 4) | quantized(types, quant_bit, 16)
        name = f"large-rows-of-530-keys-{types.replace(' ', '-')}"
        case = over_cache(name, about, types, (4, 1), 16, proves="weights precision heads.grouped", **given)
        yield small_scores(case, Sequence(9, 1, 545), Sequence(522, 8, 0), decoding_batches=1)

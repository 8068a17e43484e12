"""bfloat16, an extension: attention over caches of each of its rows of the table of types, and over packed rows."""

from __future__ import annotations

from collections.abc import Iterator

from ..bfloat16 import TYPES
from ..case import Sequence
from .case import AttentionCase, mask, over_cache, packed
from .packed import BATCH


def cases() -> Iterator[AttentionCase]:
    """Everything of this module."""
    for number, (types, quant_bit) in enumerate(TYPES.items()):
        cache_layout, cache_mode, head_dim = number % 4, number % 2, (16, 40)[number // 2 % 2]
        attributes = dict(cache_mode=cache_mode, cache_layout=cache_layout)
        if quant_bit != 0:
            attributes |= dict(quant_bit=quant_bit, quant_group=8)
        if cache_mode == 1:
            attributes |= dict(page_size=2)
        name = f"layout{cache_layout}-{('offset', 'paged')[cache_mode]}-{types.replace(' ', '-')}"
        about = f"{types.replace(' ', '/')}: a decode step, a prefill and the second chunk of a prompt in one call."
        case = over_cache(name, about, types, (4, 2), head_dim, proves="types.legal equivalence", max_t=8, **attributes)
        decode, prefill, chunk = (0, 6, 3) if cache_mode == 0 else ((3, 5), (6,), (1, 0))
        sequences = (Sequence(2, 1, decode), Sequence(0, 2, prefill), Sequence(1, 2, chunk))
        yield case.call(*sequences, decoding_batches=1)
    for head_dim, rank in ((40, 2), (64, 3)):
        about = f"head_dim {head_dim}, a mask of rank {rank}: decode steps, a prompt, and no queries."
        rules = "types.legal scores weights precision attn-mask"
        case = packed(f"packed-bf16-head-dim-{head_dim}", about, "bf16", (4, 2), head_dim, proves=rules)
        yield case.call(*BATCH, attn_mask=mask(case, BATCH, heads=4 if rank == 3 else None, width=32))

"""Attention over caches of each row of the table of types that is an extension, and over packed rows of bfloat16."""

from __future__ import annotations

from collections.abc import Iterator

from ..case import Sequence, quantized
from ..extensions import TYPES
from .case import AttentionCase, mask, over_cache, packed
from .packed import BATCH


def cases() -> Iterator[AttentionCase]:
    for number, (types, quant_bit) in enumerate(TYPES.items()):
        cache_layout, cache_mode, head_dim = number % 4, number % 2, (16, 40)[number // 2 % 2]
        attributes = dict(cache_mode=cache_mode, cache_layout=cache_layout) | quantized(types, quant_bit, 8)
        if cache_mode == 1:
            attributes |= dict(page_size=2)
        name = f"layout{cache_layout}-{('offset', 'paged')[cache_mode]}-{types.replace(' ', '-')}"
        about = f"{types.replace(' ', '/')}: a decode step, a prefill and the second chunk of a prompt in one call."
        rules = "types.legal equivalence" + (" quantizing.float8" if "fp8" in types else "")
        case = over_cache(name, about, types, (4, 2), head_dim, proves=rules, max_t=8, **attributes)
        decode, prefill, chunk = (0, 6, 3) if cache_mode == 0 else ((3, 5), (6,), (1, 0))
        sequences = (Sequence(2, 1, decode), Sequence(0, 2, prefill), Sequence(1, 2, chunk))
        yield case.call(*sequences, decoding_batches=1)
    for head_dim, rank in ((40, 2), (64, 3)):
        about = f"head_dim {head_dim}, a mask of rank {rank}: decode steps, a prompt, and no queries."
        rules = "types.legal scores weights precision attn-mask"
        case = packed(f"packed-bf16-head-dim-{head_dim}", about, "bf16", (4, 2), head_dim, proves=rules)
        yield case.call(*BATCH, attn_mask=mask(case, BATCH, heads=4 if rank == 3 else None, width=32))

"""`python -m kvcache_ops size`: bytes per token in every format of cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvcache_ops import _native
from kvcache_ops.ops._cache_spec import T1, T2, T3, CacheSpec

GROUPS = (8, 32, 128)
"""The sizes of groups in the table, where none are asked for."""

GIB = 2**30


def table(layers: int, heads: int, head_dim: int, quant_groups: Sequence[int] | None = None) -> Iterator[str]:
    """The lines of the table: each format of cache, its bytes per token, and the tokens that a GiB has room for.

    `current` are the types of keys and values that can be kept so. Raises KvCacheError, with the library's sentence,
    for anything but a cache.
    """
    rows = list(formats(layers, heads, head_dim, quant_groups))
    yield f"{'cache':<12} {'scale':<8} {'group':>5} {'current':<27} {'bytes per token':>15} {'tokens per GiB':>15}"
    for spec, current in rows:
        group = str(spec.quant_group) if spec.quant_bit else "-"
        kept = f"{spec.cache_dtype:<12} {spec.scale_dtype or '-':<8} {group:>5} {current:<27}"
        yield f"{kept} {spec.bytes_per_token:>15,} {GIB // spec.bytes_per_token:>15,}"


def formats(
    layers: int, heads: int, head_dim: int, quant_groups: Sequence[int] | None = None
) -> Iterator[tuple[CacheSpec, str]]:
    """A cache of one token in each legal format, and the types T1 that it is for; by the table of types."""
    current: dict[tuple[int, T2, T3 | None], list[T1]] = {}
    for quant_bit, t1, t2, t3 in _native.legal_types():
        current.setdefault((quant_bit, t2, t3), []).append(t1)
    groups = quant_groups or [group for group in GROUPS if head_dim % group == 0] or [head_dim]
    for (quant_bit, t2, t3), t1s in current.items():
        for group in groups if quant_bit else groups[:1]:
            spec = CacheSpec(1, heads, head_dim, t1s[0], layers, 0, quant_bit, group, cache_dtype=t2, scale_dtype=t3)
            yield spec, ", ".join(t1s)

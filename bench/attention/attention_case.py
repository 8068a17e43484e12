"""A call of `MultiHeadCacheAttention` that is measured: its shape, types and placement, and what it must move."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cases import HALF, Format, Lengths, Traffic
from kvcache import BITS


@dataclass(frozen=True)
class Heads:
    """Query heads, key heads, and elements of a head."""

    query: int
    key: int
    dim: int


MODEL, SMALL = Heads(32, 8, 128), Heads(4, 1, 64)


@dataclass(frozen=True)
class AttentionCase:
    """A causal call; cold, it never finds keys or values in a cache of the processor."""

    lengths: Lengths
    format: Format
    cache_layout: int = 3
    paged: bool = True
    heads: Heads = MODEL
    cold: bool = True

    @property
    def name(self) -> str:
        """All that tells it from other cases."""
        mode = "paged" if self.paged else "offset"
        return f"{self.lengths.name} {self.format.name} layout {self.cache_layout} {mode}"

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's key and value in cache and scale."""
        values, form = 2 * self.heads.key * self.heads.dim, self.format
        scales = 0 if form.t3 is None else values // form.quant_group * BITS[form.t3] // 8
        return values * BITS[form.t2] // 8 + scales

    @property
    def traffic(self) -> Traffic:
        """What must be read from the cache once, and the output."""
        output = sum(self.lengths.seqlens) * self.heads.query * self.heads.dim * BITS[self.format.t1] // 8
        return Traffic(sum(self.lengths.kvlens) * self.token_bytes, output)

    @property
    def operations(self) -> int:
        """Multiplications and additions of both matrix products, of those keys alone that a query sees."""
        pairs = sum(n * m - n * (n - 1) // 2 for n, m in zip(self.lengths.seqlens, self.lengths.kvlens))
        return 4 * pairs * self.heads.query * self.heads.dim

    def of(self, form: Format) -> AttentionCase:
        """The same call in another format."""
        return replace(self, format=form)

    @property
    def tolerance(self) -> float:
        """How far an element may be from the oracle's, as a part of the largest value."""
        return 2**-9 if self.format.t1 == HALF else 2**-14

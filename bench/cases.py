"""The calls that are measured: types, layouts, modes and lengths, and what such a call moves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from onnx import TensorProto

PAGE_SIZE = 128

FLOAT, HALF, INT8, INT4 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.INT4
NUMPY_TYPES = {FLOAT: np.float32, HALF: np.float16, INT8: np.int8, INT4: np.uint8}  # int4: two elements in a byte
BITS = {element: np.dtype(number).itemsize * 8 for element, number in NUMPY_TYPES.items()} | {INT4: 4}
SHORT = {FLOAT: "f32", HALF: "f16", INT8: "int8", INT4: "int4"}


@dataclass(frozen=True)
class Format:
    """The types T1, T2, T3 of the specification and the quantization attributes."""

    t1: int
    t2: int
    t3: int | None = None
    quant_bit: int = 0
    quant_group: int = 8

    @property
    def name(self) -> str:
        """As in a case's name: `f16`, or `int8-g32-f16-s32` for float16 values with float32 scales."""
        if self.t3 is None:
            return SHORT[self.t1]
        return f"{SHORT[self.t2]}-g{self.quant_group}-{SHORT[self.t1]}-s{BITS[self.t3]}"


F32, F16 = Format(FLOAT, FLOAT), Format(HALF, HALF)


def quantized(t2: int, groups: tuple[int, ...], t1: int = HALF) -> list[Format]:
    """Quantized formats of a cache type, whose scales have the type of the values."""
    return [Format(t1, t2, t1, BITS[t2], group) for group in groups]


@dataclass(frozen=True)
class Lengths:
    """The sequences of a call."""

    name: str
    kvlens: tuple[int, ...]
    seqlens: tuple[int, ...]


def decode(batch: int, kvlen: int) -> Lengths:
    """One new token for each of equally long sequences."""
    return Lengths(f"decode-b{batch}-kv{kvlen}", (kvlen,) * batch, (1,) * batch)


def prefill(batch: int, seqlen: int) -> Lengths:
    """Sequences that begin."""
    return Lengths(f"prefill-b{batch}-kv{seqlen}", (seqlen,) * batch, (seqlen,) * batch)


def ragged(longest: int, short: int, batch: int) -> Lengths:
    """One long sequence among short ones."""
    kvlens = (short,) * (batch // 2) + (longest,) + (short,) * (batch - batch // 2 - 1)
    return Lengths(f"decode-ragged-b{batch}-kv{longest}", kvlens, (1,) * batch)


@dataclass(frozen=True)
class Heads:
    """Key heads, elements of a head, and query heads; without these a call is one of `KeyValueCache`."""

    key: int
    dim: int
    query: int = 0


CACHE, ATTENTION, SMALL_ATTENTION = Heads(8, 128), Heads(8, 128, 32), Heads(1, 64, 4)


@dataclass(frozen=True)
class Case:
    """A call of an operator; cold, it never finds the cache's rows in a cache of the processor."""

    lengths: Lengths
    format: Format
    cache_layout: int = 3
    paged: bool = True
    heads: Heads = CACHE
    num_repeat: int = 1
    cold: bool = True
    window: int = -1  # keys that a query of attention sees at most
    past_line: int = 0  # bytes between the start of a cache line and the start of each large tensor

    @property
    def name(self) -> str:
        """All that tells it from other cases; what `--filter` looks at."""
        words = [self.lengths.name, self.format.name, f"layout{self.cache_layout}", "paged" if self.paged else "offset"]
        words += [f"r{self.num_repeat}", "cold" if self.cold else "warm"]
        words += [f"window{self.window}"] * (self.window > 0)
        return ".".join(words + [f"past{self.past_line}"] * (self.past_line > 0))

    def of(self, form: Format) -> Case:
        """The same call in another format."""
        return replace(self, format=form)

    @property
    def values(self) -> int:
        """Elements of one token's key and value."""
        return 2 * self.heads.key * self.heads.dim

    @property
    def cache_bytes(self) -> int:
        """Bytes of one token's key and value in cache and scale."""
        form = self.format
        scales = 0 if form.t3 is None else self.values // form.quant_group * BITS[form.t3] // 8
        return self.values * BITS[form.t2] // 8 + scales

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes that must be read once, and bytes that must be written once; of attention, cache and output."""
        new, every, size = sum(self.lengths.seqlens), sum(self.lengths.kvlens), BITS[self.format.t1] // 8
        if self.heads.query:
            return every * self.cache_bytes, new * self.heads.query * self.heads.dim * size
        values = self.values * size
        return new * values + every * self.cache_bytes, new * self.cache_bytes + every * values * self.num_repeat

    @property
    def operations(self) -> int:
        """Multiplications and additions of attention's matrix products, of those keys alone that a query sees."""
        pairs = sum(n * m - n * (n - 1) // 2 for n, m in zip(self.lengths.seqlens, self.lengths.kvlens))
        return 4 * pairs * self.heads.query * self.heads.dim


# Out of cache: a layer's part of the cache and the outputs are far beyond the last level.
LONG, LONG_REPEATED, LAYOUTS = decode(8, 2048), decode(8, 1024), range(4)
INT8_F16, INT4_F16 = quantized(INT8, (8,))[0], quantized(INT4, (32,))[0]


def table_cases() -> list[Case]:
    """The table in bench/results/operator.md: loads by type, layout and mode, prefill, tensors off a cache line."""
    loads = [Case(LONG, *each) for each in product((F16, F32), LAYOUTS, (True, False))]
    repeated = [Case(LONG_REPEATED, *each, num_repeat=4) for each in product((F16, F32), (3,), (True, False))]
    loads_quantized = [
        Case(LONG, form) for t2, t1 in product((INT8, INT4), (HALF, FLOAT)) for form in quantized(t2, (8, 32, 128), t1)
    ]
    prompts = [Case(prefill(8, 2048), *each) for each in product((F16, INT8_F16, INT4_F16), LAYOUTS)]
    return loads + repeated + loads_quantized + prompts + misaligned()


def misaligned() -> list[Case]:
    """Loads that write where numpy's large arrays begin: 16 bytes past a line."""
    single = [Case(LONG, form, layout, past_line=16) for form, layout in ((F16, 3), (INT8_F16, 3), (INT4_F16, 2))]
    return [*single, Case(LONG_REPEATED, F16, num_repeat=4, past_line=16)]


def quick_cases() -> list[Case]:
    """A sample that touches every axis."""
    loads = [Case(LONG, F16, layout) for layout in (0, 2, 3)]
    others = [Case(LONG_REPEATED, F16, 2, num_repeat=4), Case(LONG, F32, 3, paged=False)]
    lengths = (LONG, prefill(8, 2048))
    some_quantized = [Case(each, *form) for each, form in product(lengths, ((INT8_F16, 3), (INT4_F16, 2)))]
    return loads + others + some_quantized + misaligned()[:1]


def small_cases() -> list[Case]:
    """One sequence of 16 tokens, where the call itself is what costs."""
    return [Case(decode(1, 16), form, 2, cold=False) for form in (F16, INT8_F16)]

"""What is measured: the operator's types, layouts, modes and shapes, and which of their combinations a run takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from onnx import TensorProto

from kvcache import BITS

NUM_HEADS = 8
HEAD_DIM = 128
PAGE_SIZE = 128

FLOAT, HALF, INT8, INT4 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.INT4
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
        """As in a case's name: `f16`, `f32-as-f16`, or `int8-g32-f16-s32` for float16 values with float32 scales."""
        if self.t3 is None:
            return SHORT[self.t1] if self.t1 == self.t2 else f"{SHORT[self.t1]}-as-{SHORT[self.t2]}"
        return f"{SHORT[self.t2]}-g{self.quant_group}-{SHORT[self.t1]}-s{BITS[self.t3]}"

    @property
    def value_bytes(self) -> int:
        """Bytes of one token's key and value in T1."""
        return 2 * NUM_HEADS * HEAD_DIM * BITS[self.t1] // 8

    @property
    def cache_bytes(self) -> int:
        """Bytes of one token's key and value in cache and scale."""
        scales = 0 if self.t3 is None else 2 * NUM_HEADS * HEAD_DIM // self.quant_group * BITS[self.t3] // 8
        return 2 * NUM_HEADS * HEAD_DIM * BITS[self.t2] // 8 + scales


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


# A phase that moves a smaller part of the other's bytes says nothing of memory, and is not held against a limit.
COMPARABLE = 1 / 16


@dataclass(frozen=True)
class Traffic:
    """Bytes that must be read once, and bytes that must be written once."""

    read: int
    written: int

    @property
    def bytes(self) -> int:
        """Both."""
        return self.read + self.written


@dataclass(frozen=True)
class Case:
    """A call of the operator, in cache (warm) or out of it (cold)."""

    lengths: Lengths
    format: Format
    cache_layout: int
    paged: bool
    num_repeat: int
    cold: bool
    past_line: int = 0  # bytes between the start of a cache line and the start of each large tensor

    @property
    def name(self) -> str:
        """All that tells it from other cases; what `--filter` looks at."""
        return f"{self.lengths.name}.{self.format.name}.layout{self.cache_layout}.{self.setting}"

    @property
    def setting(self) -> str:
        """All but lengths, types and layout."""
        words = ["paged" if self.paged else "offset", f"r{self.num_repeat}", "cold" if self.cold else "warm"]
        return ".".join(words + [f"past{self.past_line}"] * (self.past_line > 0))

    @property
    def store(self) -> Traffic:
        """What storing moves."""
        tokens = sum(self.lengths.seqlens)
        return Traffic(tokens * self.format.value_bytes, tokens * self.format.cache_bytes)

    @property
    def load(self) -> Traffic:
        """What loading moves."""
        tokens = sum(self.lengths.kvlens)
        return Traffic(tokens * self.format.cache_bytes, tokens * self.format.value_bytes * self.num_repeat)

    def bytes(self, phase: str) -> int:
        """What a phase reads and writes; `op` is both phases."""
        store, load = self.store.bytes, self.load.bytes
        return {"store": store, "load": load, "op": store + load}[phase]

    @property
    def limited(self) -> dict[str, Traffic]:
        """The phases that a limit is measured for, and what they move."""
        phases = {"store": self.store, "load": self.load}
        least = COMPARABLE * max(traffic.bytes for traffic in phases.values())
        return {name: traffic for name, traffic in phases.items() if traffic.bytes >= least}


F32, F16 = Format(FLOAT, FLOAT), Format(HALF, HALF)


def quantized(t2: int, groups: tuple[int, ...], t1s: tuple[int, ...], t3s: tuple[int, ...]) -> list[Format]:
    """Quantized formats of a cache type."""
    bits = BITS[t2]
    return [Format(t1, t2, t3, bits, group) for t1, t3, group in product(t1s, t3s, groups)]


INT8_F16, INT4_F16 = Format(HALF, INT8, HALF, 8, 8), Format(HALF, INT4, HALF, 4, 32)

# Out of cache: a layer's part of the cache and the outputs are far beyond the last level.
LONG, LONG_REPEATED = decode(8, 2048), decode(8, 1024)
LAYOUTS = range(4)


def full_cases() -> Iterator[Case]:
    """The table's cases, the kernel's in each layout, lengths that differ, and small calls."""
    yield from table_cases()
    for form, layout in product((F16, F32, INT8_F16, INT4_F16), LAYOUTS):
        yield Case(LONG, form, layout, True, 1, True)
        yield Case(LONG_REPEATED, form, layout, True, 4, True)
    for form, layout in product((F16, INT8_F16), (0, 3)):
        yield Case(ragged(100_000, 256, 8), form, layout, True, 1, True)
    yield from small_calls()


def table_cases() -> Iterator[Case]:
    """The rows of docs/numbers.md's table: loads by type, layout and mode, prefill, tensors that begin past a line."""
    for form, paged, layout in product((F16, F32), (True, False), LAYOUTS):
        yield Case(LONG, form, layout, paged, 1, True)
    for form, paged in product((F16, F32), (True, False)):
        yield Case(LONG_REPEATED, form, 3, paged, 4, True)
    for t2, t1 in product((INT8, INT4), (HALF, FLOAT)):
        for form in quantized(t2, (8, 32, 128), (t1,), (t1,)):
            yield Case(LONG, form, 3, True, 1, True)
    for form, layout in product((F16, INT8_F16, INT4_F16), LAYOUTS):
        yield Case(prefill(8, 2048), form, layout, True, 1, True)
    yield from misaligned()


def misaligned() -> Iterator[Case]:
    """Loads that write where numpy's large arrays begin: 16 bytes past a line."""
    for form, layout, num_repeat in ((F16, 3, 1), (F16, 3, 4), (INT8_F16, 3, 1), (INT4_F16, 2, 1)):
        lengths = LONG if num_repeat == 1 else LONG_REPEATED
        yield Case(lengths, form, layout, True, num_repeat, True, past_line=16)


def quick_cases() -> Iterator[Case]:
    """A sample that touches every axis."""
    for layout in (0, 2, 3):
        yield Case(LONG, F16, layout, True, 1, True)
    yield Case(LONG_REPEATED, F16, 2, True, 4, True)
    yield Case(LONG, F32, 3, False, 1, True)
    for form, layout in ((INT8_F16, 3), (INT4_F16, 2)):
        yield Case(LONG, form, layout, True, 1, True)
        yield Case(prefill(8, 2048), form, layout, True, 1, True)
    yield next(misaligned())
    yield from small_calls()


def small_calls() -> Iterator[Case]:
    """One sequence of 16 tokens, where the call itself is what costs."""
    for form in (F16, INT8_F16):
        yield Case(decode(1, 16), form, 2, True, 1, False)


def is_small(case: Case) -> bool:
    """Whether a call is one of those that are held against an operator which does nothing."""
    return case.lengths == decode(1, 16) and not case.cold

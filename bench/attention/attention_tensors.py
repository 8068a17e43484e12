"""A case's tensors, and the right answer by numpy in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import ClassVar

import numpy as np

from cases import HALF, INT4, PAGE_SIZE, Format, Lengths, Traffic
from figures import Contender, Measured
from kvcache import BITS, NUMPY_TYPES, cache_shape
from native import DirectCall, Native, WrongAnswer, movers
from tensors import CACHE_LIMIT, NUM_LAYER, ROTATION, Arena, Tensors, index_inputs, place, random_pattern, repeat

# Scores have this deviation: weights are then neither equal nor all in one key.
SCORES = 3

# Where a call has more queries than this, so many of each sequence are compared with the oracle, the last one included.
QUERIES = 64


# Rows of an output and what must be there, for each sequence.
Expected = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class AttentionTensors(Tensors):
    """A case's tensors, and once `expect` was called, the right answer on the first layer."""

    op_type: ClassVar[str] = "MultiHeadCacheAttention"
    case: AttentionCase
    expected: Expected = field(default_factory=list)

    @property
    def output(self) -> np.ndarray:
        """What the operator writes."""
        return self.outputs["attn_output"]

    def rows(self, name: str, layer_idx: int, kv: int, b: int) -> np.ndarray:
        """A sequence's keys or values, or their scales, (tokens, heads, elements); two int4 codes are a byte."""
        shape, slots = (*self.cache_shape[:-1], -1), self.slots(b)
        x = self.inputs[name].reshape(shape)
        match self.case.cache_layout:
            case 0:
                return x[slots, layer_idx, kv]
            case 1:
                return x[layer_idx, slots, kv]
            case 2:
                return x[layer_idx, kv, slots]
            case _:
                return x[layer_idx, kv][:, slots].transpose(1, 0, 2)

    def values(self, layer_idx: int, kv: int, b: int) -> np.ndarray:
        """A sequence's keys or values as float64: numbers of T1 as `KeyValueCache` gives them, or products of code and
        scale."""
        form, x = self.case.format, self.rows("cache", layer_idx, kv, b)
        if form.t2 == INT4:
            x = np.stack([(x << 4).view(np.int8) >> 4, x.view(np.int8) >> 4], -1).reshape(*x.shape[:-1], -1)
        if form.t3 is not None:
            scale = np.repeat(self.rows("scale", layer_idx, kv, b), form.quant_group, axis=-1)
            return x.astype(np.float64) * scale
        return x.astype(NUMPY_TYPES[form.t1]).astype(np.float64)

    def expect(self) -> None:
        """Computes what a call on the first layer must give in some rows, by what the cache holds."""
        self.expected.extend(self.answers(lambda kv, b: self.values(self.layers[0], kv, b)))

    def answers(self, values: Callable[[int, int], np.ndarray]) -> Expected:
        """What attention gives over these keys and values, by kv and sequence, each (tokens, heads, elements)."""
        heads, expected = self.case.heads, []
        seqstarts = self.inputs["seqstarts"]
        for b, (n, m) in enumerate(zip(self.case.lengths.seqlens, self.case.lengths.kvlens)):
            chosen = np.unique(np.linspace(0, n - 1, min(n, QUERIES)).astype(np.int64))
            rows = seqstarts[b] + chosen
            query = self.inputs["query"][rows].astype(np.float64).reshape(len(rows), heads.key, -1, heads.dim)
            key, value = (values(kv, b).transpose(1, 0, 2) for kv in range(2))
            scores = np.einsum("qkgd,ktd->kgqt", query, key, optimize=True) / np.sqrt(heads.dim)
            scores[..., np.arange(m) > (m - n + chosen)[:, None]] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            answer = np.einsum("kgqt,ktd->qkgd", weights, value, optimize=True)
            expected.append((rows, answer.reshape(len(rows), heads.query, heads.dim)))
        return expected

    def check(
        self,
        who: str,
        run: Callable[[], object],
        output: np.ndarray | None = None,
        values: Callable[[int, int], np.ndarray] | None = None,
    ) -> None:
        """Raises `WrongAnswer` unless a run writes the right answer, over other `values` than the cache's if it has
        its own."""
        output = self.output if output is None else output
        output[:] = np.nan
        run()
        for b, (rows, answer) in enumerate(self.answers(values) if values else self.expected):
            got, largest = output[rows].astype(np.float64), np.abs(answer).max()
            error = np.abs(got - answer).max()
            if not error <= self.case.tolerance * largest:
                raise WrongAnswer(f"{self.case.name}: {who}: sequence {b} is off by {error:.3g} of {largest:.3g}")


def tensors_of(case: AttentionCase, arena: Arena) -> AttentionTensors:
    """The case's tensors, in regions of the arena that are its own."""
    lengths, form, heads = case.lengths, case.format, case.heads
    layer_bytes = case.traffic.read
    num_rotated = min(64, max(2, ceil(ROTATION / layer_bytes))) if case.cold else 1
    max_t, cachestarts = place(case)
    limit = CACHE_LIMIT // (max_t * case.token_bytes)
    num_layer = max(num_rotated, min(NUM_LAYER, limit)) if case.cold and case.cache_layout == 0 else num_rotated
    axes = dict(num_layer=num_layer, num_heads=heads.key, max_t=max_t)
    shape = cache_shape(case.cache_layout, **axes, last=heads.dim)
    tokens = sum(lengths.seqlens)

    def random(name: str, element_type: int, shape: tuple[int, ...], factor: float, positive: bool = False):
        array = arena.tensor(f"{case.name} {name}", element_type, shape)
        pattern = random_pattern(array.dtype, positive)
        repeat(array.reshape(-1), pattern if factor == 1 else (pattern * factor).astype(array.dtype))
        return array

    current = (tokens, heads.key, heads.dim)
    inputs = {
        "query": random("query", form.t1, (tokens, heads.query, heads.dim), SCORES),
        "current_key": random("current_key", form.t1, current, 1),
        "current_value": random("current_value", form.t1, current, 1),
        **index_inputs(lengths, cachestarts),
        "decoding_batches": np.array([sum(n == 1 for n in lengths.seqlens)], np.int64),
        "cache": random("cache", form.t2, shape, 1),
    }
    if form.t3 is not None:
        scale_shape = cache_shape(case.cache_layout, **axes, last=heads.dim // form.quant_group)
        # Codes are equally frequent, so that values have about the deviation 1.
        inputs["scale"] = random("scale", form.t3, scale_shape, 2 / 2 ** (form.quant_bit - 1), positive=True)
    attributes = {
        "num_heads": heads.query,
        "head_dim": heads.dim,
        "is_causal": 1,
        "is_alibi": 0,
        "num_kv_heads": heads.key,
        "num_layer": num_layer,
        "layer_idx": 0,
        "quant_bit": form.quant_bit,
        "quant_group": form.quant_group,
        "cache_mode": int(case.paged),
        "cache_layout": case.cache_layout,
        "page_size": PAGE_SIZE,
    }
    layers = [i * num_layer // num_rotated for i in range(num_rotated)]
    output = arena.tensor(f"{case.name} output", form.t1, (tokens, heads.query, heads.dim))
    return AttentionTensors(case, attributes, layers, inputs, {"attn_output": output}, shape)


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


class Direct:
    """The operator on a case's layers, called without ONNX Runtime; right on each of these numbers of threads."""

    def __init__(self, native: Native, tensors: AttentionTensors, *threads: int) -> None:
        self.tensors = tensors
        self._calls = [DirectCall(native, tensors, layer_idx) for layer_idx in tensors.layers]
        self._calls[0].measure(threads[0], 1)
        # By what the cache holds after the call: the current tokens have been stored.
        tensors.expect()
        for count in threads:
            tensors.check(f"called directly on {count} threads", partial(self._calls[0].measure, count, 1))

    def contender(self, threads: int, label: str = "") -> Contender:
        """The calls, on one layer after another."""

        def sample(turn: int, iterations: int) -> Measured:
            return self._calls[turn % len(self._calls)].measure(threads, iterations)

        name = f"{label or self.tensors.case.format.name}, direct"
        return Contender(name, threads, sample, cold=self.tensors.case.cold)


def reads(native: Native, label: str, traffic: Traffic, threads: int, arena: Arena) -> list[Contender]:
    """Loops that read these bytes once, in several orders; each reads what no cache of the processor holds."""
    return movers(native, f"{label}, read", traffic, threads, True, False, arena)

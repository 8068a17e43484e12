"""A case's tensors, touched before, in huge pages where the system grants them; and the right answer of a call."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from math import ceil, prod
from pathlib import Path

import numpy as np
from kvcache_ops import CacheSpec
from onnx.helper import np_dtype_to_tensor_dtype

from cases import BITS, HALF, INT4, NUMPY_TYPES, PAGE_SIZE, Case
from harness import WrongAnswer


def last_level() -> int:
    """Bytes of the last-level cache, as the system tells; 32 MiB where it does not."""
    size = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
    return int(size.read_text().strip().removesuffix("K")) << 10 if size.exists() else 32 << 20


# Between two reads of the same bytes a cold case reads this many others.
ROTATION = min(512 << 20, max(128 << 20, 2 * last_level()))

# Layers of a cold cache in layout 0, where the other layers lie between a layer's tokens, as far as memory allows.
NUM_LAYER, CACHE_LIMIT = 32, 3 << 30

# Attention's scores have this deviation: weights are then neither equal nor all in one key.
SCORES = 3

# Where attention has more queries than this, that many of each sequence are compared, the last one included.
QUERIES = 64


def allocate(size: int, huge_pages: bool = True) -> np.ndarray:
    """So many bytes, all of them touched."""
    memory = mmap.mmap(-1, ceil(max(size, 1) / (1 << 21)) << 21, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge_pages:
        memory.madvise(mmap.MADV_HUGEPAGE)
    region = np.frombuffer(memory, np.uint8)
    region[:] = 0
    return region[:size]


def tensor(element_type: int, shape: tuple[int, ...], past_line: int = 0) -> np.ndarray:
    """A tensor that many bytes after the start of a cache line; packed int4 has one axis of bytes."""
    data = allocate(past_line + prod(shape) * BITS[element_type] // 8)[past_line:].view(NUMPY_TYPES[element_type])
    return data if element_type == INT4 else data.reshape(shape)


@cache
def pattern(dtype: np.dtype, positive: bool) -> np.ndarray:
    """Random finite numbers of a type, as many as share no factor with any stride."""
    random, count = np.random.default_rng(1), 1_000_003
    if dtype.kind == "f":
        values = random.uniform(0.01, 1, count) if positive else random.standard_normal(count)
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, count, dtype, endpoint=True)


def random_tensor(
    element_type: int, shape: tuple[int, ...], past_line: int = 0, factor: float = 1, positive: bool = False
) -> np.ndarray:
    """A tensor filled with random finite numbers, again and again the same ones, times a factor."""
    array = tensor(element_type, shape, past_line)
    values, numbers = array.reshape(-1), pattern(array.dtype, positive)
    numbers = numbers if factor == 1 else (numbers * factor).astype(array.dtype)
    for first in range(0, values.size, numbers.size):
        part = values[first : first + numbers.size]
        part[:] = numbers[: part.size]
    return array


# What attention gives in some rows, for each sequence.
Expected = list[tuple[np.ndarray, np.ndarray]]

# A sequence's keys (0) or values (1), by this number and the sequence, each (tokens, heads, elements).
Values = Callable[[int, int], np.ndarray]


@dataclass(frozen=True)
class Tensors:
    """The tensors of a call of an operator. A cold case is measured on one of `layers` after another."""

    case: Case
    attributes: dict[str, int]
    layers: list[int]
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    cache_shape: tuple[int, ...]
    expected: list = field(default_factory=list)

    @property
    def op_type(self) -> str:
        """The operator."""
        return "MultiHeadCacheAttention" if self.case.heads.query else "KeyValueCache"

    def described(self, name: str) -> tuple[int, tuple[int, ...], int]:
        """A tensor's element type, shape and address; packed int4 by its shape in elements."""
        array = (self.inputs | self.outputs)[name]
        packed = name == "cache" and array.dtype == np.uint8
        element, shape = (INT4, self.cache_shape) if packed else (np_dtype_to_tensor_dtype(array.dtype), array.shape)
        return element, shape, array.ctypes.data

    def slots(self, b: int) -> np.ndarray:
        """The slot of every token of a sequence."""
        t, cachestarts = np.arange(self.case.lengths.kvlens[b]), self.inputs["cachestarts"]
        return cachestarts[b, t // PAGE_SIZE] + t % PAGE_SIZE if self.case.paged else cachestarts[b] + t

    def rows(self, name: str, layer_idx: int, kv: int, slots: np.ndarray, fill: int | None = None) -> np.ndarray:
        """Keys or values, or their scales, of some slots, (slots, heads, elements); two int4 codes are a byte.

        Their bytes are first overwritten if `fill` is one.
        """
        x, every = self.inputs[name].reshape(*self.cache_shape[:-1], -1), slice(None)
        places = [(slots, layer_idx, kv), (layer_idx, slots, kv), (layer_idx, kv, slots), (layer_idx, kv, every, slots)]
        place = places[self.case.cache_layout]
        if fill is not None:
            x.view(np.uint8)[place] = fill
        return x[place]

    def values(self, layer_idx: int, kv: int, b: int) -> np.ndarray:
        """A sequence's keys or values as float64: numbers of T1 as `KeyValueCache` gives them, or products of code and
        scale."""
        form, slots = self.case.format, self.slots(b)
        x = self.rows("cache", layer_idx, kv, slots)
        if form.t2 == INT4:
            x = np.stack([(x << 4).view(np.int8) >> 4, x.view(np.int8) >> 4], -1).reshape(*x.shape[:-1], -1)
        if form.t3 is not None:
            scale = np.repeat(self.rows("scale", layer_idx, kv, slots), form.quant_group, axis=-1)
            return x.astype(np.float64) * scale
        return x.astype(NUMPY_TYPES[form.t1]).astype(np.float64)

    def written(self, fill: int | None = None) -> list[np.ndarray]:
        """The bytes that a call writes on the first layer: outputs, and cache and scale of the current tokens.

        They are first overwritten if `fill` is a byte.
        """
        if fill is not None:
            for output in self.outputs.values():
                output.view(np.uint8)[:] = fill
        past, layer = self.inputs["start_pos"], self.layers[0]
        slots = np.concatenate([self.slots(b)[past[b] :] for b in range(len(past))])
        held = [name for name in ("cache", "scale") if name in self.inputs]
        rows = [self.rows(name, layer, kv, slots, fill) for name in held for kv in range(2)]
        return [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in [*self.outputs.values(), *rows]]

    def expect(self, run: Callable[[], object]) -> None:
        """Keeps the right answer on the first layer: what `run`, a call by the reference kernel, writes; of attention,
        numpy's in some rows, over what the cache holds once `run` has stored the current tokens."""
        run()
        if self.case.heads.query:
            self.expected.extend(self.answers(lambda kv, b: self.values(self.layers[0], kv, b)))
        else:
            self.expected.extend(array.copy() for array in self.written())

    def answers(self, values: Values) -> Expected:
        """What attention gives over these keys and values."""
        heads, expected = self.case.heads, []
        seqstarts = self.inputs["seqstarts"]
        for b, (n, m) in enumerate(zip(self.case.lengths.seqlens, self.case.lengths.kvlens)):
            chosen = np.unique(np.linspace(0, n - 1, min(n, QUERIES)).astype(np.int64))
            rows = seqstarts[b] + chosen
            query = self.inputs["query"][rows].astype(np.float64).reshape(len(rows), heads.key, -1, heads.dim)
            key, value = (values(kv, b).transpose(1, 0, 2) for kv in range(2))
            scores = np.einsum("qkgd,ktd->kgqt", query, key, optimize=True) / np.sqrt(heads.dim)
            ahead = np.arange(m) - (m - n + chosen)[:, None]
            scores[..., (ahead > 0) | (ahead <= -(self.case.window if self.case.window > 0 else m))] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            answer = np.einsum("kgqt,ktd->qkgd", weights, value, optimize=True)
            expected.append((rows, answer.reshape(len(rows), heads.query, heads.dim)))
        return expected

    def check(self, who: str, run: Callable[[], object]) -> None:
        """Raises `WrongAnswer` unless a run on the first layer writes the right answer."""
        self.written(fill=0xFF)  # NaN in every type of numbers
        run()
        if self.case.heads.query:
            self.check_attention(who, self.outputs["attn_output"], self.expected)
        elif not all(map(np.array_equal, self.written(), self.expected)):
            raise WrongAnswer(f"{self.case.name}: {who}: the answer is not the reference kernel's")

    def check_attention(self, who: str, output: np.ndarray, expected: Expected, tolerance: float = 0) -> None:
        """Raises `WrongAnswer` unless an output is near these rows: by a part of the largest value, by default
        what the number format explains."""
        tolerance = tolerance or (2**-9 if self.case.format.t1 == HALF else 2**-14)
        for b, (rows, answer) in enumerate(expected):
            error, largest = np.abs(output[rows].astype(np.float64) - answer).max(), np.abs(answer).max()
            if not error <= tolerance * largest:
                raise WrongAnswer(f"{self.case.name}: {who}: sequence {b} is off by {error:.3g} of {largest:.3g}")


def tensors_of(case: Case) -> Tensors:
    """The case's tensors."""
    lengths, form, heads, past = case.lengths, case.format, case.heads, case.past_line
    # At least three, so that no contender measures the layer of the one before it, whatever the order.
    rotated = min(64, max(3, ceil(ROTATION / (sum(lengths.kvlens) * case.cache_bytes)))) if case.cold else 1
    max_t, cachestarts = place(case)
    spread = min(NUM_LAYER, CACHE_LIMIT // (max_t * case.cache_bytes)) if case.cold and case.cache_layout == 0 else 1
    num_layer = max(rotated, spread)
    tokens, every = sum(lengths.seqlens), sum(lengths.kvlens)

    def shape(last: int) -> tuple[int, ...]:
        return CacheSpec(max_t, heads.key, last, num_layers=num_layer, cache_layout=case.cache_layout).cache_shape

    current, query = (tokens, heads.key, heads.dim), (tokens, heads.query, heads.dim)
    inputs = {"query": random_tensor(form.t1, query, past, SCORES)} if heads.query else {}
    inputs |= {
        "current_key": random_tensor(form.t1, current, past),
        "current_value": random_tensor(form.t1, current, past),
        "seqstarts": starts(lengths.seqlens),
        "kvstarts": starts(lengths.kvlens),
        "cachestarts": cachestarts,
        "start_pos": np.array(lengths.kvlens, np.int64) - np.array(lengths.seqlens, np.int64),
    }
    if heads.query:
        inputs["decoding_batches"] = np.array([sum(n == 1 for n in lengths.seqlens)], np.int64)
    inputs["max_seqlen"] = np.array([max(lengths.seqlens)], np.int64)
    inputs["max_kvlen"] = np.array([max(lengths.kvlens)], np.int64)
    inputs["cache"] = random_tensor(form.t2, shape(heads.dim), past)
    if form.t3 is not None:
        # Codes are equally frequent, so that values have about the deviation 1.
        scale, factor = shape(heads.dim // form.quant_group), 2 / 2 ** (form.quant_bit - 1)
        inputs["scale"] = random_tensor(form.t3, scale, past, factor, positive=True)
    attributes = {
        "num_layer": num_layer,
        "layer_idx": 0,
        "quant_bit": form.quant_bit,
        "quant_group": form.quant_group,
        "cache_mode": int(case.paged),
        "cache_layout": case.cache_layout,
        "page_size": PAGE_SIZE,
    }
    if heads.query:
        attributes |= {"num_heads": heads.query, "num_kv_heads": heads.key, "head_dim": heads.dim}
        attributes["local_window_size"] = case.window
        outputs = {"attn_output": tensor(form.t1, query, past)}
    else:
        attributes["num_repeat"] = case.num_repeat
        loaded = (every, heads.key * case.num_repeat, heads.dim)
        outputs = {name: tensor(form.t1, loaded, past) for name in ("key", "value")}
    layers = [i * num_layer // rotated for i in range(rotated)]
    return Tensors(case, attributes, layers, inputs, outputs, shape(heads.dim))


def starts(lengths: tuple[int, ...]) -> np.ndarray:
    """Where packed sequences begin, and where the last ends."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def place(case: Case) -> tuple[int, np.ndarray]:
    """MaxT, and sequences placed in it: pages shuffled over all of it, or whole sequences in another order."""
    random = np.random.default_rng(2)
    kvlens = case.lengths.kvlens
    if not case.paged:
        order = random.permutation(len(kvlens))
        cachestarts = np.zeros(len(kvlens), np.int64)
        cachestarts[order] = starts(tuple(kvlens[b] for b in order))[:-1]
        return sum(kvlens), cachestarts
    used = [ceil(kvlen / PAGE_SIZE) for kvlen in kvlens]
    pages = random.permutation(sum(used)) * PAGE_SIZE
    cachestarts = np.full((len(kvlens), max(used)), -1, np.int64)
    for b, first in enumerate(starts(tuple(used))[:-1]):
        cachestarts[b, : used[b]] = pages[first : first + used[b]]
    return sum(used) * PAGE_SIZE, cachestarts

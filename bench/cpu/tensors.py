"""A case's tensors in memory that all contenders share: touched before, in huge pages where the system grants them."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import ClassVar

import numpy as np
from onnx import TensorProto

from cases import HEAD_DIM, INT4, NUM_HEADS, PAGE_SIZE, Case, Lengths
from kvcache import BITS, ELEMENT_TYPES, NUMPY_TYPES, cache_shape


def last_level() -> int:
    """Bytes of the last-level cache, as the system tells; 32 MiB where it does not."""
    size = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
    return int(size.read_text().strip().removesuffix("K")) << 10 if size.exists() else 32 << 20


# Between two reads of the same bytes a cold case reads this many others.
ROTATION = min(512 << 20, max(128 << 20, 2 * last_level()))

# Layers of a cold cache in layout 0, where the other layers lie between a layer's tokens, as far as memory allows.
NUM_LAYER, CACHE_LIMIT = 32, 3 << 30

PATTERN = 1_000_003  # elements after which random contents repeat; shares no factor with any stride


class Arena:
    """Regions of memory that stay touched from case to case."""

    def __init__(self) -> None:
        self._regions: dict[str, np.ndarray] = {}
        self._contents: dict[str, tuple[int, int]] = {}

    def bytes(self, name: str, size: int) -> np.ndarray:
        """The first `size` bytes of a region, all of them touched."""
        region = self._regions.get(name)
        if region is None or region.size < size:
            self._regions.pop(name, None)
            self._contents.pop(name, None)
            memory = mmap.mmap(-1, ceil(max(size, 1) / (1 << 21)) << 21, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory.madvise(mmap.MADV_HUGEPAGE)
            region = self._regions[name] = np.frombuffer(memory, np.uint8)
            region[:] = 0
        return region[:size]

    def tensor(self, name: str, element_type: int, shape: tuple[int, ...], past_line: int = 0) -> np.ndarray:
        """A tensor with what the region holds, so many bytes after its start; packed int4 has one axis of bytes."""
        size = prod(shape) * BITS[element_type] // 8
        data = self.bytes(name, past_line + size)[past_line:].view(NUMPY_TYPES[element_type])
        return data if element_type == TensorProto.INT4 else data.reshape(shape)

    def random(
        self, name: str, element_type: int, shape: tuple[int, ...], past_line: int = 0, positive: bool = False
    ) -> np.ndarray:
        """The same, filled with random finite numbers."""
        size = past_line + prod(shape) * BITS[element_type] // 8
        values = self.bytes(name, size).view(NUMPY_TYPES[element_type])
        filled_type, filled = self._contents.get(name, (None, 0))
        if filled_type != element_type or filled < size:
            repeat(values, random_pattern(values.dtype, positive))
            self._contents[name] = (element_type, size)
        return self.tensor(name, element_type, shape, past_line)


def random_pattern(dtype: np.dtype, positive: bool) -> np.ndarray:
    """Random numbers of a type."""
    random = np.random.default_rng(1)
    if dtype.kind == "f":
        values = random.uniform(0.01, 1, PATTERN) if positive else random.standard_normal(PATTERN)
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, PATTERN, dtype, endpoint=True)


def repeat(values: np.ndarray, pattern: np.ndarray) -> None:
    """Fills `values` with a pattern, again and again."""
    done = min(values.size, pattern.size)
    values[:done] = pattern[:done]
    while done < values.size:
        step = min(done, values.size - done)
        values[done : done + step] = values[:step]
        done += step


@dataclass(frozen=True)
class Tensors:
    """The tensors of a call of an operator. A cold case is measured on one of `layers` after another."""

    op_type: ClassVar[str] = "KeyValueCache"
    case: Case
    attributes: dict[str, int]
    layers: list[int]
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    cache_shape: tuple[int, ...]

    def described(self, name: str) -> tuple[int, tuple[int, ...], int]:
        """A tensor's element type, shape and address; packed int4 by its shape in elements."""
        array = (self.inputs | self.outputs)[name]
        packed = name == "cache" and array.dtype == np.uint8
        element, shape = (INT4, self.cache_shape) if packed else (ELEMENT_TYPES[array.dtype], array.shape)
        return element, shape, array.ctypes.data

    def slots(self, b: int) -> np.ndarray:
        """The slot of every token of a sequence."""
        t, cachestarts = np.arange(self.case.lengths.kvlens[b]), self.inputs["cachestarts"]
        return cachestarts[b, t // PAGE_SIZE] + t % PAGE_SIZE if self.case.paged else cachestarts[b] + t


def tensors_of(case: Case, arena: Arena) -> Tensors:
    """The case's tensors, in the arena."""
    lengths, form, past = case.lengths, case.format, case.past_line
    read = sum(lengths.kvlens) * form.cache_bytes
    # At least three, so that no contender measures the layer of the one before it, whatever the order.
    num_rotated = min(64, max(3, ceil(ROTATION / read))) if case.cold else 1
    max_t, cachestarts = place(case)
    spread = min(NUM_LAYER, CACHE_LIMIT // (max_t * form.cache_bytes)) if case.cold and case.cache_layout == 0 else 1
    num_layer = max(num_rotated, spread)
    axes = dict(num_layer=num_layer, num_heads=NUM_HEADS, max_t=max_t)
    shape = cache_shape(case.cache_layout, **axes, last=HEAD_DIM)
    tokens, all_tokens = sum(lengths.seqlens), sum(lengths.kvlens)
    current, output = (tokens, NUM_HEADS, HEAD_DIM), (all_tokens, NUM_HEADS * case.num_repeat, HEAD_DIM)
    inputs = {
        "current_key": arena.random("current_key", form.t1, current, past),
        "current_value": arena.random("current_value", form.t1, current, past),
        **index_inputs(case.lengths, cachestarts),
        "cache": arena.random("cache", form.t2, shape, past),
    }
    if form.t3 is not None:
        last = HEAD_DIM // form.quant_group
        scale_shape = cache_shape(case.cache_layout, **axes, last=last)
        inputs["scale"] = arena.random("scale", form.t3, scale_shape, past, positive=True)
    attributes = {
        "num_layer": num_layer,
        "layer_idx": 0,
        "quant_bit": form.quant_bit,
        "quant_group": form.quant_group,
        "num_repeat": case.num_repeat,
        "cache_mode": int(case.paged),
        "cache_layout": case.cache_layout,
        "page_size": PAGE_SIZE,
    }
    layers = [i * num_layer // num_rotated for i in range(num_rotated)]
    outputs = {name: arena.tensor(name, form.t1, output, past) for name in ("key", "value")}
    return Tensors(case, attributes, layers, inputs, outputs, shape)


def index_inputs(lengths: Lengths, cachestarts: np.ndarray) -> dict[str, np.ndarray]:
    """The index tensors of a call."""
    return {
        "seqstarts": starts(lengths.seqlens),
        "kvstarts": starts(lengths.kvlens),
        "cachestarts": cachestarts,
        "start_pos": np.array(lengths.kvlens, np.int64) - np.array(lengths.seqlens, np.int64),
        "max_seqlen": np.array([max(lengths.seqlens)], np.int64),
        "max_kvlen": np.array([max(lengths.kvlens)], np.int64),
    }


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

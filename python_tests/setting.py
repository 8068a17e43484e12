"""Settings of the operator: types, attributes and head sizes, and random tensors that fit them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod

import numpy as np
import onnxruntime
from onnx import TensorProto

from compare import Arrays
from kvcache import NUMPY_TYPES, cache_shape
from kvcache import TYPE_NAMES as TYPE_NAMES
from node import node_model, node_types, run_node, session_of
from ragged import RaggedCache

FLOAT, HALF, INT8, INT4 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.INT4


@dataclass
class Memory:
    """The in-out tensors: the cache, packed if it is int4 (then `int4_shape` is its shape), and the scale."""

    cache: np.ndarray
    scale: np.ndarray | None
    int4_shape: tuple[int, ...] | None

    def copy(self) -> Memory:
        """The same contents in other memory."""
        return Memory(self.cache.copy(), None if self.scale is None else self.scale.copy(), self.int4_shape)

    @property
    def arrays(self) -> Arrays:
        """The tensors by the names of their inputs."""
        return {"cache": self.cache} | ({} if self.scale is None else {"scale": self.scale})


@dataclass(frozen=True)
class Setting:
    """One node: its types, its attributes, and the sizes that the specification calls H and Dh."""

    t1: int = FLOAT
    t2: int = FLOAT
    t3: int | None = None
    quant_bit: int = 0
    quant_group: int = 8
    num_layer: int = 1
    layer_idx: int = 0
    num_repeat: int = 1
    cache_mode: int = 0
    cache_layout: int = 0
    page_size: int = 128
    num_heads: int = 2
    head_dim: int = 16

    operator = "KeyValueCache"

    def __str__(self) -> str:
        return "-".join(
            [TYPE_NAMES[t] for t in (self.t1, self.t2, self.t3) if t is not None]
            + [f"{'paged' if self.cache_mode else 'offset'}{self.cache_layout}"]
        )

    @property
    def cached(self) -> Setting:
        """Itself, as an `Attention` has one."""
        return self

    @property
    def attributes(self) -> dict[str, int]:
        """All attributes of the node."""
        return {k: v for k, v in asdict(self).items() if k not in ("t1", "t2", "t3", "num_heads", "head_dim")}

    def types(self, _given: Arrays | None = None) -> dict[str, int]:
        """The element types of the node's inputs, by name."""
        return node_types(self.t1, self.t2, self.t3)

    def model(self, _given: Arrays | None = None) -> bytes:
        """The model of this one node."""
        return node_model(self.types(), self.attributes)

    def memory(self, random: np.random.Generator, max_t: int) -> Memory:
        """A cache with something in every slot, for showing what a call leaves alone."""
        axes = dict(num_layer=self.num_layer, num_heads=self.num_heads, max_t=max_t)
        shape = cache_shape(self.cache_layout, **axes, last=self.head_dim)
        if self.t2 == INT4:
            cache = random.integers(0, 256, prod(shape) // 2, np.uint8)
        else:
            cache = random_values(random, shape, self.t2)
        scale = None
        if self.t3 is not None:
            scale_shape = cache_shape(self.cache_layout, **axes, last=self.head_dim // self.quant_group)
            scale = (random.random(scale_shape) + 0.01).astype(NUMPY_TYPES[self.t3])
        return Memory(cache, scale, shape if self.t2 == INT4 else None)

    def ragged(self, random: np.random.Generator, capacities: list[int]) -> RaggedCache:
        """Slots for sequences of these lengths."""
        return RaggedCache(random, capacities, self.page_size if self.cache_mode else None)

    def current(self, random: np.random.Generator, tokens: int) -> Arrays:
        """A call's keys and values."""
        shape = (tokens, self.num_heads, self.head_dim)
        return {name: random_values(random, shape, self.t1) for name in ("current_key", "current_value")}

    def inputs(self, random: np.random.Generator, step: Arrays) -> Arrays:
        """Random rows for the index inputs of a call, and those."""
        return self.current(random, int(step["seqstarts"][-1])) | step

    def run(
        self, inputs: Arrays, memory: Memory, session: onnxruntime.InferenceSession | None = None
    ) -> list[np.ndarray]:
        """One call on the memory itself: key and value."""
        return run_node(session or session_of(self.model()), inputs | memory.arrays, memory.int4_shape)


def one_call(node: Setting, seqlens: list[int], past: list[int] | None = None) -> tuple[Arrays, Memory]:
    """The inputs of a call (of an `Attention`, too) behind `past` tokens, and the memory as it is before."""
    random, everyone, past = np.random.default_rng(7), list(range(len(seqlens))), past or [0] * len(seqlens)
    ragged = node.cached.ragged(random, [a + b for a, b in zip(past, seqlens)])
    memory = node.cached.memory(random, ragged.max_t)
    node.run(node.inputs(random, ragged.step(random, everyone, past)), memory)
    return node.inputs(random, ragged.step(random, everyone, seqlens)), memory


def random_values(random: np.random.Generator, shape: tuple[int, ...], element_type: int) -> np.ndarray:
    """Random finite values of many magnitudes; of int8, all of its values."""
    if element_type == INT8:
        return random.integers(-128, 128, shape, np.int8)
    magnitude = 2.0 ** random.integers(-6, 7, shape)
    return (random.standard_normal(shape) * magnitude).astype(NUMPY_TYPES[element_type])

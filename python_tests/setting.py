"""Settings of the operator: types, attributes and head sizes, and random tensors that fit them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import prod

import numpy as np
import onnxruntime
from kvcache_ops import step_indices
from onnx import TensorProto

from compare import Arrays
from kvcache import NUMPY_TYPES, cache_shape
from kvcache import TYPE_NAMES as TYPE_NAMES
from node import FUSED_INPUTS, PACKED_INPUTS, node_model, node_types, run_node, session_of

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


@dataclass(frozen=True)
class Attention:
    """A `MultiHeadCacheAttention` node. `cached` is what it has in common with `KeyValueCache`; its heads are Hk."""

    cached: Setting = field(default_factory=Setting)
    group: int = 2  # query heads for each cache head

    operator = "MultiHeadCacheAttention"

    def __str__(self) -> str:
        return f"{self.cached}-heads{self.num_heads}on{self.cached.num_heads}"

    @property
    def num_heads(self) -> int:
        """Hq."""
        return self.cached.num_heads * self.group

    @property
    def own_attributes(self) -> dict[str, int]:
        """Those that `MultiHeadAttention` has too."""
        return dict(
            num_heads=self.num_heads,
            head_dim=self.cached.head_dim,
            is_causal=1,
            is_alibi=0,
            num_kv_heads=self.cached.num_heads,
        )

    @property
    def attributes(self) -> dict[str, int]:
        """All attributes of the node."""
        return self.own_attributes | {k: v for k, v in self.cached.attributes.items() if k != "num_repeat"}

    def types(self, given: Arrays, names: tuple[str, ...] = FUSED_INPUTS) -> dict[str, int]:
        """The element types of a node's inputs, by name; the mask is there if it is given."""
        known = self.cached.types()
        known |= dict.fromkeys(("query", "key", "value", "attn_mask"), self.cached.t1)
        left_out = {"attn_mask"} - given.keys() | {"scale"} - known.keys()
        return {name: known.get(name, known["seqstarts"]) for name in names if name not in left_out}

    def model(self, given: Arrays | None = None) -> bytes:
        """The model of this one node, with a mask if `given` has one."""
        return node_model(self.types(given or {}), self.attributes, operator=self.operator)

    def inputs(self, random: np.random.Generator, step: Arrays, decoding_batches: int = 0) -> Arrays:
        """Random rows for the index inputs of a call, and those."""
        tokens, size = int(step["seqstarts"][-1]), self.cached.head_dim
        heads = dict(query=self.num_heads, current_key=self.cached.num_heads, current_value=self.cached.num_heads)
        rows = {name: random_rows(random, (tokens, count, size), self.cached.t1) for name, count in heads.items()}
        return rows | step | dict(decoding_batches=np.full(step["max_seqlen"].shape, decoding_batches, np.int64))

    def run(
        self, inputs: Arrays, memory: Memory, session: onnxruntime.InferenceSession | None = None
    ) -> list[np.ndarray]:
        """One call on the memory itself: attn_output alone."""
        return run_node(session or session_of(self.model(inputs)), inputs | memory.arrays, memory.int4_shape)

    def run_packed(self, inputs: Arrays, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        """The same attention over packed keys and values."""
        given = {name: inputs[name] for name in PACKED_INPUTS if name in inputs} | dict(key=key, value=value)
        model = node_model(self.types(given, PACKED_INPUTS), self.own_attributes, operator="MultiHeadAttention")
        return run_node(session_of(model), given)[0]


def random_rows(random: np.random.Generator, shape: tuple[int, ...], element_type: int) -> np.ndarray:
    """Random finite values whose products stay in the range of float16."""
    return np.clip(random_values(random, shape, element_type), -64, 64)


class RaggedCache:
    """Sequences that share a cache of `max_t` slots: scattered pages, or one run each if `page_size` is None."""

    def __init__(self, random: np.random.Generator, capacities: list[int], page_size: int | None = None):
        self.page_size, self.capacities, self.lengths = page_size, capacities, [0] * len(capacities)
        pages = [-(-capacity // page_size) if page_size else 1 for capacity in capacities]
        self.starts = [[0] * count for count in pages]
        # One block of slots for each page (or sequence), in random order with random gaps: starts are not aligned.
        blocks = [(b, i) for b, count in enumerate(pages) for i in range(count)]
        slot = int(random.integers(0, 3))
        for b, i in (blocks[j] for j in random.permutation(len(blocks))):
            self.starts[b][i] = slot
            slot += (page_size or capacities[b]) + int(random.integers(0, 3))
        self.max_t = slot

    def step(self, random: np.random.Generator, members: list[int], seqlens: list[int]) -> dict[str, np.ndarray]:
        """The index inputs of a call that stores that many tokens for each member; counts them as stored."""
        start_pos, starts = [self.lengths[member] for member in members], [self.starts[member] for member in members]
        for member, new in zip(members, seqlens):
            self.lengths[member] += new
            assert self.lengths[member] <= self.capacities[member], "more tokens than the sequence has slots"
        if self.page_size is None:
            indices = step_indices(seqlens, start_pos, cachestarts=[first for (first,) in starts])._asdict()
        else:
            max_p = max(map(len, starts), default=0) + int(random.integers(0, 3))
            pages = dict(page_slots=starts, page_size=self.page_size, aligned=False, max_pages=max_p)
            indices = step_indices(seqlens, start_pos, **pages)._asdict()
        # max_seqlen and max_kvlen are bounds, exact ones or larger, and come as a scalar or as shape [1].
        shape = [(), (1,)][random.integers(2)]
        bounds = {name: (indices[name] + random.integers(0, 2)).reshape(shape) for name in ("max_seqlen", "max_kvlen")}
        return indices | bounds

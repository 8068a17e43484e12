"""Nodes of the attention operators, random calls of them, and what the golden oracle makes of a call."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnxruntime

from node import FUSED_INPUTS, PACKED_INPUTS, node_model, node_types, run_node, session_of
from oracle.attention import Result, multi_head_cache_attention
from oracle.attention_call import AttentionAttributes, CacheAttentionInputs
from oracle.call import Types
from oracle_call import pack_int4, unpack_int4
from setting import FLOAT, HALF, INT4, INT8, TYPE_NAMES, Memory, Setting, random_values

# The rows of the table of types that have scores, one T3 each.
FORMATS = [
    (FLOAT, FLOAT, None, 0),
    (FLOAT, HALF, None, 0),
    (HALF, FLOAT, None, 0),
    (HALF, HALF, None, 0),
    (FLOAT, INT8, HALF, 8),
    (HALF, INT8, FLOAT, 8),
    (FLOAT, INT4, FLOAT, 4),
    (HALF, INT4, HALF, 4),
]

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Attention:
    """A `MultiHeadCacheAttention` node. `cached` is what it has in common with `KeyValueCache`; its heads are Hk."""

    cached: Setting = field(default_factory=Setting)
    group: int = 2  # query heads for each cache head
    is_causal: int = 1
    is_alibi: int = 0

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
            is_causal=self.is_causal,
            is_alibi=self.is_alibi,
            num_kv_heads=self.cached.num_heads,
        )

    @property
    def attributes(self) -> dict[str, int]:
        """All attributes of the node."""
        return self.own_attributes | {k: v for k, v in self.cached.attributes.items() if k != "num_repeat"}

    def types(self, names: tuple[str, ...], given: Arrays) -> dict[str, int]:
        """The element types of a node's inputs, by name; an optional one is there if it is given."""
        t1, t2, t3 = self.cached.t1, self.cached.t2, self.cached.t3
        rows = dict.fromkeys(("query", "key", "value", "attn_mask"), t1) | node_types(t1, t2, t3)
        index = node_types(t1, t2)["seqstarts"]
        return {
            name: rows.get(name, index)
            for name in names
            if not (name == "scale" and t3 is None) and not (name == "attn_mask" and name not in given)
        }

    def model(self, given: Arrays, **options) -> bytes:
        """The model of this one node, with a mask if `given` has one."""
        types = self.types(FUSED_INPUTS, given)
        return node_model(types, self.attributes, operator="MultiHeadCacheAttention", **options)

    def inputs(self, random: np.random.Generator, step: Arrays, decoding_batches: int = 0) -> Arrays:
        """Random rows for the index inputs of a call, and those."""
        tokens = int(step["seqstarts"][-1])
        shape = (tokens, self.num_heads, self.cached.head_dim)
        query = dict(query=random_rows(random, shape, self.cached.t1))
        current = {
            name: random_rows(random, (tokens, self.cached.num_heads, self.cached.head_dim), self.cached.t1)
            for name in ("current_key", "current_value")
        }
        counted = dict(decoding_batches=np.full(step["max_seqlen"].shape, decoding_batches, np.int64))
        return query | current | step | counted

    def run(self, inputs: Arrays, memory: Memory, session: onnxruntime.InferenceSession | None = None) -> np.ndarray:
        """One call on the memory itself: attn_output."""
        session = session or session_of(self.model(inputs))
        [attn_output] = run_node(session, inputs | memory.arrays, memory.int4_shape)
        return attn_output

    def run_packed(self, inputs: Arrays, key: np.ndarray, value: np.ndarray, repeated: int = 1) -> np.ndarray:
        """The same attention over packed keys and values, of which each head is there `repeated` times."""
        given = {name: inputs[name] for name in PACKED_INPUTS if name in inputs} | dict(key=key, value=value)
        attributes = self.own_attributes | dict(num_kv_heads=self.cached.num_heads * repeated)
        model = node_model(self.types(PACKED_INPUTS, given), attributes, operator="MultiHeadAttention")
        [attn_output] = run_node(session_of(model), given)
        return attn_output

    def oracle(self, inputs: Arrays, memory: Memory) -> Result:
        """What the oracle makes of a call; cache and scale change in the memory."""
        setting = self.cached
        t3 = None if setting.t3 is None else TYPE_NAMES[setting.t3]
        types = Types(TYPE_NAMES[setting.t1], TYPE_NAMES[setting.t2], t3)
        cache = memory.cache if memory.int4_shape is None else unpack_int4(memory.cache, memory.int4_shape)
        attributes = AttentionAttributes(**self.attributes)
        result = multi_head_cache_attention(CacheAttentionInputs(**inputs), cache, memory.scale, attributes, types)
        if memory.int4_shape is not None:
            memory.cache[:] = pack_int4(cache, memory.cache)
        return result


def random_rows(random: np.random.Generator, shape: tuple[int, ...], element_type: int) -> np.ndarray:
    """Random finite values whose products stay in the range of float16."""
    return np.clip(random_values(random, shape, element_type), -64, 64)


def random_mask(random: np.random.Generator, attention: Attention, inputs: Arrays, rank: int, pad: int = 0) -> Arrays:
    """A mask of numbers and -inf for the call's blocks, with NaN everywhere else, which nobody may read."""
    tokens, keys = int(inputs["seqstarts"][-1]), int(inputs["kvstarts"][-1])
    shape = ((attention.num_heads,) if rank == 3 else ()) + (tokens, keys + pad)
    dtype = inputs["query"].dtype
    values = np.where(random.random(shape) < 0.2, -np.inf, random.standard_normal(shape)).astype(dtype)
    mask = np.full(shape, np.nan, dtype)
    for b in range(len(inputs["start_pos"])):
        rows, columns = (slice(*inputs[name][b : b + 2]) for name in ("seqstarts", "kvstarts"))
        mask[..., rows, columns] = values[..., rows, columns]
    return dict(attn_mask=mask)

"""Nodes of the attention operators, and random calls of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnxruntime

from compare import Arrays
from node import FUSED_INPUTS, PACKED_INPUTS, node_model, run_node, session_of
from setting import Memory, Setting, random_values


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

"""What the answers must be, bit for bit: loaded rows by numpy, attention by a replay on a fresh cache."""

from __future__ import annotations

import numpy as np
import onnxruntime

from attention_node import Attention
from compare import assert_same_bits, assert_within
from soak.lane_node import Node
from soak.rows import Rows

ORACLE_ROWS = 128  # the oracle is slow


def one_sequence(tokens: int) -> dict[str, np.ndarray]:
    """The index inputs of a prompt alone in a cache, in offset mode."""
    starts, length = np.array([0, tokens]), np.array(tokens)
    zero = np.zeros(1, np.int64)
    return dict(
        seqstarts=starts, kvstarts=starts, cachestarts=zero, start_pos=zero, max_seqlen=length, max_kvlen=length
    )


class Answers:
    """The expected answers of one node, from a session of their own and no manager."""

    def __init__(self, node: Node, rows: Rows, longest: int):
        self._node, self._rows = node.placed("runs", 0), rows
        self._session = self._node.session(arena=False) if node.fused else None
        self._unused = self._node.setting.memory(np.random.default_rng(3), longest)  # something is in every slot
        self.checked = 0

    def check_loaded(self, ids: np.ndarray, outputs: list[np.ndarray]) -> None:
        """Of `KeyValueCache`: key and value of these rows."""
        for name, expected, got in zip(("key", "value"), (self._rows.loaded_key, self._rows.loaded_value), outputs):
            assert_same_bits(name, got, expected[ids])
        self.checked += len(ids)

    def check_attended(self, ids: np.ndarray, answer: np.ndarray, fresh: bool = False) -> None:
        """Of `MultiHeadCacheAttention`: what the last of these rows has got is what it gets as the end of one prompt,
        on a cache that nobody has used, in a session that is kept for this. In a `fresh` one it is held against the
        oracle, too, if the sequence is short."""
        attention: Attention = self._node.attention
        session: onnxruntime.InferenceSession = self._node.session() if fresh else self._session
        inputs = self._rows.inputs(ids, fused=True) | one_sequence(len(ids)) | dict(decoding_batches=np.array(0))
        memory = self._unused.copy()
        if fresh and len(ids) <= ORACLE_ROWS:
            result = attention.oracle(inputs, memory.copy())
            assert_within("attn_output", answer, result.attn_output[-1], result.tolerance[-1])
        assert_same_bits("attn_output", answer, attention.run(inputs, memory, session)[-1])
        self.checked += 1

"""Sessions and objects that are made, used once, checked, and destroyed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import kvcache_ops
import numpy as np
from kvcache_ops.manager import Append

from compare import assert_same_bits
from kvcache import TYPE_NAMES
from soak.answers import Answers, one_sequence
from soak.lane_node import Node
from soak.place import Place
from soak.rows import Rows, row_ids

MODES = ("paged", "runs")


@dataclass
class Churn:
    """Makes and destroys; `nodes` are taken in turn."""

    nodes: list[Node]
    directory: Path
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._rows = [Rows(node) for node in self.nodes]
        self._answers = [Answers(node, rows, 16) for node, rows in zip(self.nodes, self._rows)]

    def once(self, i: int) -> None:
        """One session, one manager with a fork and a file, and one call without ONNX Runtime."""
        which = i % len(self.nodes)
        node, rows, answers = self.nodes[which], self._rows[which], self._answers[which]
        mode, layout = MODES[i // 8 % 2], i // 3 % 4
        placed = node.placed(mode, layout)
        self.session(placed, mode, 1 + i % 2, rows, answers)
        self.direct_call(placed.placed("runs", layout), rows)

    def session(self, node: Node, mode: str, threads: int, rows: Rows, answers: Answers) -> None:
        """A session that runs a prompt, then a token of that sequence as it is after a fork and from a file."""
        place = Place(node, mode, 64, node.session(threads))
        manager, path = place.manager, self.directory / "churn.session"
        seq = manager.create()
        ids = decode(place, rows, answers, seq, np.arange(11), np.zeros(0, np.int64))
        fork = manager.fork(seq)
        manager.free(seq)
        manager.update(place.host_memory)
        manager.save_seq(path, place.host_memory, fork)
        manager.free(fork)
        decode(place, rows, answers, manager.load_seq(path, place.host_memory), np.arange(1), ids)
        manager.check()
        self.counts["sessions"] += 1
        self.counts["managers"] += 1

    def direct_call(self, node: Node, rows: Rows) -> None:
        """The operator without ONNX Runtime, by objects of its own."""
        setting = node.setting
        spec = kvcache_ops.CacheSpec(
            max_tokens=16,
            num_kv_heads=setting.num_heads,
            head_dim=setting.head_dim,
            dtype=TYPE_NAMES[setting.t1],
            cache_layout=setting.cache_layout,
            quant_bit=setting.quant_bit,
            quant_group=setting.quant_group,
            cache_dtype=TYPE_NAMES[setting.t2],
            scale_dtype=None if setting.t3 is None else TYPE_NAMES[setting.t3],
        )
        cache, ids = spec.allocate(), np.arange(9)
        indices = one_sequence(len(ids))
        key, value = kvcache_ops.run(spec, rows.key[ids], rows.value[ids], *indices.values(), *cache)
        assert_same_bits("key", key, rows.loaded_key[ids])
        assert_same_bits("value", value, rows.loaded_value[ids])
        self.counts["direct calls"] += 1


def decode(place: Place, rows: Rows, answers: Answers, seq: int, tokens: np.ndarray, past: np.ndarray) -> np.ndarray:
    """Appends tokens to a sequence whose rows are `past`, and checks the answer; the rows that it has then."""
    ids = np.append(past, row_ids(tokens, len(past) + np.arange(len(tokens))))
    with place.manager.begin_step([Append(seq, tokens=tokens)], place.host_memory) as step:
        outputs = place.run(step, rows)
    if place.node.fused:
        answers.check_attended(ids, outputs[0][-1])
    else:
        answers.check_loaded(ids, outputs)
    return ids

"""A cache, the manager of its slots, the session that runs on it, and the rows that its sequences are made of."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import onnxruntime
from kvcache_ops import step_indices
from kvcache_ops.manager import CacheSpec, HostMemory, Manager, Step

from attention_node import Attention
from compare import Arrays, assert_same_bits
from kvcache import create_session
from layers import ROWS
from node import OPERATORS, quiet_options, run_node
from setting import INT4, TYPE_NAMES, Memory, Setting

Node = Setting | Attention
COUNT = 64  # rows: few and known, so that every loaded row can be checked in every step


def placed(node: Node, mode: str, layout: int, page_size: int = 8) -> Node:
    """The same node for a cache of that mode of the manager and that layout."""
    cached = replace(node.cached, cache_mode=int(mode == "paged"), cache_layout=layout, page_size=page_size)
    return replace(node, cached=cached) if isinstance(node, Attention) else cached


def new_session(node: Node, threads: int = 1, arena: bool = True) -> onnxruntime.InferenceSession:
    """A session, with so many threads inside the operator. An arena keeps the most that it has ever needed."""
    options = quiet_options(threads)
    options.enable_cpu_mem_arena = arena
    return create_session(node.model(), options)


def one_sequence(tokens: int) -> Arrays:
    """The index inputs of a prompt alone in a cache, in offset mode."""
    return step_indices([tokens], [0], cachestarts=[0])._asdict()


def row_ids(tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Which row a token at a position is."""
    return (tokens + 7 * positions) % COUNT


@cache
def known_rows(node: Node) -> tuple[Arrays, tuple[np.ndarray, np.ndarray]]:
    """The rows as they are given to a node, and as the oracle says that it loads them."""
    random = np.random.default_rng(17)
    given = node.inputs(random, one_sequence(COUNT))
    loaded = node.cached.oracle(given, node.cached.memory(random, COUNT))
    return {name: given[name] for name in ROWS if name in given}, loaded


class Answers:
    """`COUNT` rows as they are given to a node, and what it must answer, bit for bit: loaded rows are the oracle's,
    attention is what a prompt gets in a session and on a cache of its own, without a manager."""

    def __init__(self, node: Node, longest: int):
        self.node = placed(node, "runs", 0)
        self.rows, self.loaded = known_rows(self.node)
        self._session = new_session(self.node, arena=False)
        self._unused = self.node.cached.memory(np.random.default_rng(3), longest)  # something is in every slot
        self.checked = 0

    def inputs(self, ids: np.ndarray) -> Arrays:
        """The operator's inputs for the new rows of a step."""
        return {name: rows[ids] for name, rows in self.rows.items()}

    def check_loaded(self, ids: np.ndarray, outputs: list[np.ndarray]) -> None:
        """Of `KeyValueCache`: key and value of these rows."""
        for name, expected, got in zip(("key", "value"), self.loaded, outputs):
            assert_same_bits(name, got, expected[ids])
        self.checked += len(ids)

    def check_attended(self, ids: np.ndarray, answer: np.ndarray) -> None:
        """Of attention: what the last of these rows has got is what it gets as the end of one prompt."""
        inputs = self.inputs(ids) | one_sequence(len(ids)) | dict(decoding_batches=np.array(0))
        assert_same_bits("attn_output", answer, self.node.run(inputs, self._unused.copy(), self._session)[0][-1])
        self.checked += 1


class Place:
    """Where sequences live."""

    def __init__(self, node: Node, mode: str, max_t: int, session: onnxruntime.InferenceSession):
        self.node, self.mode, self.session, setting = node, mode, session, node.cached
        self.spec = CacheSpec(
            max_tokens=max_t,
            num_kv_heads=setting.num_heads,
            head_dim=setting.head_dim,
            dtype=TYPE_NAMES[setting.t1],
            num_layers=setting.num_layer,
            cache_layout=setting.cache_layout,
            quant_bit=setting.quant_bit,
            quant_group=setting.quant_group,
            cache_dtype=TYPE_NAMES[setting.t2],
            scale_dtype=None if setting.t3 is None else TYPE_NAMES[setting.t3],
            cache_mode=int(mode == "paged"),
            page_size=setting.page_size,
        )
        self.memory: Memory = setting.memory(np.random.default_rng(5), max_t)
        if setting.t2 == INT4:  # as the manager wants it: two codes in a byte along the last axis
            *axes, head_dim = self.spec.cache_shape
            self.memory.cache = self.memory.cache.reshape(*axes, head_dim // 2)
        self.host_memory = HostMemory(self.spec, self.memory.cache, self.memory.scale)
        # Of keys before rotation a row keeps its bytes wherever it moves.
        self.manager = Manager(self.spec, mode=mode, key_form="raw", fingerprint=str(setting.head_dim))
        others = {*ROWS, "cache", "scale", "attn_mask"}
        self._indices = [name for name in OPERATORS[node.operator][0] if name not in others]

    def run(self, step: Step, answers: Answers) -> list[np.ndarray]:
        """Runs the session on an open step: the operator's outputs."""
        rows = answers.inputs(row_ids(step.token_ids, step.positions))
        indices = {name: getattr(step, name) for name in self._indices}
        return run_node(self.session, rows | indices | self.memory.arrays, self.memory.int4_shape)
